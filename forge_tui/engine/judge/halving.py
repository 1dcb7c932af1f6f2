"""Successive halving of `[tune]` settings: all are timed briefly, then the better half again and for longer, and so on.

K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016.
Each round halves the settings and doubles the effort, so that every round takes about as long and the last two are told
apart by many times the samples of the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from forge_tui.engine.judge.tuning import Setting

LEFT = 2
"""Settings at which it ends: the full timing tells these apart."""

OVER = "not tried: the time for tuning was over"


class Budget:
    """Seconds that the settings of one kernel file may hold the device. The first setting is always tried."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds if seconds else float("inf")
        self._paused: float | None = None

    @property
    def over(self) -> bool:
        return self._clock() >= self._end

    def pause(self) -> None:
        """Building holds no device."""
        self._paused = self._clock()

    def resume(self) -> None:
        if self._paused is not None:
            self._end += self._clock() - self._paused
            self._paused = None


def halve(settings: Sequence[Setting], again: Callable[[Setting, int], None], budget: Budget) -> int:
    """Times the better ones again by `again(setting, effort)`, effort 2, 4, ..., which changes `setting.us`.

    Returns how many rounds were made. A setting that was timed with more effort is compared by its latest time; one
    that was left behind keeps its own, and cannot come back: it lost by more than the others' change only by chance.
    """
    left, effort, rounds = sorted(settings, key=_us), 1, 0
    while len(left) > LEFT and not budget.over:
        left, effort = left[: max(LEFT, len(left) // 2)], 2 * effort
        for setting in left:
            if budget.over:
                return rounds
            again(setting, effort)
        left.sort(key=_us)
        rounds += 1
    return rounds


def ranking(settings: Sequence[Setting], efforts: dict[int, int]) -> list[Setting]:
    """Those timed with most effort first, the fastest of each first. efforts: by `id` of the setting; 1 where
    missing."""
    order = {id(setting): place for place, setting in enumerate(settings)}
    return sorted(settings, key=lambda setting: (-efforts.get(id(setting), 1), _us(setting), order[id(setting)]))


def _us(setting: Setting) -> float:
    return setting.us if setting.us is not None else float("inf")
