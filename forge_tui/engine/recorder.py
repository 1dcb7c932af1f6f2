"""Events as they happen: into the journal first, then into the state, then to whoever listens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from forge_tui.engine import events
from forge_tui.engine.state import RunState
from forge_tui.store.journal import JournalWriter


class Recorder:
    """The run's only way to change its state. Used from one thread.

    An event is in the journal (it survives `kill -9`) before anything is done because of it; with `sync` it is on the disk
    (it survives a power cut).
    """

    def __init__(self, writer: JournalWriter, state: RunState, on_event: Callable[[events.AnyEvent], None]) -> None:
        self.writer = writer
        self.state = state
        self.on_event = on_event

    def record(self, event: events.AnyEvent, sync: bool = False) -> None:
        self.writer.append(events.encode(event), sync)
        self.state.apply(event)
        self.on_event(event)

    def note(self, level: Literal["info", "warning", "error"], text: str) -> None:
        self.record(events.Note(at=time.time(), level=level, text=text))
