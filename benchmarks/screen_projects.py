"""Projects for measuring the screens: real files of every kind a project has, made in a second, of any size."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

import msgspec

from forge_tui.cuda.device import H200
from forge_tui.cuda.target import InstructionClass, LaunchCounts, LineCounts
from forge_tui.engine import events
from forge_tui.engine.cards import FORMAT, CallForm, OperatorFile, Variant, save_operators, variant_key
from forge_tui.engine.doctor import Diagnosis, Finding
from forge_tui.engine.judge.verdict import Check, Point, Timing, Verdict
from forge_tui.specs import Call, TensorSpec
from forge_tui.store.journal import JournalWriter
from forge_tui.store.lock import ProjectLock
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import ModelConfig, ProjectConfig, create_project

CHECKS = tuple(Check(f"draw number {index}", True, 1e-8 * index, 1e-6) for index in range(1, 17))
POINTS = tuple(
    Point({"BLOCK": block, "VEC": vec}, 4.0 + block / 512 + 1 / vec)
    for block in (64, 128, 256, 512)
    for vec in (1, 2, 4)
)
COUNTS = (LaunchCounts("softmax_rows", 64, 128, 1 << 20, 1 << 15, 4096, 32768, 1 << 20, 128, 2112, 64, 512, 32768, 512, 12,
                       classes=(InstructionClass("float32", 600_000, 18_750), InstructionClass("integer", 300_000, 9_375),
                                InstructionClass("global", 148_576, 4_643)),
                       lines=(LineCounts(27, "shared load", 64, 2048, 64, 32),)),)
SOURCE = (
    '/*forge\nformat = 1\n*/\nextern "C" __global__ void softmax_rows(const float* input, float* out) { '
    "out[0] = input[0]; }\n"
)


def project(root: Path, calls: list[Call]) -> tuple[ProjectPaths, list[str]]:
    """A project with cards for these calls; its variants' keys."""
    create_project(root, ProjectConfig(format=1, model=ModelConfig(source="hf:some/encoder")))
    paths = ProjectPaths(root)
    variants = tuple(
        Variant(
            variant_key(call), call, 6, 12.5, 1 << 20, 0, 4.0, {}, (), ("",), (CallForm(call.operator, (), {}, ()),)
        )
        for call in calls
    )
    save_operators(
        paths, OperatorFile(FORMAT, "encoder: 1 M parameters, float32", H200, "device", 100.0, variants, (), "2.13.0")
    )
    return paths, [variant.key for variant in variants]


def softmax(rows: int) -> Call:
    """softmax over so many rows."""
    spec = TensorSpec("float32", (rows, 384), (384, 1))
    return Call("torch.nn.functional.softmax", {"input": spec, "dim": -1}, (spec,))


def started(at: float) -> events.RunStarted:
    """The first event of a run."""
    return events.RunStarted(
        at=at,
        run="r",
        host="node",
        pid=1,
        version="0",
        provider="builtin",
        llm="",
        policy="uct",
        seed=1,
        device="cuda:0",
        target="cuda",
        iterations=5000,
    )


def candidate(key: str, number: int, parent: int | None, at: float, digest: str = "a" * 64) -> list[events.AnyEvent]:
    """The events of one candidate; every third is wrong."""
    node = f"{key}/{number}"
    speedup = 1.0 + (number * 37 % 101) / 100
    verdict = (
        Verdict("wrong", f"wrong on the captured sample: relative error {number}", CHECKS[:3], judged_s=0.4)
        if number % 3 == 0
        else Verdict(
            "verified",
            "right on 2 captured samples and 13 fresh draws",
            CHECKS,
            seed=number,
            settings={"BLOCK": 128, "VEC": 4},
            points=POINTS,
            counts=COUNTS,
            image=f"{number:064x}",
            judged_s=1.2,
            timing=Timing(
                "device",
                12.5 / speedup,
                (12.4 / speedup, 12.6 / speedup),
                12.5,
                "eager",
                speedup,
                (speedup - 0.01, speedup + 0.01),
            ),
        )
    )
    return [
        events.Proposed(
            at=at,
            node=node,
            variant=key,
            parent=f"{key}/{parent}" if parent else None,
            strategy=("tiling", "vectorization", "fusion")[number % 3],
            provider="builtin",
        ),
        events.Replied(
            at=at + 0.1, node=node, kernel=digest, idea=f"idea number {number} in a line of usual length", cost_usd=0.01
        ),
        events.Judged(at=at + 0.2, node=node, verdict=verdict, value=speedup - 1 if verdict.verified else None),
    ]


