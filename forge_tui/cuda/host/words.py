"""Shared and local memory: 32-bit words, one column for each block or thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.checks import SharedShadow
from forge_tui.cuda.host.memory import Lanes, Mask, fold

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine


class WordAddress:
    """One register of shared or local addresses, looked at once."""

    __slots__ = ("bits", "high", "lanes", "low", "mask", "rel", "rows", "word")


class WordMemory:
    """Memory in 32-bit words, one column for each owner: a block (shared) or a thread (local).

    `data` is (words, columns). The address of a lane and its column make an index; where all columns use the same
    address, the access is a copy of rows.
    """

    def __init__(self, machine: Machine, space: str, size: int, columns: NDArray[np.int64], count: int, granule: int) -> None:
        self.machine = machine
        self.space = space
        self.size = size
        self.columns = columns
        """Column of each lane: (1, blocks) for shared, (threads, blocks) for local."""
        self.count = count
        self.granule = granule
        """Smallest access of the kernel, bytes (at most 4): what the shadows are kept by."""
        self.data = np.full((-(-size // 4) + 2, count), 0x7FC0DEAD, np.uint32)
        self.shadow: SharedShadow | None = None
        self.written: NDArray[np.bool_] | None = None

    def prepare(self, raw: Lanes, mask: Mask) -> WordAddress | None:
        """Look at an address register (byte offsets) under the active lanes. None: no lane is active."""
        rel = raw.astype(np.int64) if raw.dtype.itemsize == 8 else raw.view(np.int32).astype(np.int64)
        address = WordAddress()
        address.mask, address.lanes = None, mask
        if mask is not None:
            folded = fold(mask, rel.shape)
            if not folded.any():
                return None
            if rel.size > 1:
                wide = np.broadcast_to(folded, rel.shape)
                rel = np.where(wide, rel, rel[np.unravel_index(wide.argmax(), wide.shape)])
            address.mask = folded
        address.low, address.high = int(rel.min()), int(rel.max())
        address.bits = int(np.bitwise_or.reduce(rel, axis=None))
        address.rel = rel
        word = rel >> 2
        address.word = word[:1, :1] if address.low == address.high else word
        address.rows = address.word[:, 0] if address.word.shape[1] == 1 and self.columns.shape[0] == 1 else None
        return address

    def check(self, address: WordAddress, offset: int, total: int, what: str, line: int | None) -> None:
        """Fault where an active lane leaves the space or is misaligned."""
        if address.low + offset < 0 or address.high + offset + total > self.size:
            at = address.rel + offset
            bad = (at < 0) | (at + total > self.size)
            first = int(at[bad].flat[0])
            self.machine.fault("out_of_bounds", f"{self.space} {what} of {total} bytes at byte {first}; there are {self.size}",
                               bad if address.lanes is None else bad & address.lanes, line)
        if (address.bits | offset) & (total - 1):
            bad = (address.rel + offset & total - 1) != 0
            if bad.any():
                self.machine.fault("misaligned", f"{self.space} {what} of {total} bytes at an address that is not a multiple of it",
                                   bad if address.lanes is None else bad & address.lanes, line)
        if self.shadow is not None:
            self.machine.sample_shared(address, offset, total, what, line)

    def granules(self, address: WordAddress, offset: int, total: int) -> list[tuple[NDArray[np.int64], int]]:
        """Granule index of every lane and the offsets from it that an access covers."""
        if self.granule == 4 and not offset & 3:
            first = address.word
            return [(first, (offset >> 2) + k) for k in range(max(1, total // 4))]
        first = (address.rel + offset) // self.granule
        return [(first, k) for k in range(max(1, total // self.granule))]

    def flat(self, address: WordAddress, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Word index times columns plus column of every lane, and the byte within the word."""
        at = address.rel + offset
        shape = np.broadcast_shapes(at.shape, self.columns.shape)
        return np.broadcast_to((at >> 2) * self.count, shape) + self.columns, at & 3

    def load(self, address: WordAddress | None, offset: int, size: int, results: tuple[Lanes | None, ...], kind: str,
             line: int | None, ordered: bool = False) -> None:
        if address is None:
            return
        total = size * len(results)
        self.check(address, offset, total, "load", line)
        for granule, k in self.granules(address, offset, total):
            if self.shadow is not None:
                self.shadow.read(granule, k, address.lanes, line, ordered)
            elif self.written is not None and address.low != address.high:
                # The compiler may load a constant place of a local array early and drop what it got: no fault then, but a NaN.
                self.check_written(granule + k, address, line)
        for k, d in enumerate(results):
            if d is not None:
                self.load_item(address, offset + k * size, size, d, kind)

    def load_item(self, address: WordAddress, offset: int, size: int, d: Lanes, kind: str) -> None:
        if size == 4 and d.itemsize == 4 and address.rows is not None:
            rows, table = (address.rows, self.data[offset >> 2:]) if offset >= 0 else (address.rows + (offset >> 2), self.data)
            if len(rows) == 1:
                d[...] = table[rows[0]]
            elif d.shape == (len(rows), self.count):
                table.take(rows, axis=0, out=d, mode="clip")
            else:
                d[...] = table.take(rows, axis=0, mode="clip")
            return
        if size == 4 and d.itemsize == 4 and address.word.size == 1 and self.columns.shape == d.shape:
            d[...] = self.data[int(address.word[0, 0]) + (offset >> 2)].reshape(d.shape)
            return
        index, byte = self.flat(address, offset)
        flat = self.data.reshape(-1)
        if size == 8:
            low = flat.take(index, mode="clip").astype(np.uint64)
            d[...] = low | flat.take(index + self.count, mode="clip").astype(np.uint64) << np.uint64(32)
        elif size == 4:
            d[...] = flat.view(f"{kind}4").take(index, mode="clip") if d.itemsize != 4 else flat.take(index, mode="clip")
        else:
            parts = 4 // size
            d[...] = flat.view(f"{kind}{size}").take(index * parts + byte // size, mode="clip")

    def store(self, address: WordAddress | None, offset: int, size: int, values: tuple[Lanes, ...], mask: Mask,
              line: int | None, ordered: bool = False) -> None:
        """Store consecutive items. `ordered` (volatile, release ...) accesses are how lanes signal each other, no races."""
        if address is None:
            return
        total = size * len(values)
        self.check(address, offset, total, "store", line)
        for k, value in enumerate(values):
            self.store_item(address, offset + k * size, size, value, mask, line, ordered)

    def store_item(self, address: WordAddress, offset: int, size: int, value: Lanes, mask: Mask, line: int | None,
                   ordered: bool) -> None:
        if size == 8:
            self.store_item(address, offset, 4, (value & np.uint64(0xFFFFFFFF)).astype(np.uint32), mask, line, ordered)
            self.store_item(address, offset + 4, 4, (value >> np.uint64(32)).astype(np.uint32), mask, line, ordered)
            return
        if value.dtype.itemsize != size:
            value = value.astype(f"u{size}")
        if self.store_rows(address, offset, size, value, mask, line, ordered):
            return
        shape = (self.machine.threads, self.machine.blocks)
        index, byte = self.flat(address, offset)
        parts = 4 // size
        index = np.broadcast_to(index * parts + byte // size if parts > 1 else index, shape)
        value = np.broadcast_to(value, shape)
        active = None if mask is None else np.broadcast_to(mask, shape)
        if active is not None:
            index, value = index[active], value[active]
        flat = self.data.reshape(-1).view(f"u{size}")
        old = flat[index] if self.shadow is not None else None
        flat[index] = value
        self.after_store(address, offset, size, mask, line, flat[index] != value if self.shadow else None,
                         None if old is None else old != value, active, shape, ordered)

    def store_rows(self, address: WordAddress, offset: int, size: int, value: Lanes, mask: Mask, line: int | None,
                   ordered: bool) -> bool:
        """The fast form: every block stores at the same words. False when it does not apply."""
        rows = address.rows
        if size != 4 or rows is None or mask is not None and mask.shape[1] > 1 or len(rows) == 1 and value.shape[0] > 1:
            return False
        rows = rows + (offset >> 2)
        if mask is not None:
            lanes = np.flatnonzero(np.broadcast_to(mask, (self.machine.threads, 1))[:, 0])
            rows = np.broadcast_to(rows, self.machine.threads)[lanes]
            value = value[lanes] if value.shape[0] > 1 else value
        old = self.data[rows] if self.shadow is not None and self.shadow.writer is not None else None
        self.data[rows] = value
        if self.shadow is not None:
            lost = len(rows) > 1 and len(np.unique(rows)) < len(rows) and (self.data[rows] != value).any(axis=1)
            changed = None if old is None else (old != value).any(axis=1)
            active = None if mask is None else np.broadcast_to(mask, (self.machine.threads, 1))
            shape = (self.machine.threads if len(rows) > 1 or mask is not None else 1, 1)
            self.after_store(address, offset, size, mask, line, lost if isinstance(lost, np.ndarray) else None, changed, active, shape,
                             ordered)
        elif self.written is not None:
            self.after_store(address, offset, size, mask, line, None, None, None, (1, 1), ordered)
        return True

    def after_store(self, address: WordAddress, offset: int, size: int, mask: Mask, line: int | None, lost: Lanes | None,
                    changed: Lanes | None, active: NDArray[np.bool_] | None, shape: tuple[int, int], ordered: bool) -> None:
        """Shadows of one stored item. `lost`: lanes whose value another lane overwrote in this very instruction."""
        if self.shadow is not None:
            if lost is not None and not ordered and lost.any():
                self.machine.fault("race", "several threads store different values to one shared word in one instruction",
                                   _unpack(lost, active, shape), line)
            differs = None if changed is None else _unpack(changed, active, shape)
            for granule, k in self.granules(address, offset, size):
                self.shadow.write(granule, k, mask, line, differs, ordered=ordered)
        elif self.written is not None:
            for granule, k in self.granules(address, offset, size):
                index = np.broadcast_to((granule + k) * self.count + self.columns, (self.machine.threads, self.machine.blocks))
                self.written.reshape(-1)[index if mask is None else index[np.broadcast_to(mask, index.shape)]] = True

    def check_written(self, granule: NDArray[np.int64], address: WordAddress, line: int | None) -> None:
        assert self.written is not None
        known = self.written.reshape(-1).take(granule * self.count + self.columns, mode="clip")
        bad = ~known if address.lanes is None else ~known & address.lanes
        if bad.any():
            self.machine.fault("uninitialized", f"reads {self.space} memory that nothing wrote", bad, line)


def _unpack(values: Lanes, active: NDArray[np.bool_] | None, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Lanes from the compressed form that indexing by a mask gave."""
    if active is None:
        return np.broadcast_to(values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1), shape)
    lanes = np.zeros(shape, bool)
    lanes[active] = values
    return lanes
