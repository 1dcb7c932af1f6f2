"""Does the judge ever wait for work: a run whose writer takes 20 s for each reply, with eight replies asked for at
once.

`python -m benchmarks.concurrency [--replies-take 20] [--judgements-take 1] [--iterations 50] [--jobs 8]` runs the real
engine, journal, `command` provider and policy on one operator. The judge is a stand-in that holds its one device for a
stated time and draws times at random: what is measured is the loop, on any machine.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, header, write
from forge_tui.cuda.device import H200
from forge_tui.engine import events
from forge_tui.engine.cards import FORMAT, OperatorFile, Variant, save_operators, variant_key
from forge_tui.engine.forge import run
from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.options import RunOptions
from forge_tui.specs import Call, TensorSpec
from forge_tui.store.project import FORMAT as PROJECT_FORMAT
from forge_tui.store.project import ModelConfig, ProjectConfig, create_project


WRITER = """import os, sys, time
sys.stdin.read()
time.sleep({seconds})
print("One idea.\\n```cuda\\n/*forge\\nformat = 1\\n*/\\n// " + os.environ["FORGE_ASK"] + "\\n__global__ void k() {{}}\\n```")
"""


class StandIn:
    """Holds its device for so many seconds, one kernel at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begun: list[float] = []
        self.ended: list[float] = []
        self._device = threading.Lock()

    def open(self, *_: object) -> StandIn:
        """As `forge.run` opens judges."""
        return self

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""

    def judge(self, variant_key: str, text: str, filename: str, *, settings: dict[str, int] | None = None) -> Verdict:
        with self._device:
            self.begun.append(time.monotonic())
            time.sleep(self.seconds)
            self.ended.append(time.monotonic())
        us = random.Random(text).uniform(10.0, 40.0)
        return Verdict(
            "verified", "stand-in", timing=Timing("modelled", us), image=hashlib.sha256(text.encode()).hexdigest()
        )

    def confirm(self, variant_key: str, text: str, filename: str, *, settings: dict[str, int]) -> Verdict:
        return self.judge(variant_key, text, filename, settings=settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies-take", type=float, default=20.0)
    parser.add_argument("--judgements-take", type=float, default=1.0)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        body = measure(Path(folder), options.replies_take, options.judgements_take, options.iterations, options.jobs)
    print(
        f"{options.iterations} iterations, replies of {options.replies_take:g} s, {options.jobs} at once: {body['wall_s']:.1f} s; the "
        f"device stood idle while a kernel was ready {body['idle_share']:.2%} of the time that one was"
    )
    path = write(options.out / "concurrency.json", {**header("concurrency"), **body})
    print(f"stored in {path}")


def measure(folder: Path, reply_s: float, judgement_s: float, iterations: int, jobs: int) -> dict[str, Any]:
    """Wall time of one run; and how long a kernel lay ready with the device idle, over how long any lay ready or was
    judged."""
    script = folder / "writer.py"
    script.write_text(WRITER.format(seconds=reply_s))
    spec = TensorSpec("float32", (128, 64), (64, 1))
    call = Call("torch.nn.functional.softmax", {"input": spec, "dim": -1, "_stacklevel": 3, "dtype": None}, (spec,))
    variant = Variant(
        key=variant_key(call),
        call=call,
        calls=1,
        time_us=50.0,
        bytes_moved=65536,
        operations=40960,
        floor_us=4.0,
        statistics={},
        samples=(),
        modules=("",),
    )
    config = ProjectConfig(format=PROJECT_FORMAT, model=ModelConfig("model.py"))
    paths = create_project(folder / "project", config)
    save_operators(
        paths,
        OperatorFile(
            format=FORMAT,
            model="a stand-in",
            device=H200,
            time_kind="cpu",
            forward_us=50.0,
            variants=(variant,),
            skipped=(),
            torch="",
            captured_at=1.0,
        ),
    )
    ready: list[float] = []
    judge = StandIn(judgement_s)

    def on_event(event: events.AnyEvent) -> None:
        if isinstance(event, events.Replied):
            ready.append(time.monotonic())

    begun = time.monotonic()
    result = run(
        paths,
        config,
        RunOptions(
            device="host",
            seeds=False,
            package=False,
            iterations=iterations,
            jobs=jobs,
            seed=1,
            provider=f"command:{sys.executable} {script}",
        ),
        on_event,
        judge.open,
    )
    wall = time.monotonic() - begun
    idle = busy = free_at = 0.0
    for arrived, start, end in zip(sorted(ready), judge.begun, judge.ended, strict=False):
        idle += max(0.0, start - max(arrived, free_at))
        busy += end - start
        free_at = end
    return {
        "wall_s": wall,
        "tried": result.operators[0].tried,
        "reply_s": reply_s,
        "judgement_s": judgement_s,
        "jobs": jobs,
        "iterations": iterations,
        "idle_share": idle / (idle + busy),
        "judge": "a stand-in that sleeps",
    }


if __name__ == "__main__":
    main()
