"""Judges side by side: a small pool, each judge used by one thread at a time."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from forge_tui.engine.cards import Variant
from forge_tui.engine.judge.verdict import Verdict


class Judge(Protocol):
    """What the loop needs of a judge; `judge.client.JudgeClient` is the real one. Used by one thread at a time.

    Whatever a candidate does becomes a verdict, the death of the judge's worker included. Raises ForgeError when judging
    itself is impossible (no compiler, no device, samples missing).
    """

    def judge(self, variant: Variant, source: str, filename: str, *, tune_points: int) -> Verdict:
        """Everything: build, check, tune, time."""
        ...

    def confirm(self, variant: Variant, source: str, filename: str, verdict: Verdict) -> Verdict:
        """Once more, in a fresh process on fresh inputs, at the settings of `verdict`."""
        ...

    def close(self) -> None:
        """End the worker, at once. May be called from another thread while `judge` runs, which then raises."""
        ...


class JudgePool:
    """`count` judges, opened when first needed."""

    def __init__(self, open_judge: Callable[[], Judge], count: int) -> None:
        self.count = count
        self._open = open_judge
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="judge")
        self._idle: queue.LifoQueue[Judge | None] = queue.LifoQueue()
        self._opened: list[Judge] = []
        for _ in range(count):
            self._idle.put(None)

    def submit(self, work: Callable[[Judge], Verdict]) -> Future[Verdict]:
        return self._threads.submit(self._run, work)

    def _run(self, work: Callable[[Judge], Verdict]) -> Verdict:
        with self._judge() as judge:
            return work(judge)

    @contextlib.contextmanager
    def _judge(self) -> Iterator[Judge]:
        judge = self._idle.get()
        try:
            if judge is None:
                judge = self._open()
                self._opened.append(judge)
            yield judge
        finally:
            self._idle.put(judge)

    def close(self) -> None:
        """Ends every judge, whatever it is doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for judge in list(self._opened):
            judge.close()
        self._threads.shutdown(wait=True)
