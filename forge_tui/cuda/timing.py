"""Honest times on a device: cold caches, rotated inputs, candidate and baselines interleaved in one process, graphs for the short.

One repetition is: read a buffer larger than the L2 (its lines are clean, so nothing is written back during the call), keep
the device busy until the CPU has enqueued what comes, event, call, event. So a time is device time, without launch gaps;
what a launch costs the CPU is measured apart (`launch_cost_us`). Calls shorter than GRAPH_BELOW_US are captured into a graph
each, and one replay is timed, since the events themselves weigh on them; every contender of a comparison is timed by the
same method.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal

import torch
from msgspec import Struct

from forge_tui.cuda.driver import bus_id
from forge_tui.cuda.nvml import Nvml, disturbances
from forge_tui.cuda.statistics import Estimate, Stop, compare, estimate

if TYPE_CHECKING:
    from forge_tui.cuda.gpu import GpuTarget

GRAPH_BELOW_US = 20.0
"""Shorter calls are timed by graph replay."""
FLUSH_FACTOR = 2
"""The buffer read before each repetition, in sizes of the L2: replacement is not exactly least-recently-used."""
LEAST_FLUSH = 64 << 20
COVER_FACTOR = 1.5
COVER_US = 15.0
"""The device is kept busy for the CPU's enqueueing time, times the one, plus the other."""
MOST_COVER_US = 2000.0
BATCH_S = 1.0
"""Repetitions enqueued before the device is waited for; well under the target's deadline."""
WARM_UPS = 3
QUICK = Stop(least=7, most=25, spread=0.03, seconds=0.015)
"""For the comparison of settings: a ranking, not a claim."""
FULL = Stop()

Method = Literal["stream", "graph"]
Run = Callable[[], object]
"""Enqueues one call on the current stream. May return what must stay alive until the next call."""


Look = Callable[[], None]
"""Looks at what a call left, once the device has been waited for. Raises what it finds."""


class Contender:
    """Something to time: the same call on several sets of tensors, taken in turn."""

    def __init__(self, name: str, runs: Sequence[Run], before: Sequence[Run] = (),
                 after: Sequence[Callable[[], Look]] = ()) -> None:
        """before: for each of `runs`, what is to be enqueued ahead of a timed call, outside its time. after: enqueues a
        copy of what one left, behind one call of every batch, chosen at random."""
        self.name = name
        self.runs = list(runs)
        self.before = list(before)
        self.after = list(after)
        self.turn = 0
        self.cpu_us = 0.0
        """What enqueueing one call costs the CPU."""
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.kept: list[object] = []
        """Results made during capture: their memory belongs to the graphs."""

    def prepare(self) -> None:
        """Enqueue what comes before the next one."""
        if self.before:
            self.before[self.turn % len(self.before)]()

    def keep(self) -> Look:
        """Enqueue a copy of what the last one leaves."""
        return self.after[(self.turn - 1) % len(self.after)]()

    def step(self, method: Method) -> None:
        """Enqueue the next one."""
        index = self.turn % len(self.runs)
        self.turn += 1
        if method == "graph":
            self.graphs[index].replay()
        else:
            self.runs[index]()


class Comparison(Struct, frozen=True):
    """The outcome of timing a candidate beside baselines."""

    method: Method
    candidate_us: Estimate
    baselines_us: dict[str, Estimate]
    speedups: dict[str, Estimate]
    """By baseline: baseline over candidate, paired by round."""
    rounds: int
    notes: tuple[str, ...] = ()
    """What disturbed it: throttling, foreign load."""

    def better(self) -> str:
        """The baseline that a claim is made against: the faster one."""
        return min(self.baselines_us, key=lambda name: self.baselines_us[name].value)


