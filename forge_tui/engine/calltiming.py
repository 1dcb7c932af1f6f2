"""Time of one eager call: device time from the profiler on a GPU, CPU time elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

CALL_SECONDS = 0.1
"""Most time spent on one variant; fewer when there are many, by TOTAL_SECONDS."""
TOTAL_SECONDS = 20.0
"""Most time spent on all variants of a model together."""
MOST_REPEATS = 50
LEAST_REPEATS = 3


@contextmanager
def one_thread() -> Iterator[None]:
    """CPU times are of one thread: spinning threads on a busy machine would drown small calls."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def call_us(run: Callable[[], Any], device: torch.device, variants: int) -> float:
    """Microseconds of one call, after one warm-up. variants: how many share TOTAL_SECONDS."""
    run()
    return _device_us(run) if device.type == "cuda" else _cpu_us(run, min(CALL_SECONDS, TOTAL_SECONDS / max(1, variants)))


def _cpu_us(run: Callable[[], Any], seconds: float) -> float:
    """Median of at least LEAST_REPEATS calls, and more while they fit."""
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < LEAST_REPEATS or (len(times) < MOST_REPEATS and time.perf_counter() < deadline):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return median(times) * 1e6


def _device_us(run: Callable[[], Any], repeats: int = 10) -> float:
    """Summed device time of the kernels, copies and memsets of one call, as the profiler attributes it."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in trace.key_averages()) / repeats


def issue_us(run: Callable[[], Any], calls: int = 10, batches: int = 3) -> float:
    """Microseconds that the CPU takes to issue one call to a GPU that has nothing else to do: the least of a few batches."""
    taken = []
    for _ in range(batches):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        taken.append((time.perf_counter() - begin) / calls)
    torch.cuda.synchronize()
    return min(taken) * 1e6


def forward_us(run: Callable[[], Any], device: torch.device) -> float:
    """Microseconds of one eager forward, wall clock with the device idle before and after; median of up to three."""
    times: list[float] = []
    while len(times) < 3 and (not times or sum(times) < 2.0):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return median(times) * 1e6
