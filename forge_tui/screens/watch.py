"""What the screens read: a project's files, followed as they grow. Runs no engine, writes no project's file."""

from __future__ import annotations

import gc
import tomllib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from forge_tui.engine.cards import OperatorFile, load_operators
from forge_tui.engine.events import AnyEvent, Confirmed, Judged, Proposed
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.report import event_line
from forge_tui.engine.search.tree import Node
from forge_tui.engine.state import RunState, decode_event
from forge_tui.errors import ForgeError
from forge_tui.screens.words import clock
from forge_tui.specs import short_name
from forge_tui.store.journal import JournalReader, read_record, record_span
from forge_tui.store.lock import Holder, current_holder
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import ProjectConfig, load_project

KEPT_LINES = 300
"""Of the log."""
GONE = "the project folder is gone: put it back, or press q"
CHUNK_BYTES = 1 << 20
"""Of the journal, read at once."""


class ProjectWatch:
    """One project, read incrementally: `refresh` takes in what is new since the last call."""

    def __init__(self, root: Path) -> None:
        self.paths = ProjectPaths(root)
        self.state = RunState()
        self.cards: OperatorFile | None = None
        self.config: ProjectConfig | None = None
        self.holder: Holder | None = None
        self.problem = ""
        """Why the project cannot be read, as a sentence."""
        self.log: deque[str] = deque(maxlen=KEPT_LINES)
        """The latest events in plain words."""
        self.packaged: frozenset[str] = frozenset()
        """Variants with a kernel in the package."""
        self._recent: deque[AnyEvent] = deque(maxlen=KEPT_LINES)
        """Read, and not yet put into words."""
        self._records: dict[tuple[str, type], int] = {}
        """Where in the journal a node's verdicts lie."""
        self._reader = JournalReader(self.paths.journal)
        self._restarts = 0
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._package = ""

    def refresh(self) -> bool:
        """Whether anything changed. Never raises: what is wrong is in `problem`."""
        before = self._stamp()
        if not self.paths.root.is_dir():
            self.problem, self.holder = GONE, None
            self._stamps.clear()
            return before != self._stamp()
        try:
            if self._changed(self.paths.config) or self.config is None or not self.paths.config.exists():
                self.config = load_project(self.paths.root)
            if self._changed(self.paths.operators):
                self.cards = load_operators(self.paths)
            self._read_journal()
            self._read_package()
            self.holder = current_holder(self.paths)
            self._changed(self.paths.pause_request)
            self.problem = ""
        except ForgeError as error:
            self.problem = str(error)
            self._stamps.clear()  # what cannot be read is looked at again, and said, until it can
        return before != self._stamp()

    def _stamp(self) -> tuple[object, ...]:
        return self.state.count, dict(self._stamps), self.holder, self.problem, self._restarts

    def _changed(self, path: Path) -> bool:
        """Whether a file is another than at the last look."""
        try:
            status = path.stat()
        except OSError:
            return self._stamps.pop(path, None) is not None
        stamp = (status.st_mtime_ns, status.st_size)
        changed = self._stamps.get(path) != stamp
        self._stamps[path] = stamp
        return changed

    def _read_journal(self) -> None:
        """In pieces, and without what is only looked at one candidate at a time: a long run would fill the memory."""
        where = str(self.paths.journal)
        with collected_later():
            self._fold_journal(where)
        while self._recent:
            self._word(self._recent.popleft())

    def _fold_journal(self, where: str) -> None:
        while payloads := self._reader.poll(CHUNK_BYTES):
            if self._reader.restarts != self._restarts:
                self._restarts = self._reader.restarts
                self.state = RunState()
                self.log.clear()
                self._records.clear()
            at = self._reader.offset - sum(map(record_span, payloads))
            for payload in payloads:
                event = decode_event(payload, where)
                if isinstance(event, Judged | Confirmed):
                    self._records[event.node, type(event)] = at
                    event = msgspec.structs.replace(event, verdict=_slim(event.verdict))
                at += record_span(payload)
                self.state.apply(event)
                self._recent.append(event)

    def judged(self, node: Node) -> Verdict | None:
        """The whole first verdict on a node, read anew from the journal; None before there is one."""
        return self._whole(node, Judged)

    def verdict(self, node: Node) -> Verdict | None:
        """The whole latest verdict on a node."""
        return self._whole(node, Confirmed) or self._whole(node, Judged)

    def _whole(self, node: Node, kind: type[Judged] | type[Confirmed]) -> Verdict | None:
        at = self._records.get((node.id, kind))
        if at is None:
            return None
        try:
            event = decode_event(read_record(self.paths.journal, at), str(self.paths.journal))
        except ForgeError:  # begun anew since the last look: the next one finds that out
            return None
        return event.verdict if isinstance(event, kind) else None

    def _word(self, event: AnyEvent) -> None:
        line = None if isinstance(event, Proposed) else event_line(event, self.name_of)
        if line:
            start = self.state.run.at if self.state.run else event.at
            self.log.append(f"{clock(event.at - start):>7}  {line}")

    def _read_package(self) -> None:
        """The manifest of the package, which may have moved with the project."""
        packaged = self.state.packaged
        if packaged is None or packaged.path == self._package and not self._package_changed(Path(packaged.path)):
            return
        self._package = packaged.path
        for folder in (Path(packaged.path), self.paths.packages / Path(packaged.path).name):
            for manifest in folder.glob("forged_*/manifest.toml"):
                try:
                    entries = tomllib.loads(manifest.read_text())["entries"]
                    self.packaged = frozenset(str(entry) for entry in entries)
                except (
                    OSError,
                    ValueError,
                    KeyError,
                    TypeError,
                ):  # being replaced, or somebody's own: no kernel is known in it
                    self.packaged = frozenset()
                return

    def _package_changed(self, folder: Path) -> bool:
        return any([self._changed(manifest) for manifest in folder.glob("forged_*/manifest.toml")])

    def name_of(self, key: str) -> str:
        """`softmax 3fa2`; the key itself, before there are cards."""
        variant = self.cards.find(key) if self.cards else None
        return f"{short_name(variant.operator)} {key[:4]}" if variant else key

    def in_flight(self) -> list[Node]:
        """Nodes asked for or judged now, over all operators."""
        if not self.running:
            return []
        return [
            node
            for operator in self.state.operators.values()
            if operator.pending
            for node in operator.tree.open_nodes()
        ]

    @property
    def running(self) -> bool:
        return self.holder is not None

    @property
    def run_goes_on(self) -> bool:
        """Whether what holds the project is a run, as far as its journal says so: a bench, say, is none."""
        return self.running and self.state.status == "running"

    @property
    def paused(self) -> bool:
        """Whether the run that is going on asks for nothing new."""
        return self.running and self.paths.pause_request.exists()

    @property
    def status(self) -> str:
        """One word: the journal says `running` also after a kill; the lock tells the two apart."""
        if self.running:
            return "paused" if self.paused else "running"
        return "killed" if self.state.status == "running" else self.state.status

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end at the speed so far; None while nothing runs or nothing was settled."""
        run, state = self.state.run, self.state
        if not self.running or run is None or state.last_event_at is None:
            return None
        chosen = [state.operators[key] for key in state.selected if key in state.operators]
        left = sum(max(0, run.iterations - operator.tried) for operator in chosen if operator.done is None)
        tried = sum(state.judged.values())
        return left * state.elapsed_s / tried if tried and left else None


@contextmanager
def collected_later() -> Iterator[None]:
    """No garbage collection meanwhile: all that is made of a long journal is kept, and each pass looks through it again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _slim(verdict: Verdict) -> Verdict:
    """Without what takes the most room and is shown of one candidate only."""
    return msgspec.structs.replace(verdict, checks=(), points=(), counts=(), build_log="")