def many_nodes_project(root: Path, count: int) -> Path:
    """One operator with `count` candidates, each child of the one at half its number."""
    paths, (key,) = project(root / "encoder", [softmax(64)])
    paths.kernels.mkdir()
    paths.kernel("a" * 64).write_text(SOURCE)
    at = time.time() - 86400
    with JournalWriter(paths.journal) as journal:
        for event in (started(at), events.Selected(at=at, operators=(key,))):
            journal.append(events.encode(event))
        for number in range(1, count + 1):
            for event in candidate(key, number, number // 2 or None, at + number):
                journal.append(events.encode(event))
        journal.append(
            events.encode(
                events.OperatorDone(at=at + count + 1, variant=key, status="won", reason="1.99x", best=f"{key}/1")
            )
        )
        journal.append(
            events.encode(events.RunEnded(at=at + count + 2, run="r", status="done", reason="", exit_code=0))
        )
    return paths.root


def many_rows_project(root: Path, count: int) -> Path:
    """`count` operators of one variant each."""
    spec = TensorSpec("float32", (64, 384), (384, 1))
    paths, _ = project(
        root / "encoder", [Call(f"operator-{number}", {"input": spec}, (spec,)) for number in range(count)]
    )
    return paths.root


def launcher_home(folder: Path, count: int) -> Path:
    """A user's folder that knows `count` finished projects of ten candidates each."""
    home = folder / "home"
    roots = []
    for number in range(count):
        paths, (key,) = project(folder / f"project-{number:03}", [softmax(64 + number)])
        at = time.time() - 86400 * (1 + number)
        with JournalWriter(paths.journal) as journal:
            for event in [
                started(at),
                *(event for item in range(1, 11) for event in candidate(key, item, item // 2 or None, at)),
                events.RunEnded(at=at + 60, run="r", status="done", reason="", exit_code=0),
            ]:
                journal.append(events.encode(event))
        roots.append({"root": str(paths.root), "opened": at})
    (home / "state").mkdir(parents=True)
    (home / "state/recent.json").write_bytes(msgspec.json.encode(roots))
    doctor_cache(home)
    return home


def doctor_cache(home: Path) -> None:
    """A diagnosis of today, so that the launcher starts none."""
    (home / "cache").mkdir(parents=True, exist_ok=True)
    (home / "cache/doctor.json").write_bytes(
        msgspec.json.encode(Diagnosis(1, "0", (Finding("host", "ok", "2 cores"),)))
    )


class Growing:
    """A project that a run holds (this process does) and whose journal grows by one event at each `step`."""

    def __init__(self, folder: Path) -> None:
        self.paths, (self._key,) = project(folder / "encoder", [softmax(64)])
        self.root = self.paths.root
        self.events = 0
        self._lock = ProjectLock(self.paths)
        self._pending: list[events.AnyEvent] = []
        self._number = 0
        self.judged = ""
        """The latest candidate that has a verdict."""

    def __enter__(self) -> Growing:
        self._lock.__enter__()
        self._journal = JournalWriter(self.paths.journal)
        self._journal.__enter__()
        for event in (started(time.time()), events.Selected(at=time.time(), operators=(self._key,))):
            self._journal.append(events.encode(event))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)
        self._lock.__exit__(kind, error, trace)

    @property
    def asked(self) -> str:
        """The latest candidate."""
        return f"{self._key}/{self._number}"

    def step(self, **changes: object) -> None:
        """One more event, with other values in some of its fields."""
        if not self._pending:
            self._number += 1
            self._pending = candidate(self._key, self._number, self._number // 2 or None, time.time())
        event = msgspec.structs.replace(self._pending.pop(0), at=time.time(), **changes)
        self._journal.append(events.encode(event))
        if isinstance(event, events.Judged):
            self.judged = event.node
        self.events += 1
