"""Whole forwards timed on a GPU: warmed, interleaved, in random order within each round, with peak memory."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

import torch
from msgspec import Struct

from forge_tui.cuda import statistics
from forge_tui.engine.sources.failures import first_lines
from forge_tui.errors import Interrupted

WARM = 3
ROUNDS = 30
SECONDS = 60.0
"""Most time for the rounds of one comparison; at least LEAST_ROUNDS are made."""
LEAST_ROUNDS = 7
EAGER, FORGED = "eager", "forged"


class Contender(Struct, frozen=True):
    """One way to run the model."""

    name: str
    us: float | None
    """Median device time of a forward, microseconds: from the first launch to the last, gaps where the CPU is late included."""
    interval: tuple[float, float] | None = None
    speedup: float | None = None
    """Over eager: median of the ratios within each round."""
    speedup_interval: tuple[float, float] | None = None
    peak_bytes: int | None = None
    """Most memory allocated in a forward, weights included."""
    note: str = ""
    """Why it has no time."""


def measure(calls: dict[str, Callable[[], object]], device: torch.device, seed: int, *, rounds: int = ROUNDS,
            seconds: float = SECONDS, progress: Callable[[str], None] = lambda text: None) -> list[Contender]:
    """Time each call; the first one is the baseline. One that cannot run has its reason in `note`."""
    notes, peaks, usable = {}, {}, {}
    for name, call in calls.items():
        progress(f"warming {name}")
        try:
            for _ in range(WARM):
                call()
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            call()
            torch.cuda.synchronize(device)
            peaks[name], usable[name] = torch.cuda.max_memory_allocated(device), call
        except Exception as error:  # the compiler may refuse a model for reasons of its own; the others go on
            notes[name] = f"{type(error).__name__}: {first_lines(error, 1)}"
    samples = _rounds(usable, device, seed, rounds, seconds)
    baseline = samples.get(next(iter(calls)))
    return [_contender(name, samples.get(name), baseline, peaks.get(name), notes.get(name, "")) for name in calls]


def in_stages(stages: Iterable[Callable[[], list[Contender]]], progress: Callable[[str], None] = lambda text: None) -> list[Contender]:
    """What the stages found, of each contender the last. An interruption ends them: what earlier stages found stays.

    Raises KeyboardInterrupt where none had found anything.
    """
    found: dict[str, Contender] = {}
    for stage in stages:
        try:
            found |= {item.name: item for item in stage()}
        except KeyboardInterrupt:
            if not found:
                raise
            progress("stopped: what was measured before is the result")
            break
        if Interrupted.received is not None:  # which a library turned into an error of its own
            break
    return list(found.values())


def _rounds(calls: dict[str, Callable[[], object]], device: torch.device, seed: int, rounds: int,
            seconds: float) -> dict[str, list[float]]:
    order, begin = random.Random(seed), time.monotonic()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.monotonic() - begin > seconds:
            break
        for name in order.sample(list(calls), len(calls)):
            samples[name].append(_forward_us(calls[name], device))
    return samples


def _forward_us(call: Callable[[], object], device: torch.device) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) * 1e3


def _contender(name: str, samples: list[float] | None, baseline: list[float] | None, peak: int | None, note: str) -> Contender:
    if not samples:
        return Contender(name, None, note=note)
    took = statistics.estimate(samples)
    if not baseline or samples is baseline:
        return Contender(name, took.value, (took.low, took.high), 1.0 if baseline else None, None, peak)
    ratio = statistics.compare(samples, baseline)
    return Contender(name, took.value, (took.low, took.high), ratio.value, (ratio.low, ratio.high), peak)
