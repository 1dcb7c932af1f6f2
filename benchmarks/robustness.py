"""Kernels that kill, hang, fault and starve the judging worker, among honest ones: every other verdict must be right.

`python -m benchmarks.robustness [--device D] [--times 50] [--seconds S]` judges disturbances in turn, an honest kernel
after each, and counts what came of them; exit code 1 if any verdict is not the one it must be.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, to_builtins

from benchmarks.results import store
from forge_tui.cuda.device import H200
from forge_tui.engine.cards import FORMAT, OperatorFile, save_operators
from forge_tui.engine.judge.client import JudgeClient
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.probe import CONSTANT, HONEST
from forge_tui.engine.judge.selftest import variant_of
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.tensors import save_tensors

LOOP = "const volatile float* flag = input;\n    while (*flag != 12345.0f) { }\n    if (i < n)"
LEFT = 24 << 30
"""Bytes of device memory left to the worker when it is asked for more: no plan may ask for as much as a large device
has."""
SCRATCH = '[[workspace]]\nname = "scratch"\ndtype = "float32"\nshape = [15000000000]\n\n[[launch]]'


class Disturbance(Struct, frozen=True):
    """One kind of trouble."""

    text: str
    expected: tuple[tuple[str, str | None], ...]
    """(outcome, fault) that the verdict may have."""
    kill: bool = False
    """Whether the worker is killed from outside while it judges."""
    starve: bool = False
    """Whether another process (this one) holds most of a GPU's memory meanwhile."""


DISTURBANCES: dict[str, Disturbance] = {
    "out of bounds": Disturbance(HONEST.replace("out[i] =", "out[i + (1ll << 40)] ="), (("fault", "out_of_bounds"),)),
    "killed": Disturbance(HONEST, (("fault", "crashed"),), kill=True),
    "out of memory": Disturbance(HONEST.replace("[[launch]]", SCRATCH), (("fault", "out_of_memory"),), starve=True),
    "trap": Disturbance(
        HONEST.replace("if (i < n)", "__trap();\n    if (i < n)"),
        (("fault", "crashed"), ("fault", "illegal_instruction")),
    ),
    "endless": Disturbance(HONEST.replace("if (i < n)", LOOP), (("fault", "endless"),)),
    "wrong": Disturbance(CONSTANT, (("wrong", None),)),
}


class Count(Struct):
    """What came of one kind."""

    tried: int = 0
    right: int = 0
    surprises: list[str] = []


def run(
    device: str, times: int, seconds: float | None = None, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """`times` disturbances in turn, or as many as begin within `seconds`; an honest kernel after each of them."""
    counts = {name: Count() for name in (*DISTURBANCES, "honest")}
    with tempfile.TemporaryDirectory(prefix="forge-robustness-") as folder:
        paths, key = _project(Path(folder))
        options = JudgeOptions(tune_points=1, repeats=1, launch_deadline_s=1.0, time=False)
        with JudgeClient(paths, device, options=options) as client:
            assert client.welcome is not None
            begin = time.monotonic()
            for number in range(times):
                if seconds is not None and time.monotonic() - begin > seconds:
                    break
                name = list(DISTURBANCES)[number % len(DISTURBANCES)]
                item = DISTURBANCES[name]
                _count(counts[name], _judge(client, key, item), item.expected)
                honest = client.judge(key, HONEST, "honest.cu")
                _count(counts["honest"], honest, (("verified", None),))
                tell(
                    f"{number + 1:>3}  {name}: {'as expected' if not counts[name].surprises else counts[name].surprises[-1]}; "
                    f"then an honest one: {honest.outcome}"
                )
            return {
                "target": client.welcome.target,
                "seconds": time.monotonic() - begin,
                "facts": client.welcome.facts,
                "workers": client.statistics()["workers started"],
                "counts": counts,
            }


def _judge(client: JudgeClient, key: str, item: Disturbance) -> Verdict:
    def kill(report: object) -> None:
        for pid in client.pids():
            os.kill(pid, signal.SIGKILL)

    assert client.welcome is not None
    ballast = _ballast() if item.starve and client.welcome.target == "cuda" else None
    try:
        return client.judge(key, item.text, "disturbance.cu", on_progress=kill if item.kill else None)
    finally:
        if ballast is not None:
            del ballast
            torch.cuda.empty_cache()


def _ballast() -> torch.Tensor | None:
    """Device memory, all but LEFT."""
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(free - LEFT, dtype=torch.uint8, device="cuda") if free > LEFT else None


def _count(count: Count, verdict: Verdict, expected: tuple[tuple[str, str | None], ...]) -> None:
    count.tried += 1
    if (verdict.outcome, verdict.fault) in expected:
        count.right += 1
    else:
        count.surprises.append(f"{verdict.outcome} ({verdict.fault}): {verdict.sentence}")


def _project(folder: Path) -> tuple[ProjectPaths, str]:
    """A project with one small captured call."""
    paths = ProjectPaths(folder)
    sample = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    variant, tensors = variant_of("torch.nn.functional.relu", {"input": sample})
    save_tensors(paths.captures / "sample", tensors, {"weights": {}})
    save_operators(paths, OperatorFile(FORMAT, "a benchmark", H200, "cpu", 1.0, (variant,), (), str(torch.__version__)))
    return paths, variant.key


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--times", type=int, default=50, help="disturbances")
    parser.add_argument("--seconds", type=float, default=None, help="begin no disturbance after so many")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    found = run(options.device, options.times, options.seconds, lambda text: print(text, flush=True))
    counts: dict[str, Count] = found["counts"]
    disturbances = sum(count.tried for name, count in counts.items() if name != "honest")
    print(
        f"{found['target']}: {disturbances} disturbances in {found['seconds']:.0f} s, {found['workers']} workers started"
    )
    for name, count in counts.items():
        print(f"  {name:<14} {count.right} of {count.tried} as expected")
        for surprise in count.surprises:
            print(f"      {surprise}")
    facts = found.pop("facts")
    if found["target"] == "cuda" or options.out:            # on `host` the facts are those of the device it models
        body = {**found, "counts": {name: to_builtins(count) for name, count in counts.items()}}
        print(f"stored in {store('robustness', facts, body, options.out)}")
    return 0 if all(count.right == count.tried for count in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
