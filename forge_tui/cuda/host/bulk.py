"""Bulk copies and other writes by the copy engine: issued now, landing when the program waits for them.

Copies that complete on an mbarrier land when somebody sees its phase complete (`mbarriers.py`). Copies in bulk groups read
shared memory when a `wait_group.read` or `wait_group` asks for it, and write global memory at a `wait_group` or when the
chunk ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.atomics import apply
from forge_tui.cuda.host.mbarriers import Places
from forge_tui.cuda.host.memory import BUFFER_SHIFT, Buffer, Lanes, Mask

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Index = NDArray[np.int64]

UNIT = 16
"""Bytes that addresses and sizes of bulk copies are multiples of."""


@dataclass(slots=True, eq=False)
class Flight:
    """Copies of one size, one source memory and one instruction, one for each of some lanes. Flat arrays over those lanes."""

    size: int
    lanes: NDArray[np.bool_]
    """(threads, blocks): who issued them."""
    line: int | None
    at: Index
    """Byte in shared memory: the target, or the source of copies to global memory."""
    column: Index
    buffer: Buffer | None
    """The global side; None: the source is shared memory, or `words`."""
    byte: Index
    """Byte in the buffer, or in shared memory where `buffer` is None."""
    words: NDArray[np.uint32] | None = None
    """(words, copies): the data, once read."""
    source: Index | None = None
    """Column of a source in shared memory."""
    row: Index | None = None
    mcolumn: Index | None = None
    """mbarriers they complete on."""
    group: Index | None = None
    """Groups each lane had committed when it issued the copy."""
    operation: tuple[str, str] | None = None
    """Reduction and its type, instead of overwriting."""


class BulkCopies:
    """The copies under way of one chunk."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.shape = (machine.threads, machine.blocks)
        self.reset()

    def reset(self) -> None:
        self.flying: list[Flight] = []
        self.committed = np.zeros(self.shape, np.int64)
        self.read: list[Flight] = []
        """Read from shared memory and not yet in global memory."""

    # Issuing --------------------------------------------------------------------------------------------------------

    def load(self, target: Lanes, target_offset: int, source: Lanes, source_offset: int, size: Lanes, barrier: Lanes,
             barrier_offset: int, cluster_mask: Lanes | None, mask: Mask, line: int | None) -> None:
        """Global to shared memory, completing on an mbarrier; `cluster_mask`: to the same place of every block named."""
        for lanes, bytes_ in self.by_size(size, mask, line):
            for rank_lanes, to, on in self.receivers(target, barrier, cluster_mask, lanes):
                at, column = self.shared_side(to, target_offset, bytes_, rank_lanes, "destination of a bulk copy", line)
                raw = np.broadcast_to(source, self.shape)[rank_lanes] + np.uint64(source_offset % (1 << 64))
                places = self.machine.mbarriers.places(on, barrier_offset, rank_lanes, "bulk copy", line, engine=True)
                assert places is not None
                for buffer, pick in self.global_sides(raw, bytes_, rank_lanes, "bulk copy", line, "load"):
                    byte = (raw[pick] - np.uint64(buffer.base)).astype(np.int64)
                    flight = Flight(bytes_, _spread(pick, rank_lanes), line, at[pick], column[pick], buffer, byte)
                    self.fly(flight, places, pick)
                self.machine.tally.bulk(self.machine, rank_lanes, bytes_)

    def share(self, target: Lanes, target_offset: int, source: Lanes, source_offset: int, size: Lanes, barrier: Lanes,
              barrier_offset: int, mask: Mask, line: int | None) -> None:
        """Shared memory to that of a block of the cluster, completing on an mbarrier there."""
        for lanes, bytes_ in self.by_size(size, mask, line):
            at, column = self.shared_side(target, target_offset, bytes_, lanes, "destination of a bulk copy", line)
            byte, own = self.shared_side(source, source_offset, bytes_, lanes, "source of a bulk copy", line)
            places = self.machine.mbarriers.places(barrier, barrier_offset, lanes, "bulk copy", line, engine=True)
            assert places is not None
            flight = Flight(bytes_, lanes, line, at, column, None, byte, source=own)
            self.machine.ordered.drain_begins(self.cells(byte, own, bytes_), lanes, line)
            self.fly(flight, places, np.ones(len(at), bool))

    def send(self, target: Lanes, offset: int, size: int, values: tuple[Lanes, ...], barrier: Lanes, barrier_offset: int,
             operation: tuple[str, str] | None, mask: Mask, line: int | None) -> None:
        """`st.async` and `red.async`: values to another block's shared memory, completing on an mbarrier there."""
        lanes = np.broadcast_to(self.machine.active(mask), self.shape)
        if not lanes.any():
            return
        total = size * len(values)
        at, column = self.machine.cmem.places(target, lanes, offset, total, "asynchronous store", line, engine=True)
        places = self.machine.mbarriers.places(barrier, barrier_offset, lanes, "asynchronous store", line, engine=True)
        assert places is not None
        taken = [np.broadcast_to(v, self.shape)[lanes].astype(f"u{size}") for v in values]
        words = np.stack(taken, axis=1).view(np.uint32).T.copy()
        flight = Flight(total, lanes, line, at, column, None, at, words, operation=operation)
        if operation is not None:
            self.machine.ordered.atomic_cells(self.cells(at, column, total), lanes, line)
            self.fly(flight, places, np.ones(len(at), bool), marked=False)
            return
        self.fly(flight, places, np.ones(len(at), bool))

    def fly(self, flight: Flight, places: Places, pick: NDArray[np.bool_], marked: bool = True) -> None:
        """A copy on its way to shared memory."""
        mbarriers = self.machine.mbarriers
        flight.row, flight.mcolumn = places.row[pick], places.column[pick]
        np.add.at(mbarriers.coming, (flight.row, flight.mcolumn), flight.size)
        if marked:
            cells = self.cells(flight.at, flight.column, flight.size)
            self.machine.ordered.fill_begins(cells, flight.lanes, flight.line)
        self.flying.append(flight)
        mbarriers.changed()

    def store(self, target: Lanes, target_offset: int, source: Lanes, source_offset: int, size: Lanes,
              operation: tuple[str, str] | None, mask: Mask, line: int | None) -> None:
        """Shared to global memory, in the bulk group the lane commits next."""
        for lanes, bytes_ in self.by_size(size, mask, line):
            at, column = self.shared_side(source, source_offset, bytes_, lanes, "source of a bulk copy", line)
            raw = np.broadcast_to(target, self.shape)[lanes] + np.uint64(target_offset % (1 << 64))
            does = "store" if operation is None else "atomic"
            for buffer, pick in self.global_sides(raw, bytes_, lanes, "bulk copy", line, does):
                byte = (raw[pick] - np.uint64(buffer.base)).astype(np.int64)
                mine = _spread(pick, lanes)
                flight = Flight(bytes_, mine, line, at[pick], column[pick], buffer, byte, group=self.committed[mine],
                                operation=operation)
                self.machine.ordered.drain_begins(self.cells(flight.at, flight.column, bytes_), mine, line)
                self.flying.append(flight)
            self.machine.tally.bulk(self.machine, lanes, bytes_, "store")

    # What the operands say ------------------------------------------------------------------------------------------

    def by_size(self, size: Lanes, mask: Mask, line: int | None):
        """Active lanes by the size they copy."""
        active = np.broadcast_to(self.machine.active(mask), self.shape)
        sizes = np.broadcast_to(size, self.shape)
        bad = active & (sizes % UNIT != 0)
        if bad.any():
            self.machine.fault("misaligned", f"a bulk copy of {int(sizes[bad][0])} bytes, which is not a multiple of {UNIT}",
                               bad, line)
        for number in np.unique(sizes[active]):
            if number:
                yield active & (sizes == number), int(number)

    def receivers(self, target: Lanes, barrier: Lanes, cluster_mask: Lanes | None, lanes: NDArray[np.bool_]):
        """Lanes, targets and mbarriers: as they are, or by block of a multicast."""
        if cluster_mask is None:
            yield lanes, target, barrier
            return
        for rank in range(self.machine.cluster_size):
            named = lanes & ((np.broadcast_to(cluster_mask, self.shape).astype(np.int64) >> rank & 1) != 0)
            if named.any():
                yield named, *(x & x.dtype.type(0xFFFFFF) | x.dtype.type(rank + 1 << 24) for x in (target, barrier))

    def shared_side(self, raw: Lanes, offset: int, size: int, lanes: NDArray[np.bool_], what: str,
                    line: int | None) -> tuple[Index, Index]:
        at, column = self.machine.cmem.places(raw, lanes, offset, UNIT, what, line, engine=True)
        end = self.machine.smem.size
        self.machine.cmem.refuse(at + size > end, lanes, "out_of_bounds",
                                 f"{what} of {size} bytes ends at byte {int((at + size).max())} of shared memory; there are {end}", line)
        return at, column

    def global_sides(self, raw: NDArray[np.uint64], size: int, lanes: NDArray[np.bool_], what: str, line: int | None, does: str):
        """The buffers that addresses lead to, each with the lanes (flat) it is for. Checked for range, alignment, contents."""
        memory, refuse = self.machine.gmem, self.machine.cmem.refuse
        refuse(raw % np.uint64(UNIT) != 0, lanes, "misaligned", f"{what}: its global address is not a multiple of {UNIT}", line)
        windows = raw >> np.uint64(BUFFER_SHIFT)
        for window in np.unique(windows):
            pick = windows == window
            buffer = memory.buffers[int(window) - 1] if 0 < window <= len(memory.buffers) else None
            refuse(pick if buffer is None else ~pick & pick, lanes, "out_of_bounds",
                   f"{what} at {int(raw[pick][0]):#x}, which is in no tensor", line)
            assert buffer is not None
            byte = raw.astype(np.int64) - buffer.base
            bad = pick & ((byte < 0) | (byte + size > buffer.size))
            first = int(byte[bad][0]) if bad.any() else 0
            refuse(bad, lanes, "out_of_bounds",
                   f"{what} of {size} bytes outside {buffer.name}: at byte {first} of {buffer.size}", line)
            refuse(pick & (does != "load" and not buffer.writable), lanes, "read_only",
                   f"{what} to {buffer.name}, which is an input", line)
            if buffer.written is not None and does == "load":
                start = (byte + buffer.base - buffer.origin) // buffer.unit
                fresh = pick & np.array([not buffer.written[s:s + max(1, size // buffer.unit)].all() if p else False
                                         for s, p in zip(start, pick, strict=True)])
                refuse(fresh, lanes, "uninitialized", f"{what} from {buffer.name} where nothing was stored", line)
            if memory.sharing is not None and buffer.writable:
                self.meet_others(buffer, byte[pick], size, _spread(pick, lanes), what, line, does)
            yield buffer, pick

    def meet_others(self, buffer: Buffer, byte: Index, size: int, lanes: NDArray[np.bool_], what: str, line: int | None,
                    does: str) -> None:
        """Tell the launch's `sharing` what copies of `lanes` do to global memory."""
        machine, sharing, blocks = self.machine, self.machine.gmem.sharing, np.nonzero(lanes)[1]
        assert sharing is not None
        report = machine.gmem.meeting(f"{what} {'from' if does == 'load' else 'to'} {buffer.name} of", lanes, line)
        everyone = np.ones(len(byte), bool)
        if does == "load":
            sharing.load(machine, buffer, byte, blocks, size, report)
            return
        sharing.store(machine, buffer, byte, blocks, size, everyone, report, atomic=does == "atomic")
        if does == "store":
            sharing.settle(machine, buffer, byte, blocks, size, everyone, report)

    def cells(self, at: Index, column: Index, size: int) -> Index:
        return self.machine.cmem.cells(at, column, size)

    # Landing --------------------------------------------------------------------------------------------------------

    def land(self, landing: NDArray[np.bool_]) -> None:
        """What completes on these mbarriers, (rows, blocks), is there now."""
        left = []
        for flight in self.flying:
            now = landing[flight.row, flight.mcolumn] if flight.row is not None else np.zeros(len(flight.at), bool)
            if now.any():
                self.write_shared(flight, now)
            if not now.all():
                left.append(self.keep(flight, ~now) if now.any() else flight)
        self.flying = left
        self.machine.mbarriers.land_engine(landing)

    def keep(self, flight: Flight, kept: NDArray[np.bool_]) -> Flight:
        """A flight with some of its copies only."""
        for name in ("at", "column", "byte", "source", "row", "mcolumn", "group"):
            value = getattr(flight, name)
            if value is not None:
                setattr(flight, name, value[kept])
        flight.words = None if flight.words is None else flight.words[:, kept]
        flight.lanes = _spread(kept, flight.lanes)
        return flight

    def write_shared(self, flight: Flight, now: NDArray[np.bool_]) -> None:
        shared = self.machine.smem.data
        rows = np.arange(flight.size // 4)[:, None]
        at, column = flight.at[now], flight.column[now]
        ordered = self.machine.ordered
        if flight.words is not None:
            words = flight.words[:, now]
        elif flight.buffer is not None:
            words = self.read_global(flight.buffer, flight.byte[now], flight.size)
        else:
            assert flight.source is not None
            words = shared[(flight.byte[now] >> 2) + rows, flight.source[now]]
            ordered.drain_ends(self.cells(flight.byte[now], flight.source[now], flight.size))
        place = (at >> 2) + rows, np.broadcast_to(column, (flight.size // 4, len(column)))
        if flight.operation is not None:
            flat = shared.reshape(-1)
            index = (place[0] * self.shape[1] + place[1]).T.reshape(-1)
            apply(flat, index, *flight.operation, [np.ascontiguousarray(words.T).reshape(-1)], False)
            return
        shared[place] = words
        ordered.fill_ends(self.cells(at, column, flight.size), np.broadcast_to(column, (1, len(column))))

    @staticmethod
    def read_global(buffer: Buffer, byte: Index, size: int) -> NDArray[np.uint32]:
        start, items = buffer.view("u", 4)
        first = (byte + buffer.base - start) >> 2
        return items[first + np.arange(size // 4)[:, None]]

    def fence(self, mask: Mask) -> None:
        """`fence.proxy.async`: what the lanes wrote themselves, the copy engine will see."""
        if self.machine.translations.ordered:
            self.machine.ordered.proxy_fence(self.machine.active(mask))

    # Bulk groups ----------------------------------------------------------------------------------------------------

    def commit(self, mask: Mask) -> None:
        self.committed += np.broadcast_to(self.machine.active(mask), self.shape)

    def wait(self, newest: int, reading: bool, mask: Mask) -> None:
        """Until at most the `newest` youngest groups of each lane are under way; `reading`: only their sources are read."""
        active = np.broadcast_to(self.machine.active(mask), self.shape)
        limit = self.committed - newest
        left = []
        for flight in self.flying:
            done = np.zeros(len(flight.at), bool)
            if flight.group is not None:
                done = active[flight.lanes] & (flight.group < limit[flight.lanes])
            if done.any():
                self.read.append(self.drain(flight, done))
            if not done.all():
                left.append(self.keep(flight, ~done) if done.any() else flight)
        self.flying = left
        if not reading:
            waiting = []
            for flight in self.read:
                assert flight.group is not None
                done = active[flight.lanes] & (flight.group < limit[flight.lanes])
                if done.any():
                    self.write_global(flight, done)
                if not done.all():
                    waiting.append(self.keep(flight, ~done) if done.any() else flight)
            self.read = waiting

    def drain(self, flight: Flight, done: NDArray[np.bool_]) -> Flight:
        """Read the source of some copies."""
        at, column = flight.at[done], flight.column[done]
        words = self.machine.smem.data[(at >> 2) + np.arange(flight.size // 4)[:, None], column]
        self.machine.ordered.drain_ends(self.cells(at, column, flight.size))
        assert flight.group is not None
        return Flight(flight.size, _spread(done, flight.lanes), flight.line, at, column, flight.buffer, flight.byte[done], words,
                      group=flight.group[done], operation=flight.operation)

    def write_global(self, flight: Flight, done: NDArray[np.bool_]) -> None:
        buffer = flight.buffer
        assert buffer is not None and flight.words is not None
        start, items = buffer.view("u", 4)
        first = (flight.byte[done] + buffer.base - start) >> 2
        index = first + np.arange(flight.size // 4)[:, None]
        words = flight.words[:, done]
        if flight.operation is None:
            items[index] = words
        else:
            self.reduce(buffer, flight, index, words)
        if buffer.written is not None:
            entry = (flight.byte[done] + buffer.base - buffer.origin) // buffer.unit
            buffer.written[entry + np.arange(max(1, flight.size // buffer.unit))[:, None]] = 1

    @staticmethod
    def reduce(buffer: Buffer, flight: Flight, index: Index, words: NDArray[np.uint32]) -> None:
        """`cp.reduce.async.bulk`: every item is added (or the like) to what is there."""
        assert flight.operation is not None
        name, kind = flight.operation
        codes = {"f32": "f4", "f64": "f8", "s32": "i4", "s64": "i8", "u64": "u8", "b64": "u8", "f16": "u2", "bf16": "u2"}
        code = codes.get(kind, "u4")
        size = int(code[1])
        start, items = buffer.view("u", size)
        byte = index[0] * 4 + buffer.view("u", 4)[0] - start
        items, per = items.view(code), flight.size // size
        place = byte // size + np.arange(per)[:, None]
        values = np.ascontiguousarray(words.T).view(code).reshape(-1, per).T
        apply(items, place.reshape(-1), name, kind, [np.ascontiguousarray(values).reshape(-1)], False)

    # Ends -----------------------------------------------------------------------------------------------------------

    def check_exit(self, columns: Index) -> None:
        """Blocks end: nothing may be on its way into or out of their shared memory."""
        for flight in self.flying:
            late = np.isin(flight.column, columns)
            if flight.source is not None:
                late |= np.isin(flight.source, columns)
            if late.any():
                does = "reads from" if flight.group is not None else "writes to"
                lanes = _spread(late, flight.lanes)
                self.machine.fault("race", f"the block may exit while this asynchronous copy still {does} its shared memory: nobody "
                                   "waited for it", lanes, flight.line, alive=False)

    def finish(self) -> None:
        """The chunk is done: what was read is written."""
        for flight in self.read:
            self.write_global(flight, np.ones(len(flight.at), bool))
        self.read = []


def _spread(values: NDArray[np.bool_], lanes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Lanes of those in `lanes` for which a flat array says so."""
    wide = np.zeros(lanes.shape, bool)
    wide[lanes] = values
    return wide
