"""Every project in a line: folded once, kept in the user's state folder until its files change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from forge_tui.errors import MissingEnvironment
from forge_tui.store.atomic import write_atomic
from forge_tui.store.lock import current_holder
from forge_tui.store.paths import ProjectPaths, UserPaths

if TYPE_CHECKING:
    from forge_tui.screens.watch import ProjectWatch

Stamp = tuple[tuple[int, int], ...]
"""Time and size of the files that a summary comes from."""


class Summary(Struct, frozen=True):
    """What the launcher shows of a project."""

    root: str
    status: str = "new"
    """As the journal has it; `running` is said by the lock alone."""
    model: str = ""
    described: str = ""
    """The capture's line on the model."""
    device: str = ""
    provider: str = ""
    good: int = 0
    """Operators won or verified."""
    operators: int = 0
    """Worked on."""
    variants: int = 0
    offered: int = 0
    best: float | None = None
    """The best speed-up; None where nothing was timed against eager."""
    cost_usd: float | None = 0.0
    tokens: int = 0
    last_event_at: float | None = None
    in_model: str = ""
    reason: str = ""
    """Why the last run ended, where it was not done."""
    problem: str = ""


class Known(Struct, frozen=True):
    """A summary and the files it was made from."""

    stamp: Stamp
    summary: Summary


class Summaries:
    """`current(root)` is quick for files that did not change; `load` reads a project."""

    def __init__(self) -> None:
        self._file = UserPaths.find().cache / "summaries.msgpack"
        self._watches: dict[str, ProjectWatch] = {}
        """Of projects that change while we look."""
        try:
            self._known = msgspec.msgpack.decode(self._file.read_bytes(), type=dict[str, Known])
        except (OSError, msgspec.DecodeError):
            self._known = {}

    def current(self, root: str) -> Summary | None:
        """None: it must be read first."""
        known = self._known.get(root)
        return known.summary if known is not None and known.stamp == stamp_of(root) else None

    def load(self, root: str) -> Summary:
        """Read what is new. Takes as long as the project's journal is (about 20 ms a MB)."""
        from forge_tui.screens.watch import ProjectWatch  # loads half of the engine: a known list needs none of it

        watch = self._watches.setdefault(root, ProjectWatch(Path(root)))
        stamp = stamp_of(root)
        watch.refresh()
        summary = summarize(watch)
        if not watch.running:
            del self._watches[root]  # large journals are not kept in memory by a list
        self._known[root] = Known(stamp, summary)
        return summary

    def forget(self, root: str) -> None:
        """It was moved or deleted."""
        self._known.pop(root, None)
        self._watches.pop(root, None)

    def save(self) -> None:
        """A cache: where it cannot be written it is made again."""
        try:
            write_atomic(self._file, msgspec.msgpack.encode(self._known))
        except MissingEnvironment:
            pass


def stamp_of(root: str) -> Stamp:
    """Of the files that a summary comes from."""
    paths = ProjectPaths(root)
    found = []
    for path in (paths.config, paths.operators, paths.journal):
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def running(root: str) -> bool:
    """Whether an engine holds the project."""
    return current_holder(ProjectPaths(root)) is not None


def summarize(watch: ProjectWatch) -> Summary:
    """The line of one project."""
    state, cards = watch.state, watch.cards
    gains = [
        operator.best.verdict.timing.speedup
        for operator in state.operators.values()
        if operator.best and operator.best.verdict and operator.best.verdict.timing
    ]
    known = [gain for gain in gains if gain is not None]
    proof = state.in_model
    return Summary(
        root=str(watch.paths.root),
        status="interrupted" if state.status == "running" else state.status,
        model=watch.config.model.source if watch.config else "",
        described=cards.model if cards else "",
        device=state.run.device if state.run else watch.config.device.target if watch.config else "",
        provider=state.run.provider if state.run else watch.config.provider.name if watch.config else "",
        good=sum(operator.status in ("won", "verified") for operator in state.operators.values()),
        operators=len(state.operators),
        variants=len(cards.variants) if cards else 0,
        offered=sum(variant.offered for variant in cards.variants) if cards else 0,
        best=max(known, default=None),
        cost_usd=state.cost_usd,
        tokens=state.tokens,
        last_event_at=state.last_event_at,
        in_model=(
            f"in the model: {proof.kernel_calls} kernel calls, {proof.fallback_calls} by the original operators; "
            f"outputs within {proof.relative_error:.1e} of eager"
        )
        if proof
        else "",
        reason=state.ended.reason if state.ended and state.ended.status != "done" else "",
        problem=watch.problem,
    )