class Stopwatch:
    """Times calls on one target. Holds the flush buffer."""

    def __init__(self, target: GpuTarget) -> None:
        self.target = target
        size = max(FLUSH_FACTOR * target.facts.l2_bytes, LEAST_FLUSH)
        self.buffer = torch.ones(size // 4, dtype=torch.float32, device=target.device)
        self.sink = torch.zeros((), dtype=torch.float32, device=target.device)
        self.side = torch.cuda.Stream(target.device)
        """Where graphs are captured: the default stream cannot be."""
        self.nvml = Nvml(bus_id(target.index))
        self.seconds = 0.0
        """Spent in the last measurement."""

    def alone(self, contender: Contender, stop: Stop = QUICK) -> Estimate:
        """Microseconds of one call. Raises CandidateFault."""
        method, round_us = self._ready([contender])
        samples: list[float] = []
        started = time.monotonic()
        while True:
            samples += self._measure([contender] * _batch(stop, len(samples), round_us), method)
            found = estimate(samples)
            if stop.reached(len(samples), [found.spread], time.monotonic() - started):
                return found

    def against(self, candidate: Contender, baselines: Sequence[Contender], stop: Stop = FULL) -> Comparison:
        """Candidate and baselines in rounds: each once in order and once in reverse, so that drift and order cancel.

        Names must differ. Raises CandidateFault.
        """
        contenders = [candidate, *baselines]
        if len({contender.name for contender in contenders}) < len(contenders):
            raise ValueError("two contenders of one name")
        method, round_us = self._ready(contenders)
        before = self.nvml.look()
        times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        started = time.monotonic()
        rounds = 0
        while True:
            count = _batch(stop, rounds, 2 * round_us)
            order = [*contenders, *reversed(contenders)]
            measured = self._measure(order * count, method)
            for begin in range(0, len(measured), len(order)):
                sums = dict.fromkeys(times, 0.0)
                for contender, us in zip(order, measured[begin:begin + len(order)], strict=True):
                    sums[contender.name] += us / 2
                for name, us in sums.items():
                    times[name].append(us)
            rounds += count
            speedups = {item.name: compare(times[candidate.name], times[item.name]) for item in baselines}
            self.seconds = time.monotonic() - started
            if stop.reached(rounds, [speedup.spread for speedup in speedups.values()], self.seconds):
                break
        notes = disturbances(before, self.nvml.look(), os.getpid())
        return Comparison(method, estimate(times[candidate.name]), {item.name: estimate(times[item.name]) for item in baselines},
                          speedups, rounds, notes)

    def launch_cost_us(self, run: Run, calls: int = 200) -> float:
        """Microseconds of CPU time to enqueue one call; the device is kept ahead, the queue never fills."""
        run()
        self.target.wait()
        started = time.perf_counter()
        for _ in range(calls):
            run()
        cost = (time.perf_counter() - started) / calls * 1e6
        self.target.wait()
        return cost

    # -- preparation

    def _ready(self, contenders: Sequence[Contender]) -> tuple[Method, float]:
        """Warm up, learn what enqueueing costs, choose the method for all; also microseconds of one repetition of each."""
        for contender in contenders:
            for _ in range(max(WARM_UPS, len(contender.runs))):
                contender.step("stream")
            self.target.wait()
            contender.cpu_us = median(self._cpu_us(run) for run in contender.runs)
        first = [median(self._measure([item] * 3, "stream")) for item in contenders]
        round_us = sum(first) + sum(item.cpu_us for item in contenders)
        short = min(first) < GRAPH_BELOW_US and all(self._capture(item) for item in contenders)
        return ("graph" if short else "stream"), round_us

    def _cpu_us(self, run: Run) -> float:
        started = time.perf_counter()
        run()
        cost = (time.perf_counter() - started) * 1e6
        self.target.wait()
        return cost

    def _capture(self, contender: Contender) -> bool:
        """A graph for each set of tensors; False where the call cannot be captured (it synchronizes, say)."""
        if contender.graphs:
            return True
        graphs, kept = [], []
        for run in contender.runs:
            graph = torch.cuda.CUDAGraph()
            # Not `torch.cuda.graph`, which collects garbage and empties the allocator first: a hundred times the work.
            self.side.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(self.side):
                    graph.capture_begin(capture_error_mode="thread_local")
                    try:
                        kept.append(run())
                    finally:
                        graph.capture_end()
            except RuntimeError:                            # torch's word for everything that capture does not allow
                self.target.wait()
                return False
            graphs.append(graph)
        contender.graphs, contender.kept = graphs, kept
        for _ in graphs:
            contender.step("graph")
        self.target.wait()
        return True

    # -- measurement

    def _measure(self, order: Sequence[Contender], method: Method) -> list[float]:
        """Microseconds of one repetition of each, in this order. Raises CandidateFault, and what a look at a result finds."""
        kept = _one_of([place for place, contender in enumerate(order) if contender.after])
        look: Look | None = None
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in order]
        try:
            for place, (contender, (begin, end)) in enumerate(zip(order, events, strict=True)):
                contender.prepare()                         # ahead of the flush, which drives what it wrote out of the L2
                torch.sum(self.buffer, dim=0, out=self.sink)
                torch.cuda._sleep(self._cycles(COVER_US if method == "graph" else contender.cpu_us * COVER_FACTOR + COVER_US))
                begin.record()
                contender.step(method)
                end.record()
                if place == kept:
                    look = contender.keep()
        except RuntimeError:
            self.target.wait()                              # a fault on the device comes up in whatever torch does next: named here
            raise
        self.target.wait()
        if look is not None:
            look()
        return [begin.elapsed_time(end) * 1000 for begin, end in events]

    def _cycles(self, us: float) -> int:
        return int(min(us, MOST_COVER_US) * self.target.facts.clock_mhz)


def _one_of(places: list[int]) -> int:
    """One of them, by chance that nothing can foresee; -1 where there is none."""
    return secrets.choice(places) if places else -1


def _batch(stop: Stop, done: int, round_us: float) -> int:
    """Rounds until the next look at the intervals: all that must be made, then a quarter more, for BATCH_S at the most."""
    wanted = stop.least - done if done < stop.least else max(4, done // 4)
    return max(1, min(wanted, stop.most - done, int(BATCH_S * 1e6 / max(round_us, 1.0))))

