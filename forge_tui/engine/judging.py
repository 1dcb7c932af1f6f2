"""Judgements beside the loop: judges opened when first needed, one more for confirmations, all ended together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from forge_tui.engine.judge.verdict import Verdict


class Judge(Protocol):
    """What the loop needs of `judge.client.JudgeClient`. Entered before use; thread-safe.

    Whatever a candidate does becomes a verdict, the death of a worker included. Raises ForgeError when nothing can be
    judged (no compiler, no device, samples missing), on entering or later.
    """

    def __enter__(self) -> Judge: ...

    def __exit__(self, *_: object) -> None: ...

    def judge(self, variant_key: str, text: str, filename: str, *, settings: dict[str, int] | None = None) -> Verdict:
        """Build, check, tune, time. settings: of `[tune]`; only these are tried."""
        ...

    def confirm(self, variant_key: str, text: str, filename: str, *, settings: dict[str, int]) -> Verdict:
        """A winner once more, on inputs drawn anew and under the sanitizer where there is one; where candidates run natively,
        in a process that has judged nothing."""
        ...

    def close(self) -> None:
        """End the workers at once, also those at work."""
        ...


OpenJudge = Callable[[int], Judge]
"""Opens a judge with so many workers."""


class Judges:
    """`count` judgements at a time, on one judge; confirmations on another, whose processes never saw the search."""

    def __init__(self, open_judge: OpenJudge, count: int) -> None:
        self.count = count
        self._open = open_judge
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="judge")
        self._lock = threading.Lock()
        self._search: Judge | None = None
        self._second: Judge | None = None
        self._stack = contextlib.ExitStack()
        self._entered: list[Judge] = []

    def judge(self, variant: str, text: str, filename: str) -> Future[Verdict]:
        """A node's judgement."""
        return self._threads.submit(lambda: self._searching().judge(variant, text, filename))

    def confirm(self, variant: str, text: str, filename: str, settings: dict[str, int]) -> Future[Verdict]:
        """A winner's second judgement, on inputs drawn anew."""
        return self._threads.submit(lambda: self._confirm(variant, text, filename, settings))

    def close(self) -> None:
        """Ends everything, whatever it is doing; what was submitted fails or is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        enders = [threading.Thread(target=judge.close) for judge in list(self._entered)]
        for ender in enders:  # a worker may take seconds to go
            ender.start()
        for ender in enders:
            ender.join()
        self._threads.shutdown(wait=True)
        self._stack.close()

    def _searching(self) -> Judge:
        with self._lock:
            if self._search is None:
                self._search = self._enter(self.count)
            return self._search

    def _confirm(self, variant: str, text: str, filename: str, settings: dict[str, int]) -> Verdict:
        with self._lock:
            if self._second is None:
                self._second = self._enter(1)
        return self._second.confirm(variant, text, filename, settings=settings)

    def _enter(self, workers: int) -> Judge:
        judge = self._stack.enter_context(self._open(workers))
        self._entered.append(judge)
        return judge
