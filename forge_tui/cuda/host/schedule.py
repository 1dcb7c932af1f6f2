"""Whose turn it is: lanes wait at basic blocks, and one block at a time runs for the lanes that are at it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.analyse import BLOCK, THREAD
from forge_tui.cuda.host.lower import EXIT, waits
from forge_tui.cuda.host.overflow import explained

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Lanes = NDArray[np.generic]
Mask = NDArray[np.bool_] | None

SPIN_LIMIT = 64
"""Visits to a block that may be waiting for other lanes before those get a turn."""
PATIENCE = 256
"""Turns of lanes waiting at an mbarrier during which nothing happened at all, after which nothing ever will."""
HOLD_STEPS = 256
"""How many block executions waiting lanes then stand back for, if the others do not stop before."""


class Scheduler:
    """Where the lanes of one chunk are, from its first block to the exit."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.pending: dict[int, Mask] = {0: None}
        """Lanes that can go on, by the block they are at."""
        self.held: dict[int, Mask] = {}
        """Lanes of waiting loops that stand back."""
        self.waiting: list[tuple[int, NDArray[np.bool_]]] = []
        """Lanes whose `try_wait` was in vain, and the block it is in."""
        self.progress = self.seen = self.idle = 0
        """Effects so far; effects at the last turn of the waiting lanes; turns without any."""
        self.visits: dict[int, int] = {}
        self.steps = self.held_until = self.executed = 0
        self.patience = 1
        """How many steps one instruction of every thread may take."""

    def run(self) -> None:
        """Until no lane is left. Raises CandidateFault."""
        machine = self.machine
        while machine.live_count and (self.pending or self.held or self.anybody_waits()):
            if self.pending:
                self.step(self.choose())
            else:
                self.release()
        if machine.live_count:
            machine.fault("not_interpretable", "not interpretable: a jump to nowhere", machine.active(None), None)

    def step(self, index: int) -> None:
        """Run one basic block for the lanes that are at it, and send them on."""
        machine = self.machine
        mask = self.pending.pop(index)
        here = machine.live_count
        if mask is not None:
            here = machine.count(mask)
            if here == machine.live_count:
                mask = None
        if mask is not None and machine.variant.analysis.entry_needs[index] and not self.is_whole(mask, index):
            machine.widen()
        size = machine.translations.sizes[index]
        self.executed += 1
        self.steps += size
        self.progress += machine.translations.effects[index]
        machine.tally.executed(machine, index, size, here, machine.live if mask is None else mask)
        if self.steps > machine.geometry.budget * self.patience or self.executed % 512 == 0 and time.monotonic() > machine.geometry.deadline:
            block = machine.kernel.blocks[index]
            machine.fault("endless", f"still running after {self.steps} instructions a thread", machine.active(mask), block.last.line)
        if self.held and self.executed > self.held_until:
            self.restore()
        try:
            out = machine.whole[index](machine.live) if mask is None else machine.masked[index](mask)
        except CandidateFault as fault:
            raise explained(machine, index, fault) from None
        except (AttributeError, TypeError, ValueError, LookupError, RuntimeError, AssertionError) as error:
            # A form of an instruction that its handler mistook. Our fault: said as such, never a verdict on the candidate.
            line = machine.kernel.blocks[index].instructions[0].line
            place = f"{machine.tally.filename}:{line}"
            raise CandidateFault("not_interpretable", f"not interpretable: {error} in the instructions from {place}",
                                 kernel=machine.kernel.name, line=line) from error
        self.send(index, mask, out)

    def send(self, index: int, mask: Mask, out: object) -> None:
        """Where the lanes go after block `index`, given what its function returned."""
        machine = self.machine
        block = machine.kernel.blocks[index]
        root, ways = block.last.root, block.successors
        if root == "mbarrier" and waits(block.last):
            self.keep(index, mask, out)      # type: ignore[arg-type]
        elif root == "barrier" and "cluster" in block.last.parts:
            barrier = machine.cluster_barrier
            (barrier.arrive if "arrive" in block.last.parts else barrier.wait)(ways[0], mask, block.last.line)
        elif root in ("bar", "barrier") and "warp" not in block.last.parts:
            machine.barriers.arrive(block.last.parts, ways[0], mask, out, block.last.line)
        elif root == "brx":
            for position, way in enumerate(ways):
                self.go(way, mask, np.asarray(out) == position)
        elif out is None:
            self.join(ways[0], mask)
        elif isinstance(out, bool):
            machine.tally.branch(machine, mask, None, block.last.line)
            self.join(ways[0] if out else ways[-1], mask)
        else:
            taken = np.asarray(out)
            machine.tally.branch(machine, mask, taken, block.last.line)
            self.go(ways[0], mask, taken)
            self.go(ways[-1], mask, ~taken)

    def keep(self, index: int, mask: Mask, failing: NDArray[np.bool_] | None) -> None:
        """Lanes of a `try_wait` go on but for those that it failed."""
        way = self.machine.kernel.blocks[index].successors[0]
        if failing is None:
            self.join(way, mask)
            return
        self.go(way, mask, ~failing)
        self.waiting.append((index, failing))

    def go(self, way: int, mask: Mask, part: Lanes) -> None:
        """Send the lanes of `mask` that are in `part`."""
        machine = self.machine
        base = machine.live if mask is None else mask
        if base is None:
            if part.all():
                self.join(way, None)
                return
            lanes = part.copy()
        else:
            lanes = base & part
        if lanes.any():
            self.join(way, lanes)

    def join(self, way: int, mask: Mask) -> None:
        machine = self.machine
        if way == EXIT:
            machine.leave(mask)
        else:
            self.add(self.pending, way, mask)

    @staticmethod
    def add(places: dict[int, Mask], way: int, mask: Mask) -> None:
        """Put lanes with those that are at a block already."""
        there = places.get(way, mask)
        places[way] = None if there is None or mask is None else there | mask

    # Whose turn it is -----------------------------------------------------------------------------------------------

    def choose(self) -> int:
        """The lowest block whose lanes are all there that can be; waiting loops stand back when others could go on."""
        machine = self.machine
        index = next(iter(self.pending)) if len(self.pending) == 1 else self.best()
        if index is None or (self.held or self.waiting) and self.is_torn(index):
            return self.mend(min(self.pending) if index is None else index)
        if machine.variant.analysis.may_spin[index] and (len(self.pending) > 1 or self.anybody_waits()):
            self.visits[index] = self.visits.get(index, 0) + 1
            if self.visits[index] > SPIN_LIMIT:
                self.visits[index] = 0
                self.add(self.held, index, self.pending.pop(index))
                self.held_until = self.executed + HOLD_STEPS
                if not self.pending:
                    self.release()
                return self.choose()
        return index

    def mend(self, index: int) -> int:
        """Only parts of warps are where warps meet, and the rest stands back or waits: whole warps go on without them."""
        mask = self.pending[index]
        assert mask is not None
        whole = mask & ~self.torn_warps(mask)
        if whole.any():
            self.pending[index] = whole
            self.add(self.held, index, mask & ~whole)
            self.held_until = self.executed + HOLD_STEPS
            return index
        self.release()
        return self.choose()

    def best(self) -> int | None:
        """The lowest block that is ready; else one whose warps are whole; None: there is none, and others may yet come."""
        order = sorted(self.pending)
        for able in (self.is_ready, lambda index: not self.is_torn(index)):
            found = next((index for index in order if able(index)), None)
            if found is not None:
                return found
        return None if self.held or self.waiting else order[0]

    def is_torn(self, index: int) -> bool:
        """Whether a block where warps meet has part of a warp only."""
        mask = self.pending[index]
        return mask is not None and self.machine.translations.collective[index] and not self.warps_whole(mask)

    def anybody_waits(self) -> bool:
        machine = self.machine
        return bool(self.waiting or machine.barriers.parked or machine.cluster_barrier.parked)

    def release(self) -> None:
        """Nobody can go on: let go those whose barrier is complete, and those that stand back or wait in vain."""
        machine = self.machine
        moved = machine.barriers.release()
        if machine.cluster_barrier.parked:
            moved = machine.cluster_barrier.release() or moved
        moved = bool(self.held) or moved
        self.restore()
        if self.waiting:
            self.retry(moved)
        elif not moved and not self.pending:
            if machine.barriers.parked:
                machine.barriers.stuck()
            machine.cluster_barrier.stuck()

    def retry(self, moved: bool) -> None:
        """Waiting lanes try again. Where nothing has happened since they did, `try_wait` says no, as it may after a while."""
        waiting, self.waiting = self.waiting, []
        if self.progress != self.seen:
            self.seen, self.idle = self.progress, 0
            for index, lanes in waiting:
                self.add(self.pending, index, lanes)
            return
        self.idle += not moved or bool(self.held or self.pending)
        if self.idle > PATIENCE:
            self.dead(waiting)
        if moved:
            self.waiting = waiting
            return
        for index, lanes in waiting:
            self.join(self.machine.kernel.blocks[index].successors[0], lanes)

    def dead(self, waiting: list[tuple[int, NDArray[np.bool_]]]) -> NoReturn:
        """Nothing happens any more."""
        index, lanes = min(waiting, key=lambda entry: entry[0])
        line = self.machine.kernel.blocks[index].last.line
        why = self.machine.mbarriers.waited_at.get(line or 0, "an mbarrier")
        stuck = int(sum(np.count_nonzero(l) for _, l in waiting))
        self.machine.fault("endless", f"deadlock: {stuck} threads wait for ever. {why}", lanes, line)

    def restore(self) -> None:
        held, self.held = self.held, {}
        for index, mask in held.items():
            self.join(index, mask)

    def is_ready(self, index: int) -> bool:
        machine = self.machine
        mask = self.pending[index]
        if mask is None:
            return True
        if self.is_torn(index):
            return False
        return not machine.variant.analysis.entry_needs[index] or self.is_whole(mask, index)

    def warps_whole(self, mask: NDArray[np.bool_]) -> bool:
        """Whether of every warp either all live lanes are here, or none."""
        return mask.shape[0] == 1 or not self.torn_warps(mask).any()

    def torn_warps(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(threads, columns): lanes of warps of which some live lanes are here and others are not."""
        machine = self.machine
        live = np.ones((1, 1), bool) if machine.live is None else machine.live
        missing = live & ~mask
        starts = np.arange(0, machine.threads, 32)
        torn = (np.logical_or.reduceat(np.broadcast_to(mask, (machine.threads, mask.shape[1])), starts, axis=0)
                & np.logical_or.reduceat(np.broadcast_to(missing, (machine.threads, missing.shape[1])), starts, axis=0))
        return np.repeat(torn, 32, axis=0)[:machine.threads]

    def is_whole(self, mask: NDArray[np.bool_], index: int) -> bool:
        """Whether the lanes here are all that live, along the axes over which registers of this block are stored once."""
        machine = self.machine
        needs = machine.variant.analysis.entry_needs[index]
        folded = mask
        if needs & THREAD and folded.shape[0] > 1:
            folded = folded.any(axis=0, keepdims=True)
        if needs & BLOCK and folded.shape[1] > 1:
            folded = folded.any(axis=1, keepdims=True)
        if folded is mask:
            return True
        expected = folded if machine.live is None else folded & machine.live
        return bool((mask == expected).all())
