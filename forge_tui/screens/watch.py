"""What the screens read: a project's files, followed as they grow. Starts and stops engines; never runs one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from forge_tui.engine.cards import OperatorFile
from forge_tui.engine.events import AnyEvent
from forge_tui.engine.state import RunState, decode_event
from forge_tui.errors import ForgeError
from forge_tui.store.atomic import write_atomic
from forge_tui.store.journal import JournalReader
from forge_tui.store.lock import Holder, current_holder
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import ProjectConfig, load_project

KEPT_EVENTS = 500


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
        self.events: list[AnyEvent] = []
        """The latest ones."""
        self._reader = JournalReader(self.paths.journal)
        self._restarts = 0
        self._stamp: tuple[int, int] | None = None

    def refresh(self) -> bool:
        """Whether anything changed. Never raises: what is wrong is in `problem`."""
        before = (self.state.count, self._stamp, self.holder, self.problem, self._restarts)
        try:
            if self.config is None:
                self.config = load_project(self.paths.root)
            self._read_cards()
            self._read_journal()
            self.holder = current_holder(self.paths)
            self.problem = ""
        except ForgeError as error:
            self.problem = str(error)
        return before != (self.state.count, self._stamp, self.holder, self.problem, self._restarts)

    def _read_cards(self) -> None:
        try:
            status = self.paths.operators.stat()
        except FileNotFoundError:
            return
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self.cards = msgspec.msgpack.decode(self.paths.operators.read_bytes(), type=OperatorFile)
            self._stamp = stamp

    def _read_journal(self) -> None:
        payloads = self._reader.poll()
        if self._reader.restarts != self._restarts:
            self._restarts = self._reader.restarts
            self.state, self.events = RunState(), []
        for payload in payloads:
            event = decode_event(payload, str(self.paths.journal))
            self.state.apply(event)
            self.events.append(event)
        del self.events[:-KEPT_EVENTS]

    @property
    def running(self) -> bool:
        return self.holder is not None

    @property
    def status(self) -> str:
        """One word: the journal says `running` also after a kill; the lock tells the two apart."""
        if self.running:
            return "running"
        return "killed" if self.state.status == "running" else self.state.status

    def start(self, patterns: tuple[str, ...] = ()) -> None:
        """Start the engine in its own session, so that closing this terminal changes nothing."""
        command = [sys.executable, "-m", "forge_tui", "--run", str(self.paths.root), "--detach"]
        for pattern in patterns:
            command += ["--ops", pattern]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def stop(self) -> None:
        """Ask the engine to save and end."""
        write_atomic(self.paths.stop_request, "asked by the app\n")
