"""Other orders of warps and blocks than all in step: the first warp first, the last one first, or by chance from a seed.

What a program does must not depend on the order. Where nothing the checks know orders two warps, different orders give
different results; `HostTarget.schedule` names one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.schedule import HOLD_STEPS, SPIN_LIMIT, Mask, Scheduler

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

IN_STEP = "in step"
FORWARD = "first warp first"
REVERSE = "last warp first"
RANDOM = re.compile(r"random (\d+)")
"""The names of orders: `in step`, `first warp first`, `last warp first`, `random 7` (the seed)."""


def scheduler_of(machine: Machine, schedule: str) -> Scheduler:
    """The scheduler of a chunk. Raises ValueError for a name that is none of the above."""
    if schedule == IN_STEP:
        return Scheduler(machine)
    chance = RANDOM.fullmatch(schedule)
    if chance is None and schedule not in (FORWARD, REVERSE):
        raise ValueError(f"no order of warps is called {schedule!r}")
    return Warpwise(machine, schedule == REVERSE, random.Random(int(chance[1]) + machine.first) if chance else None)


def chunk_order(schedule: str, starts: range) -> Sequence[int]:
    """In which order the chunks of a launch run, by their first blocks; there may be a thousand million of them."""
    if schedule == REVERSE:
        return starts[::-1]
    chance = RANDOM.fullmatch(schedule)
    if chance:
        shuffled = list(starts)
        random.Random(int(chance[1])).shuffle(shuffled)
        return shuffled
    return starts


class Warpwise(Scheduler):
    """One warp (by chance: some warps of some blocks) goes as far as it can before another one does."""

    def __init__(self, machine: Machine, reverse: bool, dice: random.Random | None) -> None:
        super().__init__(machine)
        self.reverse, self.dice = reverse, dice
        self.warps = -(-machine.threads // 32)
        self.warp = np.arange(machine.threads)[:, None] // 32
        self.patience = 4 * self.warps
        self.part: Mask = None

    def choose(self) -> int:
        """A basic block, and in `part` the lanes there whose turn it is."""
        for _ in range(2 * SPIN_LIMIT):
            index, part = self.by_chance() if self.dice else self.next_warp()
            if (self.held or self.waiting) and not self.can(index, part):
                self.release()          # the rest of a warp stands back or waits: it must come before the warp can meet
                continue
            spins = self.machine.variant.analysis.may_spin[index]
            rest = len(self.pending) > 1 or self.anybody_waits() or bool((self.lanes(index) & ~part).any())
            if not spins or not rest:
                break
            self.visits[index] = self.visits.get(index, 0) + 1
            if self.visits[index] <= SPIN_LIMIT:
                break
            self.visits[index] = 0
            self.take(index, part)
            self.add(self.held, index, part)
            self.held_until = self.executed + HOLD_STEPS
            if not self.pending:
                self.release()
        self.part = part
        return index

    def step(self, index: int) -> None:
        """Run a block for the lanes of `part` alone."""
        assert self.part is not None
        rest = self.take(index, self.part)
        self.pending[index] = self.part
        super().step(index)
        if rest is not None:
            self.join(index, rest)

    def take(self, index: int, part: NDArray[np.bool_]) -> Mask:
        """Take lanes away from where they wait; returns who stays, None: nobody."""
        rest = self.lanes(index) & ~part
        del self.pending[index]
        if not rest.any():
            return None
        self.pending[index] = rest
        return rest

    def lanes(self, index: int) -> NDArray[np.bool_]:
        """Who waits at a block, in full."""
        mask = self.pending[index]
        return np.broadcast_to(self.machine.active(mask), (self.machine.threads, self.machine.blocks))

    def next_warp(self) -> tuple[int, NDArray[np.bool_]]:
        """The first (or last) warp that can go on, in all blocks, at the lowest place where it can.

        A warp that cannot meet because some of its lanes stand back leaves its turn to the others: they are who it waits for.
        """
        there = {index: self.lanes(index) for index in sorted(self.pending)}
        present = np.flatnonzero(np.logical_or.reduce([lanes.any(axis=1) for lanes in there.values()])) // 32
        warps = list(dict.fromkeys(int(warp) for warp in (present[::-1] if self.reverse else present)))
        first: tuple[int, NDArray[np.bool_]] | None = None
        for warp in warps if self.held else warps[:1]:
            mine = [(index, lanes & (self.warp == warp)) for index, lanes in there.items() if lanes[32 * warp:32 * warp + 32].any()]
            first = first or mine[0]
            for index, part in mine:
                if self.can(index, part):
                    return index, part
        assert first is not None
        return first

    def by_chance(self) -> tuple[int, NDArray[np.bool_]]:
        """Some warps of some blocks at some place."""
        assert self.dice is not None
        places = sorted(self.pending)
        self.dice.shuffle(places)
        for index in places:
            lanes = self.lanes(index)
            drawn = np.random.default_rng(self.dice.getrandbits(32)).random((self.warps, self.machine.blocks)) < 0.5
            part = lanes & np.repeat(drawn, 32, axis=0)[:self.machine.threads]
            for some in (part, lanes):
                if some.any() and self.can(index, some):
                    return index, some
        return places[0], self.lanes(places[0])

    def can(self, index: int, part: NDArray[np.bool_]) -> bool:
        return not self.machine.translations.collective[index] or self.warps_whole(part)
