"""Why a run ends, and the watch that ends it early: budget, time, a stop request, signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Literal

from forge_tui.engine.options import Settings
from forge_tui.engine.state import RunState
from forge_tui.errors import Interrupted
from forge_tui.store.paths import ProjectPaths

Status = Literal["done", "limit", "waiting", "interrupted", "failed"]


class StopReason(Enum):
    """Each with the document's status, the exit code of the contract, and the sentence a user sees."""

    DONE = ("done", 0, "every operator's search is finished")
    TOO_SLOW = ("done", 7, "not every operator reached the speed-up that --require-speedup asks for")
    BUDGET = ("limit", 5, "the budget is used up; run again with a larger --budget-usd to go on")
    UNPRICED = ("limit", 5, "the price of a reply is unknown, so the budget cannot be kept; run again with --budget-usd 0 "
                            "to go on without one")
    TIME = ("limit", 5, "the time limit was reached; run again to go on")
    WAITING = ("waiting", 75, "only replies are missing: answer the prompts in exchange/requests/, then run again")
    STOPPED = ("interrupted", 143, "stopped on request; run again to go on")
    HANGUP = ("interrupted", 129, "stopped by SIGHUP; run again to go on")
    INTERRUPT = ("interrupted", 130, "stopped by SIGINT; run again to go on")
    TERMINATED = ("interrupted", 143, "stopped by SIGTERM; run again to go on")

    def __init__(self, status: Status, exit_code: int, sentence: str) -> None:
        self.status: Status = status
        self.exit_code = exit_code
        self.sentence = sentence

    @property
    def drains(self) -> bool:
        """Whether what is in flight is waited for (it is paid for), and every search concluded with what it has."""
        return self in (StopReason.BUDGET, StopReason.UNPRICED)


class Halted(Exception):
    """Raised where a phase other than the search finds that it should stop."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.sentence)
        self.reason = reason


SIGNALS = {signal.SIGHUP: StopReason.HANGUP, signal.SIGINT: StopReason.INTERRUPT, signal.SIGTERM: StopReason.TERMINATED}


def reason_of(interrupt: KeyboardInterrupt) -> StopReason:
    """Of an interrupt that came as an exception."""
    return SIGNALS.get(getattr(interrupt, "signal", signal.SIGINT), StopReason.INTERRUPT)


def lost_interrupt() -> StopReason | None:
    """A signal whose exception a library dropped or turned into an error of its own."""
    return None if Interrupted.received is None else SIGNALS.get(signal.Signals(Interrupted.received))


class Watch:
    """Asked between steps whether to go on. Cheap."""

    def __init__(self, paths: ProjectPaths, settings: Settings, state: RunState) -> None:
        self.paths = paths
        self.settings = settings
        self.state = state
        self.started = time.monotonic()
        self.signalled: StopReason | None = None
        """A signal that came while `listening`."""
        self._paused_at: float | None = None

    def paused(self) -> bool:
        """Whether somebody asked to propose nothing new for now. A time limit does not run meanwhile."""
        wanted, now = self.paths.pause_request.exists(), time.monotonic()
        if wanted and self._paused_at is None:
            self._paused_at = now
        elif not wanted and self._paused_at is not None:
            self.started += now - self._paused_at
            self._paused_at = None
        return wanted

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it SIGHUP, SIGINT and SIGTERM are noted for `check` instead of breaking in: an event is then never half
        recorded. A second signal of a kind finds the handler that was there before. Does nothing off the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def note(number: int, frame: object) -> None:
            self.signalled = SIGNALS[signal.Signals(number)]
            signal.signal(number, before[number])

        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup
                signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self, asking: int) -> StopReason | None:
        """Why to stop now, if so. asking: replies in flight, whose cost is yet to come."""
        self.signalled = self.signalled or lost_interrupt()
        if self.signalled is not None:
            return self.signalled
        if self.paths.stop_request.exists():
            return StopReason.STOPPED
        limit = self.settings.time_limit_s
        if limit and (self._paused_at or time.monotonic()) - self.started >= limit:
            return StopReason.TIME
        return self._money(asking)

    def _money(self, asking: int) -> StopReason | None:
        budget = self.settings.budget_usd
        if not budget:
            return None
        if self.state.unpriced:
            return StopReason.UNPRICED
        if self.state.cost_known + (asking + 1) * self.state.mean_cost_usd > budget or self.state.cost_known >= budget:
            return StopReason.BUDGET
        return None
