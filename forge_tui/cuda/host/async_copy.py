"""`cp.async`: copies from global to shared memory that land when a thread waits for them, and not before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.memory import Address, Lanes, Mask
from forge_tui.cuda.host.words import WordAddress

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine


@dataclass(slots=True, eq=False)
class Copy:
    """One instruction's copies in flight."""

    target: WordAddress
    offset: int
    words: tuple[NDArray[np.uint32], ...]
    lanes: NDArray[np.bool_]
    group: NDArray[np.int32]
    """Groups each lane had committed when it issued the copy: the number of the copy's own group."""
    line: int | None


class AsyncCopies:
    """The copies in flight of one chunk. They land as late as the program allows, so that a missing wait shows."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.shape = (machine.threads, machine.blocks)
        self.reset()

    def reset(self) -> None:
        self.flying: list[Copy] = []
        self.committed = np.zeros(self.shape, np.int32)

    def copy(self, target: WordAddress | None, offset: int, source: Lanes, source_offset: int, size: int, kept: Lanes | None,
             mask: Mask, line: int | None) -> None:
        """Issue a copy of `size` bytes. `kept`: bytes to read of them, the rest being zeros; None: all."""
        machine = self.machine
        if target is None:
            return
        lanes = np.broadcast_to(machine.active(mask), self.shape).copy()
        words = tuple(np.zeros(self.shape, np.uint32) for _ in range(size // 4))
        reading = lanes
        if kept is not None:
            partly = lanes & (kept > 0) & (kept < size)
            if partly.any():
                machine.fault("not_interpretable", "not interpretable: cp.async that fills part of its bytes with zeros", partly, line)
            reading = lanes & (kept > 0)
        address: Address | None = machine.gmem.prepare(source, reading)
        parts = tuple(np.zeros(self.shape, np.uint32) for _ in words)
        before = machine.tally.sectors
        machine.gmem.load(address, source_offset, 4, parts, "u", line)
        machine.tally.async_sectors += machine.tally.sectors - before
        for word, part in zip(words, parts, strict=True):
            np.copyto(word, part, where=reading)
        machine.smem.check(target, offset, size, "asynchronous copy", line)
        if machine.smem.shadow is not None:
            for granule, k in machine.smem.granules(target, offset, size):
                machine.smem.shadow.enter_write(granule + k, mask, line, None, atomic=False)
        self.flying.append(Copy(target, offset, words, lanes, self.committed.copy(), line))

    def commit(self, mask: Mask) -> None:
        self.committed += np.broadcast_to(self.machine.active(mask), self.shape)

    def wait(self, newest: int | None, mask: Mask) -> None:
        """Let land what the lanes have in flight but for their `newest` youngest groups; None: everything, committed or not."""
        active = np.broadcast_to(self.machine.active(mask), self.shape)
        left = []
        for copy in self.flying:
            done = copy.lanes & active
            if newest is not None:
                done &= copy.group < self.committed - newest
            if done.any():
                done_or_all = None if done.all() else done
                self.machine.smem.store(copy.target, copy.offset, 4, copy.words, done_or_all, copy.line)
                copy.lanes = copy.lanes & ~done
            if copy.lanes.any():
                left.append(copy)
        self.flying = left
