"""What the judge must never do: refuse a correct kernel, pass a wrong copy, change its mind, take memory without bound.

`python -m benchmarks.judging [--device host|cuda:0] [--parts refusals copies repeats memory] [--seconds S]`

refusals   every operator, layout and dtype that builtin kernels serve, each judged with one of its kernels: none may be refused
copies     zeros, constants and scaled copies (1.001, 1.01, 1.1) of the right answer: accepted only where eager's own error,
           or one rounding of the dtype, is as large
repeats    judgements made again with the seed they recorded: the same verdict, the same bits of input
memory     the peak of judging an operator with a 256 MiB output at full size, over input and output together

Exit code 1 if any of them is not as it must be.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from benchmarks.results import FOLDER, header, store, write
from forge_tui.cuda.target import Target, open_target
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.builtin.registry import registered_operators
from forge_tui.engine.cards import Variant, variant_key
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.memory import lay, to_device
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.reference import compare, eager, in_place, reference
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.statistics import statistics
from tests import builtin_cases, norm_cases
from tests.kernels import FLOATS, Sample

PARTS = ("refusals", "copies", "repeats", "memory")
FAMILIES = {**builtin_cases.FAMILIES, **norm_cases.FAMILIES}
FACTORS = (1.001, 1.01, 1.1)
COPY_DTYPES = (*FLOATS, torch.float64)
ROUNDING = {torch.float64: 2.0**-50, torch.float32: 2.0**-20, torch.float16: 1.25 * 2.0**-10, torch.bfloat16: 1.25 * 2.0**-7}
"""How far from the truth, in norm, a copy may lie by rounding alone: a few units for formats that operators round at every
step in, one and a quarter for those rounded to once."""
EAGER_FACTOR = 3.0
REPEATED = 40
OPTIONS = JudgeOptions(tune_points=2, time=False)
MEMORY_SHAPE = (1 << 14, 1 << 12)
"""Of float32: input and output of 256 MiB each."""
MEMORY_LIMIT = 3.0
"""Times the tensors themselves."""

Tell = Callable[[str], None]


def cases(dtypes: Sequence[torch.dtype]) -> Iterator[tuple[str, str, torch.dtype, Sample]]:
    """Every call of every family in every dtype, those of one dtype together."""
    for dtype in dtypes:
        for family, named in FAMILIES.items():
            for name, make in named.items():
                try:
                    item = make(dtype)
                except RuntimeError:                        # a mixture of dtypes that torch itself refuses on the CPU
                    continue
                yield family, name, dtype, item


def variant_of(item: Sample) -> Variant:
    """As capture would describe it."""
    return Variant(key=variant_key(item.call), call=item.call, calls=1, time_us=1.0, bytes_moved=1, operations=1, floor_us=1.0,
                   statistics={name: statistics([tensor]) for name, tensor in item.tensors.items()}, samples=("s",), modules=("",))


def on_target(item: Sample, target: Target) -> dict[str, torch.Tensor]:
    return {name: to_device(tensor, "cuda") if target.kind == "cuda" else tensor for name, tensor in item.tensors.items()}


def recorded_on(item: Sample, target: Target) -> Sample:
    """The call as capture would record it there: eager's results may lie otherwise on a GPU than on the CPU."""
    if target.kind == "host":
        return item
    results = eager(item.call, on_target(item, target))
    outputs = tuple(spec if name in item.call.aliases else structs.replace(spec, shape=tuple(result.shape), stride=tuple(result.stride()))
                    for name, spec, result in zip(item.call.output_names(), item.call.outputs, results, strict=True))
    return replace(item, call=structs.replace(item.call, outputs=outputs))


def judged(item: Sample, number: int, target: Target, first: Verdict | None = None) -> tuple[str, Verdict] | None:
    """The verdict on one of the kernels that take the call, in turn by `number`; None where none does. first: the verdict to
    repeat, from its seed and at its setting, which on a GPU was chosen by time."""
    item = recorded_on(item, target)
    fitting = [kernel for kernel in kernels_for(item.call)
               if not parse(kernel.text, f"{kernel.name}.cu").refusal(item.call, target.facts)]
    if not fitting:
        return None
    kernel = fitting[number % len(fitting)]
    return kernel.name, judge_text(kernel.text, f"{kernel.name}.cu", variant_of(item), [on_target(item, target)], target,
                                   seed=first.seed if first else None, options=OPTIONS,
                                   settings=dict(first.settings) if first and target.kind == "cuda" else None)


