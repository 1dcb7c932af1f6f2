"""The shadow of shared memory: which words were written, and who touched a word since the last barrier.

While all blocks of a chunk do the same, one column stands for all of them; the first access that differs between blocks
unfolds the shadow to one column a block, and the next barrier of all blocks folds it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Index = NDArray[np.int64]
Mask = NDArray[np.bool_] | None

MANY = 32
"""Reader tag: more than one warp."""
MAX_EPOCH = (1 << 20) - 2
MAX_PENDING = 64
"""Reads kept aside before they are entered; they are only needed if somebody writes before the next barrier."""


class SharedShadow:
    """Finds uninitialized reads, and accesses of two warps to one word between two barriers of which one is a write.

    Words are granules: the smallest size the kernel accesses shared memory with. Writes of equal values are no race.
    """

    def __init__(self, machine: Machine, granules: int) -> None:
        self.machine = machine
        self.granules = granules
        self.init = np.zeros((granules, 1), bool)
        self.epoch: NDArray[np.int32] = np.ones((1, 1), np.int32)
        self.forget()
        threads = np.arange(machine.threads, dtype=np.int32)[:, None]
        self.thread_tag = threads << 1
        self.warp = threads >> 5
        self.syncs = np.zeros((-(-machine.threads // 32), 1), np.int32)
        """How often each warp has met at a collective: between two of them its lanes are in no order."""

    def forget(self) -> None:
        """Nobody has touched anything since the barrier."""
        self.writer: NDArray[np.int32] | None = None
        self.written_at: NDArray[np.int32] | None = None
        """`syncs` of the writer's warp when it wrote."""
        self.reader: NDArray[np.int32] | None = None
        self.pending: list[tuple[Index, int, Mask]] = []

    def barrier(self, blocks: NDArray[np.bool_] | None) -> None:
        """Blocks (None: all) passed a barrier."""
        if blocks is None:
            self.epoch = np.ones((1, 1), np.int32)
            self.forget()
            return
        self.flush()
        self.unfold_races()
        self.epoch = np.where(blocks[None, :], self.epoch + np.int32(1), self.epoch).astype(np.int32)

    def warp_sync(self, active: NDArray[np.bool_]) -> None:
        """Lanes met at a collective of their warp."""
        if self.writer is None:
            return
        if active.shape[1] > self.syncs.shape[1]:
            self.unfold_races()
        lanes = np.broadcast_to(active, (self.machine.threads, active.shape[1]))
        self.syncs = self.syncs + np.logical_or.reduceat(lanes, np.arange(0, self.machine.threads, 32), axis=0)

    # Columns -----------------------------------------------------------------------------------------------------

    def unfold_races(self) -> None:
        width = self.machine.blocks
        self.epoch = np.repeat(self.epoch, width, axis=1) if self.epoch.shape[1] == 1 else self.epoch
        self.syncs = np.repeat(self.syncs, width, axis=1) if self.syncs.shape[1] == 1 else self.syncs
        for name in ("writer", "written_at", "reader"):
            table = getattr(self, name)
            if table is not None and table.shape[1] == 1:
                setattr(self, name, np.repeat(table, width, axis=1))

    def lanes(self, word: Index, mask: Mask, width: int) -> tuple[Index, NDArray[np.bool_] | None, tuple[int, int]]:
        """Flat index into a table of `width` columns of every lane, the lanes meant (None: all), and their shape."""
        shape = (self.machine.threads, width)
        index = np.broadcast_to(word * width + np.arange(width), shape)
        active = None if mask is None else np.broadcast_to(mask, shape)
        return (index.reshape(-1) if active is None else index[active]), active, shape

    def width(self, word: Index, mask: Mask, *tables: NDArray[np.generic] | None) -> int:
        wide = word.shape[1] > 1 or mask is not None and mask.shape[1] > 1
        return max(self.machine.blocks if wide else 1, *(t.shape[1] for t in tables if t is not None), 1)

    def spread(self, values: NDArray[np.int32], active: NDArray[np.bool_] | None, shape: tuple[int, int]) -> NDArray[np.int32]:
        values = np.broadcast_to(values, shape)
        return values.reshape(-1) if active is None else values[active]

    # Accesses ----------------------------------------------------------------------------------------------------

    def read(self, word: Index, offset: int, mask: Mask, line: int | None, ordered: bool = False) -> None:
        """Lanes (of `mask`) read granule `word + offset`. `ordered` accesses take no part in races."""
        word = word + offset
        width = self.width(word, mask, self.init)
        self.unfold_init(width)
        index, active, shape = self.lanes(word, mask, width)
        known = self.init.reshape(-1)[index]
        if not known.all():
            self.fault("uninitialized", "reads shared memory that nothing wrote", ~known, active, shape, line)
        if ordered:
            return
        if self.writer is not None:
            self.flush()
            self.races(word, mask, "reads shared memory that another warp wrote without a barrier between", line, reads=False)
            self.races_in_warp(word, mask, line)
            self.enter_read(word, mask)
        else:
            self.pending.append((word, 0, mask))
            if len(self.pending) > MAX_PENDING:
                self.flush()

    def flush(self) -> None:
        pending, self.pending = self.pending, []
        for word, _, mask in pending:
            self.enter_read(word, mask)

    def enter_read(self, word: Index, mask: Mask) -> None:
        width = self.width(word, mask, self.reader, self.epoch, self.writer, self.syncs)
        if width > 1:
            self.unfold_races()
        if self.reader is None:
            self.reader = np.zeros((self.granules, width), np.int32)
        index, active, shape = self.lanes(word, mask, width)
        epoch = self.epoch << 6
        tag = self.spread(epoch | self.warp, active, shape)
        base = self.spread(epoch, active, shape)
        reader = self.reader.reshape(-1)
        old = reader[index]
        many = (old >= base) & (old != tag)
        reader[index] = tag
        many |= reader[index] != tag
        if many.any():
            reader[index[many]] = base[many] | MANY

    def races(self, word: Index, mask: Mask, what: str, line: int | None, reads: bool,
              changes: NDArray[np.bool_] | None = None, atomic: bool = False) -> None:
        """Fault if another warp wrote (or, with `reads`, read) these granules since the barrier."""
        width = self.width(word, mask, self.writer, self.reader, self.epoch, self.syncs)
        if width > 1:
            self.unfold_races()
        index, active, shape = self.lanes(word, mask, width)
        warp = self.spread(self.warp, active, shape)
        bad = np.zeros(len(index), bool)
        if self.writer is not None:
            old = self.writer.reshape(-1)[index]
            bad = (old >= self.spread(self.epoch << 11, active, shape)) & ((old >> 6 & 31) != warp)
            if atomic:
                bad &= (old & 1) == 0
            elif changes is not None:
                bad |= self.same_warp(old, index, warp, active, shape)
        if reads and self.reader is not None:
            old = self.reader.reshape(-1)[index]
            bad |= (old >= self.spread(self.epoch << 6, active, shape)) & ((old & 63) != warp)
        if bad.any() and changes is not None:
            if changes.shape[1] > width:
                changes = changes.any(axis=1, keepdims=True)      # one column stands for all blocks
            bad &= self.spread(changes, active, shape)      # type: ignore[arg-type]
        if bad.any():
            self.fault("race", what, bad, active, shape, line)

    def races_in_warp(self, word: Index, mask: Mask, line: int | None) -> None:
        """Fault if another lane of the reader's own warp wrote these granules and the warp has not met since."""
        assert self.writer is not None
        width = self.width(word, mask, self.writer, self.epoch, self.syncs)
        if width > 1:
            self.unfold_races()
        index, active, shape = self.lanes(word, mask, width)
        old = self.writer.reshape(-1)[index]
        bad = self.same_warp(old, index, self.spread(self.warp, active, shape), active, shape)
        if bad.any():
            self.fault("race", "reads shared memory that another lane of the warp wrote with no __syncwarp() between", bad, active, shape, line)

    def same_warp(self, old: NDArray[np.int32], index: Index, warp: NDArray[np.int32], active: NDArray[np.bool_] | None,
                  shape: tuple[int, int]) -> NDArray[np.bool_]:
        """Granules that another lane of the writing lane's own warp wrote, with no collective of the warp since."""
        assert self.written_at is not None
        now = self.spread(np.repeat(self.syncs, 32, axis=0)[:self.machine.threads], active, shape)
        current = old >= self.spread(self.epoch << 11, active, shape)
        other = (old >> 1 & 1023) != self.spread(self.thread_tag >> 1, active, shape)
        return current & other & ((old >> 6 & 31) == warp) & ((old & 1) == 0) & (self.written_at.reshape(-1)[index] == now)

    def write(self, word: Index, offset: int, mask: Mask, line: int | None, changes: NDArray[np.bool_] | None = None,
              atomic: bool = False, ordered: bool = False) -> None:
        """Lanes write granule `word + offset`. `changes`: lanes whose value differs from what is there."""
        word = word + offset
        if not ordered:
            self.enter_write(word, mask, line, changes, atomic)
        width = self.width(word, mask, self.init)
        self.unfold_init(width)
        index, _, _ = self.lanes(word, mask, width)
        self.init.reshape(-1)[index] = True

    def enter_write(self, word: Index, mask: Mask, line: int | None, changes: NDArray[np.bool_] | None, atomic: bool) -> None:
        self.flush()
        if self.writer is not None or self.reader is not None:
            what = "writes shared memory that another thread touched with no barrier between"
            self.races(word, mask, what, line, reads=not atomic, changes=changes, atomic=atomic)
        width = self.width(word, mask, self.writer, self.reader, self.epoch, self.syncs)
        if width > 1:
            self.unfold_races()
        if self.writer is None:
            self.writer = np.zeros((self.granules, width), np.int32)
            self.written_at = np.zeros((self.granules, width), np.int32)
        index, active, shape = self.lanes(word, mask, width)
        self.writer.reshape(-1)[index] = self.spread(self.epoch << 11 | self.thread_tag | np.int32(atomic), active, shape)
        assert self.written_at is not None
        syncs = np.repeat(self.syncs, 32, axis=0)[:self.machine.threads]
        self.written_at.reshape(-1)[index] = self.spread(syncs, active, shape)

    def atomic(self, word: Index, offset: int, mask: Mask, line: int | None) -> None:
        """Lanes update granule `word + offset` atomically: no race among themselves, but with plain accesses."""
        wide = word + offset
        width = self.width(wide, mask, self.init)
        self.unfold_init(width)
        index, active, shape = self.lanes(wide, mask, width)
        known = self.init.reshape(-1)[index]
        if not known.all():
            self.fault("uninitialized", "atomic on shared memory that nothing wrote", ~known, active, shape, line)
        self.write(word, offset, mask, line, atomic=True)

    def unfold_init(self, width: int) -> None:
        if width > self.init.shape[1]:
            self.init = np.repeat(self.init, width, axis=1)

    def fault(self, kind: str, what: str, bad: NDArray[np.bool_], active: NDArray[np.bool_] | None, shape: tuple[int, int],
              line: int | None) -> None:
        lanes = np.zeros(shape, bool)
        if active is None:
            lanes[...] = bad.reshape(shape)
        else:
            lanes[active] = bad
        self.machine.fault(kind, what, lanes, line)
