"""Atomics, in a fixed order: lane after lane, by thread and then block, as if one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host import halves
from forge_tui.cuda.host.clusters import ClusterMemory, FarAddress
from forge_tui.cuda.host.generic import GenericMemory, Piece
from forge_tui.cuda.host.memory import Address, GlobalMemory, fold
from forge_tui.cuda.host.words import WordAddress, WordMemory

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Lanes = NDArray[np.generic]
Memory = GlobalMemory | WordMemory | ClusterMemory | GenericMemory
Mask = NDArray[np.bool_] | None

HALF = {"f16": "f16", "f16x2": "f16", "bf16": "bf16", "bf16x2": "bf16"}
UNORDERED = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
"""Operations NumPy can apply to repeated indices itself, where nobody asks what was there before."""


class Atomics:
    """Read-modify-write of any memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __call__(self, memory: Memory, address: Address | WordAddress | FarAddress | list[Piece] | None, offset: int, operation: str,
                 kind: str, values: tuple[Lanes, ...], d: Lanes | None, mask: Mask, line: int | None) -> None:
        """One `atom` or `red`. `d` receives what was there before each lane's turn; None: not asked."""
        if address is None:
            return
        for items, index, lanes in self.places(memory, address, offset, values[0].dtype, mask, line):
            if self.machine.sampling:
                self.machine.tally.atomic(self.machine, index, lanes, line)
            taken = [np.broadcast_to(v, lanes.shape)[lanes] for v in values]
            before = apply(items, index, operation, kind, taken, d is not None)
            if d is not None:
                wide = np.zeros(lanes.shape, d.dtype)
                wide[lanes] = before
                np.copyto(d, wide, where=fold(lanes, d.shape))

    def vector(self, memory: Memory, address: Address | WordAddress | FarAddress | list[Piece] | None, offset: int, operation: str,
               kind: str, values: tuple[Lanes, ...], results: tuple[Lanes | None, ...], mask: Mask, line: int | None) -> None:
        """An `atom` or `red` of neighbouring items, each atomic by itself; the whole must be aligned."""
        size = values[0].dtype.itemsize
        if isinstance(address, Address) and address.buffer is not None:
            self.machine.gmem.locate(address, offset, size * len(values), "global atomic", line)
        for k, value in enumerate(values):
            self(memory, address, offset + k * size, operation, kind, (value,), results[k] if results else None, mask, line)

    def places(self, memory: Memory, address: Address | WordAddress | FarAddress | list[Piece], offset: int, dtype: np.dtype[np.generic],
               mask: Mask, line: int | None):
        """Where the lanes operate: items, index of each active lane, active lanes; one of these for each buffer."""
        machine = self.machine
        if isinstance(address, list):       # generic addresses: pieces of lanes by memory
            for piece_memory, piece, part in address:
                yield from self.places(piece_memory, piece, offset, dtype, part, line)
            return
        shape = (machine.threads, machine.blocks)
        lanes = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        size = dtype.itemsize
        if isinstance(address, FarAddress):
            index = machine.cmem.update(address, offset, size, line)
            if size in (2, 4):
                yield machine.smem.data.reshape(-1).view(dtype), index, address.active
            else:
                yield from self.wide_words(machine.smem, index, dtype, address.active)
            return
        if isinstance(address, WordAddress):
            memory = machine.smem if isinstance(memory, ClusterMemory) else memory
            assert isinstance(memory, WordMemory)
            memory.check(address, offset, size, "atomic", line)
            if memory.shadow is not None:
                for granule, k in memory.granules(address, offset, size):
                    memory.shadow.atomic(granule, k, mask, line)
            if size not in (2, 4):
                index, _ = memory.flat(address, offset)
                yield from self.wide_words(memory, np.broadcast_to(index, shape)[lanes], dtype, lanes)
                return
            index, byte = memory.flat(address, offset)
            parts = 4 // size
            index = np.broadcast_to(index * parts + byte // size, shape)[lanes]
            yield memory.data.reshape(-1).view(dtype), index, lanes
            return
        assert isinstance(memory, GlobalMemory)
        if address.buffer is None:
            for piece, part in memory.pieces(address, "global atomic", line):
                yield from self.places(memory, piece, offset, dtype, part, line)
            return
        index = memory.locate(address, offset, size, "global atomic", line)
        memory.check_writable(address, address.buffer, line)
        if address.buffer.written is not None:
            memory.check_written(address, address.buffer, index, size, line)
        if memory.sharing is not None:
            memory.enter_atomic(address, index, size, lanes, line)
        yield address.buffer.view("u", size)[1].view(dtype), np.broadcast_to(index, shape)[lanes], lanes

    def wide_words(self, memory: WordMemory, index: NDArray[np.int64], dtype: np.dtype[np.generic], lanes: NDArray[np.bool_]):
        """64-bit items of shared memory: its two words lie a row apart, so they are joined, used and split again."""
        places, which = np.unique(index, return_inverse=True)
        flat = memory.data.reshape(-1)
        joined = flat[places].astype(np.uint64) | flat[places + memory.count].astype(np.uint64) << np.uint64(32)
        yield joined.view(dtype), which.reshape(-1), lanes
        flat[places] = (joined & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        flat[places + memory.count] = (joined >> np.uint64(32)).astype(np.uint32)


def apply(items: Lanes, index: NDArray[np.int64], operation: str, kind: str, values: list[Lanes],
          wanted: bool) -> Lanes | None:
    """Apply to `items[index]` lane by lane; returns what each lane found, if wanted."""
    if not wanted and operation in UNORDERED and kind not in HALF:
        UNORDERED[operation].at(items, index, values[0])
        return None
    before = np.zeros(len(index), items.dtype)
    order = np.argsort(index, kind="stable")
    place = index[order]
    first = np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(place) else np.zeros(0, np.int64)
    length = np.diff(np.r_[first, len(place)])
    if operation == "add" and items.dtype.kind in "ui" and kind not in HALF:
        add_sorted(items, place, order, first, length, values[0], before)
        return before
    for turn in range(int(length.max(initial=0))):      # the n-th lane of every place at once
        lanes = order[first[length > turn] + turn]
        at = index[lanes]
        before[lanes] = old = items[at]
        items[at] = combine(operation, kind, old, [v[lanes] for v in values])
    return before


def add_sorted(items: Lanes, place: NDArray[np.int64], order: NDArray[np.int64], first: NDArray[np.int64],
               length: NDArray[np.int64], value: Lanes, before: Lanes) -> None:
    """Integer addition by running sums: wrap-around makes differences of sums exact."""
    ordered = value[order]
    total = np.cumsum(ordered, dtype=items.dtype)
    start = np.repeat(total[first] - ordered[first], length)
    before[order] = items[place] + (total - ordered - start)
    last = first + length - 1
    items[place[first]] += total[last] - (total[first] - ordered[first])


def combine(operation: str, kind: str, old: Lanes, values: list[Lanes]) -> Lanes:
    """The new value of each place."""
    value = values[0]
    if kind in HALF and operation in ("add", "min", "max"):
        result = np.empty_like(old)
        halves.half_operation(operation, HALF[kind], (old[None], value[None]), result[None])
        return result
    if operation in UNORDERED:
        return UNORDERED[operation](old, value)
    if operation == "exch":
        return value
    if operation == "cas":
        return np.where(old == value, values[1], old)
    if operation == "inc":
        return np.where(old >= value, old.dtype.type(0), old + old.dtype.type(1))
    return np.where((old == 0) | (old > value), value, old - old.dtype.type(1))      # dec