def refusals(target: Target, seconds: float, tell: Tell) -> dict[str, Any]:
    """Correct kernels judged; those refused, with the seed that repeats it."""
    everything = list(enumerate(cases(FLOATS)))
    random.Random(1).shuffle(everything)                    # a run that is cut off has met every operator and dtype all the same
    begin = time.monotonic()
    outcomes: dict[str, int] = {}
    operators: dict[str, set[str]] = {}
    kernels: set[str] = set()
    refused = []
    for number, (family, name, dtype, item) in everything:
        if seconds and time.monotonic() - begin > seconds:
            break
        found = judged(item, number, target)
        if found is None:
            continue
        kernel, verdict = found
        outcomes[verdict.outcome] = outcomes.get(verdict.outcome, 0) + 1
        if verdict.verified:
            operators.setdefault(item.call.operator, set()).add(str(dtype).removeprefix("torch."))
            kernels.add(kernel)
        elif verdict.outcome != "skipped":
            refused.append({"kernel": kernel, "call": f"{family} {name} {dtype}", "seed": verdict.seed, "sentence": verdict.sentence})
            tell(f"refused: {refused[-1]}")
    total = sum(outcomes.values()) - outcomes.get("skipped", 0)
    tell(f"refusals: {total} judgements of correct kernels, {len(refused)} refused, {outcomes.get('skipped', 0)} skipped")
    return {"judgements": total, "skipped": outcomes.get("skipped", 0), "refused": refused, "calls": len(everything),
            "operators": {name: sorted(found) for name, found in sorted(operators.items())}, "kernels": sorted(kernels),
            "operators_without": sorted(set(registered_operators()) - set(operators)), "seconds": round(time.monotonic() - begin, 1)}


def copies(target: Target, tell: Tell) -> dict[str, Any]:
    """Wrong answers by kind and dtype: how many were tried and how many accepted, and the furthest of these."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    operators: set[str] = set()
    unjust = []
    for family, name, dtype, item in cases(COPY_DTYPES):
        tensors = on_target(item, target)
        own = in_place(item.call, eager(item.call, tensors))
        for label, made, distance in wrong_copies(item, tensors, own):
            short = str(own[0].dtype).removeprefix("torch.")
            row = rows.setdefault((label, short), {"copy": label, "dtype": short, "tried": 0, "accepted": 0, "furthest": 0.0})
            row["tried"] += 1
            operators.add(item.call.operator)
            first = compare(item.call, tensors, own, (made, *own[1:]), target=target)[0]
            if first.passed:
                row["accepted"] += 1
                row["furthest"] = max(row["furthest"], distance)
                if distance > EAGER_FACTOR * first.eager + ROUNDING[own[0].dtype]:
                    unjust.append(f"{label} for {family} {name} {dtype}: {distance:.3g} away, eager {first.eager:.3g}")
    for row in rows.values():
        tell(f"copies: {row['copy']:>8} {row['dtype']:9} {row['accepted']} of {row['tried']} accepted")
    for text in unjust:
        tell(f"accepted without reason: {text}")
    return {"rows": list(rows.values()), "unjust": unjust, "operators": sorted(operators),
            "operators_without": sorted(set(registered_operators()) - operators)}


def wrong_copies(item: Sample, tensors: dict[str, torch.Tensor],
                 own: tuple[torch.Tensor, ...]) -> Iterator[tuple[str, torch.Tensor, float]]:
    """Name, tensor, and how far it lies from the truth, relative, in norm. Those that round to eager's own bits are left out."""
    truth = torch.where(own[0].isfinite(), reference(item.call, tensors)[0].double(), own[0].double())
    finite = truth.isfinite()
    if own[0].dtype not in ROUNDING or not bool(finite.any()) or not float(truth[finite].norm()):
        return
    for label, wrong in (("zeros", torch.zeros_like(truth)), ("constant", torch.full_like(truth, float(truth[finite].mean()))),
                         *((str(factor), truth * factor) for factor in FACTORS)):
        made = torch.where(finite, wrong, truth).to(own[0].dtype)
        if not torch.equal(made.nan_to_num(), own[0].nan_to_num()):
            yield label, lay(item.call.outputs[0], made), float((made.double() - truth)[finite].norm() / truth[finite].norm())


def repeats(target: Target, tell: Tell) -> dict[str, Any]:
    """Judgements made twice with one seed: those that differ in anything but seconds."""
    everything = list(enumerate(cases(FLOATS)))
    random.Random(2).shuffle(everything)
    count, checks, different = 0, 0, []
    for number, (family, name, dtype, item) in everything:
        if count == REPEATED:
            break
        first = judged(item, number, target)
        if first is None or first[1].outcome == "skipped":
            continue
        again = judged(item, number, target, first[1])
        count += 1
        checks += len(first[1].checks)
        if said(first[1]) != said(again[1]):  # type: ignore[index]
            different.append(f"{first[0]} on {family} {name} {dtype}, seed {first[1].seed}")
    tell(f"repeats: {count} judgements repeated, {checks} checks each time, {len(different)} differ")
    return {"judgements": count, "checks": checks, "different": different}


