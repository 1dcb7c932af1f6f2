"""`python -m benchmarks.host`: what the host target can interpret, find and how fast, stored in results/host.json.

`--only kernels|faults|speed|verdicts` measures one part and keeps the others. `verdicts` are the judge's, of every selftest kernel and of every
builtin kernel on a small call: on `--device cuda:N` they go to results/host-verdicts-DEVICE.json, to be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.hostset import dense, irregular, rows, speed
from benchmarks.hostset.planted import FAULTS
from benchmarks.results import FOLDER, header, store, write
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.orders import IN_STEP
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.target import Target, open_target
from forge_tui.engine.builtin.catalog import BuiltinKernel, kernels_for
from forge_tui.engine.check.checking import check_file
from forge_tui.engine.check.examples import MAKERS, examples
from forge_tui.engine.check.inputs import make
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.memory import to_device
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.selftest import exams, run_selftest, take, variant_of
from forge_tui.errors import ForgeError

PARTS = ("kernels", "faults", "speed", "verdicts")
WRITTEN = [*dense.KERNELS, *rows.KERNELS, *irregular.KERNELS]
KERNEL_FILES = Path(__file__).parent.parent / "tests" / "kernel_files"
OPERATORS = [*MAKERS, "gelu", "silu", "relu", "sigmoid", "tanh", "exp"]
SEED = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--device", default="host")
    parser.add_argument("--out", type=Path, default=None, help="folder of a device's file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device != "host":
        found = {f"selftest {result.name}": result.outcome for result in run_selftest(options.device).results}  # in workers: most end theirs
        target = open_target(options.device)
        store("host", target.facts, {"verdicts": found | builtin_verdicts(target)}, options.out, part="verdicts")
        return
    path = FOLDER / "host.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    parts = {name: known[name] for name in PARTS if name in known}
    for name in options.only or PARTS:
        begun = header("host")
        parts[name] = {"command": begun["command"], "date": begun["date"], "machine": begun["machine"], "found": MEASURES[name]()}
        write(path, {**begun, **{part: parts[part] for part in PARTS if part in parts}})


# Kernels --------------------------------------------------------------------------------------------------------------------


def kernels() -> list[dict[str, Any]]:
    """Every kernel of the set: whether it can be interpreted, and whether its results are torch's."""
    found = []
    for name, kind, outcome, detail in (*_written(), *_files()):
        print(f"{outcome:17} {kind:20} {name}  {detail}", flush=True)
        found.append({"name": name, "kind": kind, "outcome": outcome, "detail": detail})
    return found


def _written() -> Iterator[tuple[str, str, str, str]]:
    target = HostTarget()
    for kernel in WRITTEN:
        try:
            apart = kernel.difference(target)
            yield kernel.name, kernel.kind, "right" if apart <= kernel.tolerance else "wrong", f"{apart:.2g} apart"
        except CandidateFault as fault:
            yield kernel.name, kernel.kind, "not interpretable" if fault.kind == "not_interpretable" else "fault", str(fault)


def _files() -> Iterator[tuple[str, str, str, str]]:
    words = {"clean": "right", "skipped": "not interpretable", "wrong": "wrong"}
    for path in sorted(KERNEL_FILES.glob("*.cu")):
        try:
            report = check_file(path.read_text(), path.name, orders=(IN_STEP,))
        except ForgeError as error:
            yield path.stem, "kernel file", "fault", error.message
            continue
        yield path.stem, "kernel file", words.get(report.status, "fault"), report.sentence
    for name, text, given in builtins():
        report = check_file(text, f"{name}.cu", given, orders=(IN_STEP,))
        yield name, "builtin", words.get(report.status, "fault"), report.sentence
    for exam in exams():
        if exam.honest:
            result = take(exam, HostTarget(), SEED)
            yield exam.name, "selftest", "right" if result.passed else "not interpretable" if result.outcome == "skipped" else "wrong", result.sentence


def builtins() -> list[tuple[str, str, str]]:
    """Every builtin kernel with the operator's first example call that it is offered for: name, text, spec."""
    return [(name, kernel.text, spec) for name, (kernel, spec, _) in _builtin_calls().items()]


def _builtin_calls() -> dict[str, tuple[BuiltinKernel, str, Any]]:
    found: dict[str, tuple[BuiltinKernel, str, Any]] = {}
    for operator in OPERATORS:
        for owner in ("torch.nn.functional", "torch"):
            if not hasattr(torch.nn.functional if owner.endswith("functional") else torch, operator):
                continue
            for given in examples(f"{owner}.{operator}"):
                try:
                    chosen = make(f"{owner}.{operator}", given, "an example")
                except ForgeError:      # arguments of another operator's form
                    continue
                for kernel in kernels_for(chosen.call):
                    if kernel.name not in found:
                        found[kernel.name] = (kernel, _spec(given), (f"{owner}.{operator}", chosen.arguments))
            break
    return found


def _spec(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_written_out(value)}" for name, value in given.items())


def _written_out(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}({', '.join(map(str, value.shape))})"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return f"[{', '.join(map(_written_out, value))}]" if isinstance(value, (list, tuple)) else repr(value)


# Faults, speed, verdicts ----------------------------------------------------------------------------------------------------


def faults() -> list[dict[str, Any]]:
    """Every planted fault, and its correct twin."""
    found = []
    for case in FAULTS:
        fault, twin = case.run(right=False), case.run(right=True)
        right = fault is not None and (fault.kind, fault.line) == (case.kind, case.line)
        print(f"{'found' if right else 'MISSED':8} {case.kind:18} {case.name}{f'; its twin: {twin}' if twin else ''}", flush=True)
        found.append({"name": case.name, "kind": case.kind, "found": right, "said": str(fault), "twin": str(twin) if twin else ""})
    return found


def builtin_verdicts(target: Target) -> dict[str, str]:
    """The judge's outcome on every builtin kernel, on a small call; nothing is timed."""
    found = {}
    for name, (kernel, _, (operator, arguments)) in _builtin_calls().items():
        variant, sample = variant_of(operator, arguments)
        if target.kind == "cuda":
            sample = {key: to_device(tensor, "cuda") for key, tensor in sample.items()}
        verdict = judge_text(kernel.text, f"{name}.cu", variant, [sample], target, seed=SEED, options=JudgeOptions(tune_points=1, time=False))
        found[f"builtin {name}"] = verdict.outcome
        print(f"{verdict.outcome:10} {name}  {verdict.sentence}", flush=True)
    return found


def host_verdicts() -> dict[str, str]:
    """The judge's outcome on every selftest kernel and every builtin kernel."""
    with tempfile.TemporaryDirectory(prefix="forge-host-") as home:
        os.environ["FORGE_HOME"] = home
        target = HostTarget()
        return {f"selftest {exam.name}": take(exam, target, SEED).outcome for exam in exams()} | builtin_verdicts(target)


MEASURES = {"kernels": kernels, "faults": faults, "speed": speed.measure, "verdicts": host_verdicts}


if __name__ == "__main__":
    main()
