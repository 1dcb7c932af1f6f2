"""The statistics of paired timing: medians, bootstrap intervals, when to stop, and what counts as a gain. No device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

CONFIDENCE = 0.99
"""Of every interval: a kernel timed against itself is called faster in at most one of 200 comparisons by chance."""
RESAMPLES = 1000
SYSTEMATIC = 0.015
"""Relative: what repeating cannot average out. Where buffers lie moves the time of one and the same kernel by so much (up to 1.5 %
between copies of one kernel on one H200: benchmarks/results/repeatability-nvidia-h200.json); every interval is widened by it."""
RESOLUTION_US = 0.032
"""Step of the events' clock; a time is not known better than that."""


class Estimate(Struct, frozen=True):
    """A median with its interval."""

    value: float
    low: float
    high: float
    count: int
    """Repetitions."""
    spread: float = 0.0
    """Width of the interval relative to the value, before it was widened: what more repetitions would narrow."""

    @property
    def width(self) -> float:
        """Of the interval, relative to the value."""
        return (self.high - self.low) / self.value if self.value > 0 else float("inf")


def estimate(samples: Sequence[float], seed: int = 0) -> Estimate:
    """Median and its percentile-bootstrap interval, widened by SYSTEMATIC.

    Assumes repetitions that are exchangeable: drift must have been cancelled by pairing. Raises ValueError when there are none.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples")
    middle = float(np.median(values))
    low, high = bootstrap(values, seed)
    spread = (high - low) / middle if middle > 0 else float("inf")
    return Estimate(middle, low * (1 - SYSTEMATIC), high * (1 + SYSTEMATIC), int(values.size), spread)


def bootstrap(values: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """CONFIDENCE interval of the median: quantiles of medians of RESAMPLES draws with replacement."""
    if values.size == 1:
        return float(values[0]), float(values[0])
    random = np.random.default_rng(seed)
    medians = np.median(values[random.integers(0, values.size, (RESAMPLES, values.size))], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)


def ratios(candidate: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Speed-up of each round: baseline over candidate, both times of the same round (sums over its repetitions)."""
    return [theirs / max(ours, RESOLUTION_US) for ours, theirs in zip(candidate, baseline, strict=True)]


def compare(candidate: Sequence[float], baseline: Sequence[float], seed: int = 0) -> Estimate:
    """Median speed-up of the candidate with its interval, from paired rounds (microseconds).

    Widened also by the clock's step on the shorter of the two.
    """
    found = estimate(ratios(candidate, baseline), seed)
    shortest = min(float(np.median(candidate)), float(np.median(baseline)))
    step = RESOLUTION_US / max(shortest, RESOLUTION_US)
    return Estimate(found.value, found.low * (1 - step), found.high * (1 + step), found.count, found.spread)


def is_gain(speedup: Estimate) -> bool:
    """Faster, surely: the whole interval above 1."""
    return speedup.low > 1.0


class Stop(Struct, frozen=True):
    """When enough rounds were made."""

    least: int = 30
    most: int = 200
    spread: float = 0.01
    """Of every interval, that is good enough."""
    seconds: float = 0.4
    """Of device time; `least` rounds are made whatever they take, unless `patience_s` is over."""
    patience_s: float = 10.0

    def reached(self, rounds: int, spreads: Sequence[float], seconds: float) -> bool:
        if rounds >= self.most or seconds > self.patience_s:
            return True
        if rounds < self.least:
            return False
        return seconds > self.seconds or all(spread <= self.spread for spread in spreads)