def said(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.outcome, verdict.sentence, verdict.checks, verdict.worst, verdict.settings, verdict.image


def memory(device: str, tell: Tell) -> dict[str, Any]:
    """Peak memory of one whole judgement at full size, in a process of its own."""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", "benchmarks.judging", "--measure-memory", "--device", device], cwd=root,
                          stdout=subprocess.PIPE, text=True, check=True)
    peak, checks = (int(word) for word in done.stdout.split()[-2:])
    tensors = 2 * 4 * MEMORY_SHAPE[0] * MEMORY_SHAPE[1]
    tell(f"memory: peak {peak / 2**20:.0f} MiB for tensors of {tensors / 2**20:.0f} MiB: {peak / tensors:.2f} times, {checks} checks")
    return {"tensors_bytes": tensors, "peak_bytes": peak, "ratio": round(peak / tensors, 3), "checks": checks}


def measure_memory(device: str) -> None:
    """The child: prints the bytes by which the peak grew, the captured input included, and how many checks were made."""
    import resource

    from forge_tui.engine.judge import judge as module
    from forge_tui.engine.judge.selftest import variant_of as described
    from tests.judging import CountingTimer, PythonTarget
    from tests.test_judge import PLAN

    def by_rows(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
        for begin in range(0, len(source), 64):
            out[begin:begin + 64] = torch.softmax(source[begin:begin + 64], -1)

    torch.set_num_threads(1)
    small = torch.randn(64, 64)
    torch.softmax(small.double(), -1)                       # what torch loads at its first use is not the judge's
    module.HOST_ELEMENTS = 1 << 40                          # kernels are functions here: nothing is interpreted
    host = device == "host"
    target = PythonTarget(rows=by_rows) if host else open_target(device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if host else torch.cuda.memory_allocated()
    x = torch.zeros(MEMORY_SHAPE, device="cpu" if host else "cuda").copy_(torch.randn(MEMORY_SHAPE[1], device="cpu" if host else "cuda"))
    if not host:
        torch.cuda.reset_peak_memory_stats()
    variant, sample = described("torch.nn.functional.softmax", {"input": x, "dim": -1, "dtype": None})
    text = PLAN if host else kernels_for(variant.call)[0].text
    options = JudgeOptions(tune_points=1, time=False, repeats=1, proxy_elements=1 << 40)
    begin = time.monotonic()

    def progress(what: str, done: int, of: int) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"{time.monotonic() - begin:6.1f} s  {peak} MiB  {what} {done} of {of}", file=sys.stderr, flush=True)

    verdict = judge_text(text, "rows.cu", variant, [sample], target, options=options, seed=1, progress=progress,
                         timer=CountingTimer() if host else None)
    assert verdict.verified and not verdict.proxy, verdict.sentence
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if host else torch.cuda.max_memory_allocated()
    print(peak - before, len(verdict.checks))


def right(found: dict[str, Any]) -> bool:
    """Whether every part that was run is as it must be."""
    return not (found.get("refusals", {}).get("refused") or found.get("copies", {}).get("unjust")
                or found.get("repeats", {}).get("different") or found.get("memory", {}).get("ratio", 0.0) > MEMORY_LIMIT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no judgement of `refusals` after so many; 0: all")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON file; default: benchmarks/results")
    parser.add_argument("--measure-memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_memory:
        measure_memory(options.device)
        return 0

    def tell(text: str) -> None:
        print(text, flush=True)

    torch.set_num_threads(1)
    wanted = options.parts
    found: dict[str, dict[str, Any]] = {}
    if "memory" in wanted:                                  # first: on a GPU it wants the device to itself
        found["memory"] = memory(options.device, tell)
    target = open_target(options.device)
    makers = {"refusals": lambda: refusals(target, options.seconds, tell), "copies": lambda: copies(target, tell),
              "repeats": lambda: repeats(target, tell)}
    for part, make in makers.items():
        if part in wanted:
            found[part] = make()
    for part, body in found.items():
        path = (store("judging", target.facts, body, options.out, part=part) if target.kind == "cuda" else
                write((options.out or FOLDER) / f"judging-{part}-host.json", {**header("judging"), **body}))
        print(f"stored in {path}")
    return 0 if right(found) else 1


if __name__ == "__main__":
    sys.exit(main())
