"""The shadow of shared memory in kernels that synchronize by more than barriers of a block.

`checks.SharedShadow` asks whether there was a barrier between two accesses. Where mbarriers, copy engines, clusters or
atomics with fences order accesses, this one asks the clocks (`clocks.py`). It also knows what bulk copies are under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.faults import FaultKind
from forge_tui.cuda.host.clocks import Clocks

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Index = NDArray[np.int64]
Mask = NDArray[np.bool_] | None
Lanes = NDArray[np.bool_]

# A tag: time << 16 | actor << 6 | lane << 1 | atomic. 10 bits of actors: 16 blocks of 32 warps, and the copy engine.
TIME, ACTOR, LANE = 16, 6, 1


class OrderedShadow:
    """Uninitialized reads, races, and uses of shared memory that a bulk copy is still busy with.

    `cells` are flat indices into the tables: one for each lane meant, or (granules, lanes) for accesses of several granules.
    Tables have a row for each granule (the smallest size the kernel accesses shared memory with) and a column for each block.
    """

    def __init__(self, machine: Machine, granules: int) -> None:
        self.machine = machine
        self.shape = (machine.threads, machine.blocks)
        self.columns = np.arange(machine.blocks)
        self.clocks = Clocks(machine)
        size = (granules, machine.blocks)
        self.init = np.zeros(size, bool)
        self.writer = np.zeros(size, np.int64)
        self.written_at = np.zeros(size, np.int32)
        """`syncs` of the writer's warp when it wrote."""
        self.readers = np.zeros(size, np.int64), np.zeros(size, np.int64)
        """The last two different warps that read."""
        self.filling = np.zeros(size, np.int32)
        """Line (plus 1) of the bulk copy under way that will write here; 0: none."""
        self.draining = np.zeros(size, np.int32)
        """The same of the bulk copy that will read here."""
        self.copied = False
        """Whether a bulk copy was ever issued: else the two tables above are empty."""
        self.syncs = np.zeros((self.clocks.warps, machine.blocks), np.int32)
        """How often each warp has met at a collective: between two of them its lanes are in no order."""
        self.fenced_at = np.zeros(machine.blocks * self.clocks.warps, np.int64)
        """Of each warp, the time of its last `fence.proxy.async`."""
        self.tag = (self.clocks.actor << ACTOR) + (np.arange(machine.threads)[:, None] % 32 << LANE)
        self.far_at = np.zeros((machine.blocks, self.clocks.actors), np.int32)
        """Time of each actor's last access to each block from another block of its cluster."""
        self.far_line = np.zeros((machine.blocks, self.clocks.actors), np.int32)

    # Order --------------------------------------------------------------------------------------------------------

    def barrier(self, blocks: NDArray[np.bool_] | None) -> None:
        """Blocks (None: all) passed a barrier."""
        self.clocks.meet(self.columns if blocks is None else np.flatnonzero(blocks))
        self.syncs += 1

    def warp_sync(self, active: Lanes) -> None:
        """Lanes met at a collective of their warp."""
        lanes = np.broadcast_to(active, self.shape)
        self.syncs += np.logical_or.reduceat(lanes, np.arange(0, self.shape[0], 32), axis=0)

    def signal(self, lanes: Lanes, send: bool, receive: bool) -> None:
        """Warps hand on what they know through an atomic or a volatile access, or learn what others handed on."""
        rows = self.clocks.rows(lanes)
        if send:
            self.clocks.send(self.clocks.signal, rows)
        if receive:
            self.clocks.receive(self.clocks.signal, rows)
            self.warp_sync(lanes)

    # Near accesses: a lane's own block ------------------------------------------------------------------------------

    def cells(self, word: Index, mask: Mask) -> tuple[Index, Mask]:
        """Flat index into the tables of every lane meant, and which lanes those are (None: all)."""
        index = np.broadcast_to(word * self.shape[1] + self.columns, self.shape)
        active = self.machine.live if mask is None else mask
        if active is None:
            return index.reshape(-1), None
        active = np.broadcast_to(active, self.shape)
        return index[active], active

    def read(self, word: Index, offset: int, mask: Mask, line: int | None, ordered: bool = False) -> None:
        """Lanes (of `mask`) read granule `word + offset`. `ordered` accesses take no part in races."""
        self.read_cells(*self.cells(word + offset, mask), line, ordered)

    def write(self, word: Index, offset: int, mask: Mask, line: int | None, changes: Lanes | None = None,
              atomic: bool = False, ordered: bool = False) -> None:
        """Lanes write granule `word + offset`. `changes`: lanes whose value differs from what is there."""
        cells, active = self.cells(word + offset, mask)
        self.write_cells(cells, active, line, changes, atomic, ordered)

    def enter_write(self, word: Index, mask: Mask, line: int | None, changes: Lanes | None, atomic: bool) -> None:
        """A write that will only land later (`cp.async`)."""
        self.check_write(*self.cells(word, mask), line, changes, atomic)

    def atomic(self, word: Index, offset: int, mask: Mask, line: int | None) -> None:
        """Lanes update granule `word + offset` atomically: no race among themselves, but with plain accesses."""
        cells, active = self.cells(word + offset, mask)
        self.atomic_cells(cells, active, line)

    # Any accesses ---------------------------------------------------------------------------------------------------

    def of(self, values: NDArray[np.generic], active: Mask) -> NDArray[np.generic]:
        """A value of every lane meant, flat."""
        values = np.broadcast_to(values, self.shape)
        return values.reshape(-1) if active is None else values[active]

    def read_cells(self, cells: Index, active: Mask, line: int | None, ordered: bool = False) -> None:
        self.check_filled(cells, active, line, "reads")
        known = self.init.reshape(-1)[cells]
        if not known.all():
            self.fault("uninitialized", "reads shared memory that nothing wrote", ~known, active, line)
        if ordered:
            self.signal(self.lanes_of(active), send=False, receive=True)
            return
        row, actor = self.of(self.clocks.row, active), self.of(self.clocks.actor, active)
        bad = self.conflicts(self.writer, cells, row, actor)
        if bad.any():
            self.fault("race", self.says(cells, bad), bad, active, line)
        bad = self.same_warp(cells, active, actor)
        if bad.any():
            self.fault("race", "reads shared memory that another lane of the warp wrote with no __syncwarp() between", bad,
                       active, line)
        self.enter_read(cells, active)

    def enter_read(self, cells: Index, active: Mask) -> None:
        tag = self.of(self.tag + (self.clocks.stamp().astype(np.int64) << TIME), active)
        first, second = (table.reshape(-1) for table in self.readers)
        old = first[cells]
        moved = (old != 0) & ((old ^ tag) >> ACTOR & 1023 != 0)
        if moved.any():
            second[cells[moved]] = old[moved]
        first[cells] = tag
        lost = (first[cells] ^ tag) >> ACTOR & 1023 != 0       # several warps read one granule in this very instruction
        if lost.any():
            second[cells[lost]] = np.broadcast_to(tag, cells.shape)[lost]

    def write_cells(self, cells: Index, active: Mask, line: int | None, changes: Lanes | None = None, atomic: bool = False,
                    ordered: bool = False) -> None:
        if ordered:
            self.check_filled(cells, active, line, "writes")
            self.signal(self.lanes_of(active), send=True, receive=False)
        else:
            self.check_write(cells, active, line, changes, atomic)
        self.init.reshape(-1)[cells] = True

    def check_write(self, cells: Index, active: Mask, line: int | None, changes: Lanes | None = None, atomic: bool = False,
                    what: str = "writes") -> None:
        self.check_filled(cells, active, line, "writes")
        self.check_drained(cells, active, line)
        row, actor = self.of(self.clocks.row, active), self.of(self.clocks.actor, active)
        bad = self.conflicts(self.writer, cells, row, actor)
        if atomic:
            bad &= self.writer.reshape(-1)[cells] & 1 == 0
        elif changes is not None:
            bad |= self.same_warp(cells, active, actor)
        for table in () if atomic else self.readers:
            bad |= self.conflicts(table, cells, row, actor)
        if changes is not None and bad.any():
            bad &= self.of(changes, active)      # type: ignore[arg-type]
        if bad.any():
            self.fault("race", f"{what} shared memory that another thread touched with no barrier between", bad, active, line)
        stamp = self.clocks.stamp().astype(np.int64) << TIME
        self.writer.reshape(-1)[cells] = self.of(self.tag + stamp + int(atomic), active)
        self.written_at.reshape(-1)[cells] = self.of(np.repeat(self.syncs, 32, axis=0)[:self.shape[0]], active)

    def atomic_cells(self, cells: Index, active: Mask, line: int | None) -> None:
        known = self.init.reshape(-1)[cells]
        if not known.all():
            self.fault("uninitialized", "atomic on shared memory that nothing wrote", ~known, active, line)
        self.signal(self.lanes_of(active), send=True, receive=True)
        self.write_cells(cells, active, line, atomic=True)

    def conflicts(self, table: NDArray[np.int64], cells: Index, row: Index, actor: Index) -> Lanes:
        """Lanes whose warp is in no order with what a table says of their granule."""
        old = table.reshape(-1)[cells]
        other = old >> ACTOR & 1023
        theirs = (old != 0) & (other != actor)
        return theirs & self.clocks.unknown(row, other, old >> TIME) if theirs.any() else theirs

    def same_warp(self, cells: Index, active: Mask, actor: Index) -> Lanes:
        """Granules that another lane of each lane's own warp wrote, with no collective of the warp since."""
        old = self.writer.reshape(-1)[cells]
        tag = self.of(self.tag, active)
        mine = (old != 0) & (old >> ACTOR & 1023 == actor) & ((old ^ tag) >> LANE & 31 != 0)
        if not mine.any():
            return mine
        now = self.of(np.repeat(self.syncs, 32, axis=0)[:self.shape[0]], active)
        current = self.clocks.unknown(self.of(self.clocks.row, active), actor, old >> TIME)
        return mine & current & (old & 1 == 0) & (self.written_at.reshape(-1)[cells] == now)

    def lanes_of(self, active: Mask) -> Lanes:
        return np.ones(self.shape, bool) if active is None else active

    # Bulk copies ----------------------------------------------------------------------------------------------------

    def check_filled(self, cells: Index, active: Mask, line: int | None, does: str) -> None:
        if self.copied:
            by = self.filling.reshape(-1)[cells]
            if by.any():
                self.fault("race", f"{does} shared memory that the bulk copy of line {by[by != 0][0] - 1} is still filling: "
                           "its mbarrier was not waited for", by != 0, active, line)

    def check_drained(self, cells: Index, active: Mask, line: int | None) -> None:
        if self.copied:
            by = self.draining.reshape(-1)[cells]
            if by.any():
                self.fault("race", f"writes shared memory that the bulk copy of line {by[by != 0][0] - 1} may still be reading: "
                           "its group was not waited for", by != 0, active, line)

    def fill_begins(self, cells: Index, active: Lanes, line: int | None) -> None:
        """Copies to `cells`, (granules, lanes) of the lanes of `active`, are under way."""
        self.check_write(cells, active, line, what="its bulk copy fills")
        self.filling.reshape(-1)[cells] = (line or 0) + 1
        self.copied = True

    def fill_ends(self, cells: Index, columns: Index) -> None:
        """Copies to `cells`, (granules, copies) in the memory of the blocks `columns`, have landed."""
        self.filling.reshape(-1)[cells] = 0
        self.init.reshape(-1)[cells] = True
        stamp = self.clocks.stamp()[columns].astype(np.int64)
        self.writer.reshape(-1)[cells] = (stamp << TIME) + (self.clocks.engine << ACTOR)

    def proxy_fence(self, lanes: Lanes) -> None:
        """Warps made what they know visible to the copy engine."""
        rows = self.clocks.rows(lanes)
        clusters = self.clocks.cluster_of(rows)
        self.fenced_at[rows] = self.clocks.now[clusters] + 1
        self.clocks.now[np.unique(clusters)] += 1

    def drain_begins(self, cells: Index, active: Lanes, line: int | None) -> None:
        """Copies from `cells` are under way. Fault where an ordinary store wrote them with no fence since, by whoever wrote or by
        who copies."""
        self.read_cells(cells, active, line)
        old = self.writer.reshape(-1)[cells]
        actor, stamp = old >> ACTOR & 1023, old >> TIME
        first = cells % self.shape[1] // self.machine.cluster_size * (self.clocks.actors - 1)       # row of the cluster's first warp
        writer = self.fenced_at[np.minimum(first + actor, len(self.fenced_at) - 1)] > stamp
        copier = self.fenced_at[self.of(self.clocks.row, active)] > stamp
        bad = (actor != self.clocks.engine) & ~writer & ~copier
        if bad.any():
            self.fault("race", "a bulk copy reads shared memory that ordinary stores wrote, with no fence.proxy.async "
                       "between", bad, active, line)
        self.draining.reshape(-1)[cells] = (line or 0) + 1
        self.copied = True

    def drain_ends(self, cells: Index) -> None:
        self.draining.reshape(-1)[cells] = 0

    # Clusters -------------------------------------------------------------------------------------------------------

    def far_access(self, columns: Index, active: Lanes, line: int | None) -> None:
        """Lanes access the blocks `columns` of their cluster, which must not end before they know of it."""
        actor, stamp = self.of(self.clocks.actor, active), self.of(self.clocks.stamp(), active)
        self.far_at[columns, actor] = stamp
        self.far_line[columns, actor] = line or 0

    def check_exit(self, columns: Index) -> None:
        """Blocks end: nobody may still be about to access their shared memory."""
        size = self.machine.cluster_size
        for column in columns if size > 1 else ():
            known = self.clocks.seen[column * self.clocks.warps:(column + 1) * self.clocks.warps].max(axis=0)
            own = self.clocks.actor[0, column]
            late = (self.far_at[column] >= known) & (self.far_at[column] > 0)
            late[own:own + self.clocks.warps] = False
            if late.any():
                actor = int(late.argmax())
                lanes = np.zeros(self.shape, bool)
                lanes[actor % self.clocks.warps * 32, column // size * size + actor // self.clocks.warps] = True
                self.machine.fault("race", f"uses the shared memory of block rank {column % size} of its cluster, which may have "
                                   "exited: no cluster barrier before that block's end", lanes, int(self.far_line[column, actor]) or None,
                                   alive=False)

    # Faults ---------------------------------------------------------------------------------------------------------

    def says(self, cells: Index, bad: Lanes) -> str:
        engine = (self.writer.reshape(-1)[cells[bad][0]] >> ACTOR & 1023) == self.clocks.engine
        return ("reads shared memory that a bulk copy wrote; this warp did not wait for its mbarrier" if engine else
                "reads shared memory that another warp wrote without a barrier between")

    def fault(self, kind: FaultKind, what: str, bad: Lanes, active: Mask, line: int | None) -> NoReturn:
        lanes = np.zeros(self.shape, bool)
        bad = bad.any(axis=0) if bad.ndim > 1 else bad         # several granules a lane
        if active is None:
            lanes[...] = bad.reshape(self.shape)
        else:
            lanes[active] = bad
        self.machine.fault(kind, what, lanes, line)
