"""Memory as lanes see it: global buffers at made-up addresses, shared memory of each block, local memory of each thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.checks import SharedShadow

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Lanes = NDArray[np.generic]
Mask = NDArray[np.bool_] | None

BUFFER_SHIFT = 40
"""Buffer number `i` starts in the middle of the window `(i + 1) << 40`: an address says whose it is, however far off it is."""
MIDDLE = 1 << BUFFER_SHIFT - 1
SHARED_WINDOW = 0xFE << BUFFER_SHIFT
LOCAL_WINDOW = 0xFF << BUFFER_SHIFT
"""Where shared and local memory appear among generic addresses."""
MAX_BUFFERS = 0xFD


class Buffer:
    """One tensor, workspace or data table. Its made-up address keeps the real one's remainder modulo 256."""

    def __init__(self, name: str, data: NDArray[np.uint8], index: int, writable: bool, unit: int = 1,
                 tracked: bool = False, lead: int | None = None) -> None:
        self.name = name
        self.data = data
        self.writable = writable
        self.base = (index + 1 << BUFFER_SHIFT) + MIDDLE + (data.ctypes.data % 256 if lead is None else lead)
        self.size = len(data)
        self.unit = unit
        """Bytes per entry of `written`."""
        self.written = np.zeros(-(-len(data) // unit), np.uint8) if tracked else None
        """What has been stored, for buffers that start as garbage; None: all of it is there."""
        self.views: dict[tuple[str, int], tuple[int, Lanes]] = {}

    def view(self, kind: str, size: int) -> tuple[int, Lanes]:
        """Address of the first aligned item, and the items from there on."""
        found = self.views.get((kind, size))
        if found is None:
            skip = -self.base % size
            count = max(0, (self.size - skip) // size)
            items = self.data[skip:skip + count * size].view(f"{kind}{size}")
            found = self.views[kind, size] = (self.base + skip, items)
        return found


class Address:
    """One register of global addresses, looked at once: its range, its alignment, its index into the buffer."""

    __slots__ = ("buffer", "bits", "high", "indices", "lanes", "low", "mask", "raw")

    def __init__(self, raw: Lanes, mask: Mask, lanes: Mask) -> None:
        self.raw = raw
        self.mask = mask
        """Active lanes folded to the address's own axes; None: all."""
        self.lanes = lanes
        """Active lanes in full."""
        self.indices: dict[int, NDArray[np.int64]] = {}
        self.buffer: Buffer | None = None


def fold(mask: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """A mask over no more axes than `shape` has: lanes that share a value share its fate."""
    if shape[0] == 1 and mask.shape[0] > 1:
        mask = mask.any(axis=0, keepdims=True)
    if shape[1] == 1 and mask.shape[1] > 1:
        mask = mask.any(axis=1, keepdims=True)
    return mask


class GlobalMemory:
    """Loads and stores of buffers, range and alignment checked for every lane."""

    def __init__(self, machine: Machine, buffers: list[Buffer | None]) -> None:
        self.machine = machine
        self.buffers = buffers

    def prepare(self, raw: Lanes, mask: Mask) -> Address | None:
        """Look at an address register under the active lanes. None: no lane is active."""
        folded = None
        if mask is not None:
            folded = fold(mask, raw.shape)
            if not folded.any():
                return None
            if raw.size > 1:
                wide = np.broadcast_to(folded, raw.shape)
                raw = np.where(wide, raw, raw[np.unravel_index(wide.argmax(), wide.shape)])
            elif folded.size > 1:
                folded = folded.any(keepdims=True)
        address = Address(raw, folded, mask)
        address.low, address.high = int(raw.min()), int(raw.max())
        address.bits = int(np.bitwise_or.reduce(raw, axis=None))
        window = address.low >> BUFFER_SHIFT
        if window == address.high >> BUFFER_SHIFT and 0 < window <= len(self.buffers):
            address.buffer = self.buffers[window - 1]
        return address

    def locate(self, address: Address, offset: int, size: int, total: int, what: str, line: int | None) -> NDArray[np.int64]:
        """Item index of every lane. Faults if any active lane leaves the buffer or is misaligned."""
        buffer = address.buffer
        assert buffer is not None
        if address.low + offset < buffer.base or address.high + offset + total > buffer.base + buffer.size:
            at = (address.raw - np.uint64(buffer.base)).view(np.int64) + offset
            bad = (at < 0) | (at + total > buffer.size)
            self.outside(address, at, bad, buffer, total, what, line)
        if (address.bits | offset) & (total - 1):
            bad = (address.raw + np.uint64(offset % (1 << 64)) & np.uint64(total - 1)) != 0
            if bad.any():
                self.machine.fault("misaligned", f"{what} of {total} bytes at an address that is not a multiple of {total}, in "
                                   f"{buffer.name}", self.spread(bad, address), line)
        index = address.indices.get(size)
        if index is None:
            start = buffer.view("u", size)[0]
            index = (address.raw - np.uint64(start)).view(np.int64)
            if size > 1:
                index >>= size.bit_length() - 1
            address.indices[size] = index
        self.machine.sample_global(address, offset, total)
        return index + offset // size if offset else index

    def spread(self, bad: Lanes, address: Address) -> NDArray[np.bool_]:
        return bad & address.lanes if address.lanes is not None else bad

    def outside(self, address: Address, at: NDArray[np.int64], bad: Lanes, buffer: Buffer, total: int, what: str,
                line: int | None) -> None:
        first = int(at[bad].flat[0]) if bad.any() else 0
        side = f"{-first} bytes before its start" if first < 0 else f"at byte {first} of {buffer.size}"
        self.machine.fault("out_of_bounds", f"{what} of {total} bytes outside {buffer.name}: {side}", self.spread(bad, address), line)

    def pieces(self, address: Address, what: str, line: int | None):
        """An address register that leads into several buffers: one address for each of them."""
        windows = address.raw >> np.uint64(BUFFER_SHIFT)
        active = windows if address.mask is None else windows[np.broadcast_to(address.mask, windows.shape)]
        for window in np.unique(active):
            inside = windows == window
            if not 0 < window <= len(self.buffers) or self.buffers[int(window) - 1] is None:
                where = int(address.raw[inside].flat[0])
                text = "through a null pointer" if where < 1 << 20 else f"at {where:#x}, which is in no tensor"
                self.machine.fault("out_of_bounds", f"{what} {text}", self.spread(inside, address), line)
            mask = inside if address.lanes is None else inside & address.lanes
            piece = self.prepare(address.raw, mask)
            if piece is not None:
                yield piece, mask

    def load(self, address: Address | None, offset: int, size: int, results: tuple[Lanes | None, ...], kind: str,
             line: int | None, ordered: bool = False) -> None:
        """Load consecutive items into `results` (None: dropped). `kind` is `i` where narrow items are sign-extended."""
        if address is None:
            return
        if address.buffer is None:
            for piece, mask in self.pieces(address, "global load", line):
                parts = tuple(None if d is None else np.empty(np.broadcast_shapes(piece.raw.shape, d.shape), d.dtype) for d in results)
                self.load(piece, offset, size, parts, kind, line)
                for d, part in zip(results, parts, strict=True):
                    if d is not None and part is not None:
                        np.copyto(d, part, where=fold(mask, d.shape))
            return
        total = size * len(results)
        index = self.locate(address, offset, size, total, "global load", line)
        buffer = address.buffer
        if buffer.written is not None:
            self.check_written(address, buffer, offset, total, line)
        items = buffer.view(kind, size)[1]
        for k, d in enumerate(results):
            if d is None:
                continue
            source = items[k:] if k else items
            if d.dtype == source.dtype and d.shape == index.shape:
                source.take(index, out=d, mode="clip")
            else:
                d[...] = source.take(index, mode="clip")

    def store(self, address: Address | None, offset: int, size: int, values: tuple[Lanes, ...], mask: Mask,
              line: int | None, ordered: bool = False) -> None:
        """Store one item of each of `values`, consecutively; the highest lane wins where lanes meet."""
        if address is None:
            return
        if address.buffer is None:
            for piece, part in self.pieces(address, "global store", line):
                self.store(piece, offset, size, values, part, line)
            return
        buffer, total = address.buffer, size * len(values)
        index = self.locate(address, offset, size, total, "global store", line)
        self.check_writable(address, buffer, line)
        shape = np.broadcast_shapes(index.shape, *(v.shape for v in values), mask.shape if mask is not None else (1, 1))
        index = np.broadcast_to(index, shape)
        active = None if mask is None else np.broadcast_to(mask, shape)
        if active is not None:
            index = index[active]
        items = buffer.view("u", size)[1]
        for k, value in enumerate(values):
            if value.dtype.itemsize != size:
                value = value.astype(f"u{size}")
            value = np.broadcast_to(value, shape)
            (items[k:] if k else items)[index] = value if active is None else value[active]
        if buffer.written is not None:
            self.mark(buffer, index, size, total)

    def check_writable(self, address: Address, buffer: Buffer, line: int | None) -> None:
        if not buffer.writable:
            lanes = np.ones((1, 1), bool) if address.lanes is None else address.lanes
            self.machine.fault("read_only", f"global store to {buffer.name}, which is an input", lanes, line)

    def entries(self, buffer: Buffer, index: NDArray[np.int64], size: int, total: int) -> NDArray[np.int64]:
        """Entries of `written` that `total` bytes at item `index` cover, one more axis."""
        start = index * size + (buffer.view("u", size)[0] - buffer.base)
        return start[..., None] // buffer.unit + np.arange(max(1, total // buffer.unit))

    def mark(self, buffer: Buffer, index: NDArray[np.int64], size: int, total: int) -> None:
        assert buffer.written is not None
        if total == buffer.unit == size:
            buffer.written[index + (buffer.view("u", size)[0] - buffer.base) // size] = 1
        else:
            buffer.written[self.entries(buffer, index, size, total)] = 1

    def check_written(self, address: Address, buffer: Buffer, offset: int, total: int, line: int | None) -> None:
        assert buffer.written is not None
        start = (address.raw - np.uint64(buffer.base)).view(np.int64) + offset
        entries = start[..., None] // buffer.unit + np.arange(max(1, total // buffer.unit))
        known = buffer.written.take(entries, mode="clip").all(axis=-1)
        if not known.all():
            self.machine.fault("uninitialized", f"global load from {buffer.name} where nothing was stored",
                               self.spread(~known, address), line)


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
            self.machine.sample_shared(address, offset, total)

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
            elif self.written is not None:
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
        kept, flat = (index, value) if active is None else (index[active], value[active]), self.data.reshape(-1).view(f"u{size}")
        index, value = kept
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
