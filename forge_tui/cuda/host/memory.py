"""Global memory as lanes see it: buffers at made-up addresses, every access checked for range and alignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine
    from forge_tui.cuda.host.sharing import Sharing

Lanes = NDArray[np.generic]
Mask = NDArray[np.bool_] | None

BUFFER_SHIFT = 40
"""Buffer number `i` starts in the middle of the window `(i + 1) << 40`: an address says whose it is, however far off it is."""
MIDDLE = 1 << BUFFER_SHIFT - 1
SHARED_WINDOW = 0xFE << BUFFER_SHIFT
LOCAL_WINDOW = 0xFF << BUFFER_SHIFT
"""Where shared and local memory appear among generic addresses."""
MAX_BUFFERS = 0xFD
FEW = 1024
"""Lanes below which the form of their addresses is not worth looking at."""


ITEMS = {("u", 1): "u1", ("u", 2): "u2", ("u", 4): "u4", ("u", 8): "u8", ("u", 16): "c16",
         ("i", 1): "i1", ("i", 2): "i2", ("i", 4): "i4", ("i", 8): "i8"}
"""NumPy's type for an item by kind and bytes; complex numbers are its only 16-byte type that it copies fast."""


class Buffer:
    """One tensor, workspace or data table. Its made-up address keeps the real one's remainder modulo 256."""

    def __init__(self, name: str, data: NDArray[np.uint8], index: int, writable: bool, unit: int = 1,
                 tracked: bool = False, lead: int | None = None) -> None:
        self.name = name
        self.data = data
        self.writable = writable
        lead = data.ctypes.data % 256 if lead is None else lead
        self.base = (index + 1 << BUFFER_SHIFT) + MIDDLE + lead
        self.origin = self.base - lead
        """Multiple of 256 at or before the base."""
        self.size = len(data)
        self.unit = unit
        """Bytes per entry of `written`."""
        self.written = np.zeros((lead + len(data)) // unit + 16, np.uint8) if tracked else None
        """What has been stored, an entry a unit from the origin on, for buffers that start as garbage; None: all is there."""
        self.views: dict[tuple[str, int], tuple[int, Lanes]] = {}

    def view(self, kind: str, size: int) -> tuple[int, Lanes]:
        """Address of the first aligned item, and the items from there on."""
        found = self.views.get((kind, size))
        if found is None:
            skip = -self.base % size
            count = max(0, (self.size - skip) // size)
            items = self.data[skip:skip + count * size].view(ITEMS[kind, size])
            found = self.views[kind, size] = (self.base + skip, items)
        return found

    def entries(self, index: NDArray[np.int64], size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], int]:
        """Where `written` keeps the items `index` of `size` bytes: a view of it, the index there, the value of a whole item."""
        assert self.written is not None
        count = max(1, size // self.unit)
        start = self.view("u", size)[0] - self.origin
        if count <= 8:
            view = self.written[:len(self.written) // count * count].view(f"u{count}")
            step = max(size, self.unit)
            entry = index if step == size and not start else (index * size + start) // step
            return view, entry, int.from_bytes(b"\1" * count, "little")
        view = self.written[:len(self.written) // 16 * 16].view("c16")
        return view, index + start // size, 0


class Address:
    """One register of global addresses, looked at once: its range, its alignment, its index into the buffer."""

    __slots__ = ("_steps", "buffer", "bits", "high", "indices", "lanes", "low", "mask", "raw")

    def __init__(self, raw: Lanes, mask: Mask, lanes: Mask) -> None:
        self.raw = raw
        self.mask = mask
        """Active lanes folded to the address's own axes; None: all."""
        self.lanes = lanes
        """Active lanes in full."""
        self.indices: dict[tuple[int, int], NDArray[np.int64]] = {}
        self.buffer: Buffer | None = None
        self._steps: tuple[int, int] | None | bool = False

    def steps(self) -> tuple[int, int] | None:
        """Bytes from thread to thread and from block to block, where all lanes are here and at even steps; else None."""
        if self._steps is False:
            self._steps = _even_steps(self.raw) if self.lanes is None else None
        return self._steps      # type: ignore[return-value]


def _even_steps(raw: Lanes) -> tuple[int, int] | None:
    rows, columns = raw.shape
    down, across = (raw[1:, 0] - raw[:-1, 0]).view(np.int64), (raw[0, 1:] - raw[0, :-1]).view(np.int64)
    if rows < 2 and columns < 2 or (down != down[:1]).any() or (across != across[:1]).any():
        return None
    if rows > 1 and columns > 1 and (raw - raw[:1] != raw[:, :1] - raw[0, 0]).any():
        return None
    return int(down[0]) if rows > 1 else 0, int(across[0]) if columns > 1 else 0


def apart(steps: tuple[int, int], shape: tuple[int, int], total: int) -> bool:
    """Whether accesses of `total` bytes, `steps` apart along the axes of `shape`, never overlap."""
    (near, few), (far, many) = sorted((s, n) for s, n in zip(steps, shape, strict=True))
    return (few == 1 or near >= total) and (many == 1 or far >= (near * (few - 1) + total if few > 1 else total))


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
        self.sharing: Sharing | None = None

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
        steps = address.steps() if raw.size >= FEW else None
        if steps is not None:       # the corners say all
            first = int(raw[0, 0])
            ends = [step * (count - 1) for step, count in zip(steps, raw.shape, strict=True)]
            address.low, address.high = first + sum(min(0, end) for end in ends), first + sum(max(0, end) for end in ends)
            address.bits = first | abs(steps[0]) | abs(steps[1])
        else:
            address.low, address.high = int(raw.min()), int(raw.max())
            address.bits = int(np.bitwise_or.reduce(raw, axis=None))
        window = address.low >> BUFFER_SHIFT
        if window == address.high >> BUFFER_SHIFT and 0 < window <= len(self.buffers):
            address.buffer = self.buffers[window - 1]
        return address

    def locate(self, address: Address, offset: int, total: int, what: str, line: int | None) -> NDArray[np.int64]:
        """Index of every lane among the buffer's items of `total` bytes. Faults if any active lane leaves the buffer or is misaligned."""
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
        self.machine.sample_global(address, offset, total, what, line)
        skew = offset % total           # the register itself need not be a multiple; with the offset it is
        index = address.indices.get((total, skew))
        if index is None:
            index = (address.raw - np.uint64(buffer.view("u", total)[0] - skew)).view(np.int64)
            if total > 1:
                index >>= total.bit_length() - 1
            address.indices[total, skew] = index
        return index + offset // total if offset >= total or offset < 0 else index

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
                parts = tuple(None if d is None else np.empty(np.broadcast_shapes(piece.raw.shape, d.shape), d.dtype)
                              for d in results)
                self.load(piece, offset, size, parts, kind, line)
                for d, part in zip(results, parts, strict=True):
                    if d is not None and part is not None:
                        np.copyto(d, part, where=fold(mask, d.shape))
            return
        total, buffer = size * len(results), address.buffer
        index = self.locate(address, offset, total, "global load", line)
        if buffer.written is not None:
            self.check_written(address, buffer, index, total, line)
        if self.sharing is not None and buffer.writable and not ordered:
            self.enter_load(address, offset, total, line)
        if self.load_grid(address, offset, size, results, kind):
            return
        if len(results) > 1:
            parts = buffer.view("u", total)[1].take(index, mode="clip").view(f"{kind}{size}").reshape(*index.shape, len(results))
            for k, d in enumerate(results):
                if d is not None:
                    d[...] = parts[..., k]
            return
        (d,), items = results, buffer.view(kind, size)[1]
        if d is None:
            return
        if d.dtype == items.dtype and d.shape == index.shape:
            items.take(index, out=d, mode="clip")
        else:
            d[...] = items.take(index, mode="clip")

    def load_grid(self, address: Address, offset: int, size: int, results: tuple[Lanes | None, ...], kind: str) -> bool:
        """The fast form: all lanes load, at even steps. False when it does not apply."""
        buffer, shape = address.buffer, address.raw.shape
        assert buffer is not None
        steps = address.steps() if address.raw.size >= FEW else None
        if steps is None:
            return False
        start = int(address.raw[0, 0]) + offset - buffer.base
        for k, d in enumerate(results):
            if d is not None:
                d[...] = np.ndarray(shape, f"{kind}{size}", buffer.data, start + k * size, steps)
        return True

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
        index = self.locate(address, offset, total, "global store", line)
        self.check_writable(address, buffer, line)
        if mask is None and self.store_grid(address, offset, size, values, ordered):
            return
        shape = np.broadcast_shapes(index.shape, *(v.shape for v in values), mask.shape if mask is not None else (1, 1))
        items = buffer.view("u", total)[1]
        if len(values) > 1:
            packed = np.empty((*shape, len(values)), f"u{size}")
            for k, value in enumerate(values):
                packed[..., k] = value
            value = packed.view(items.dtype)[..., 0]
        else:
            value = np.broadcast_to(values[0].astype(items.dtype, copy=False), shape)
        index = np.broadcast_to(index, shape)
        if self.sharing is not None and not ordered:
            index = self.store_shared(address, total, items, index, value, mask, line)
        else:
            if mask is not None:
                active = np.broadcast_to(mask, shape)
                index, value = index[active], value[active]
            items[index] = value
        if buffer.written is not None:
            view, entry, full = buffer.entries(index, total)
            view[entry] = full if full else np.full(16, 1, np.uint8).view("c16")[0]

    def store_grid(self, address: Address, offset: int, size: int, values: tuple[Lanes, ...], ordered: bool) -> bool:
        """The fast form: all lanes store, at even steps, no two at one place. False when it does not apply."""
        buffer, total, shape = address.buffer, size * len(values), address.raw.shape
        assert buffer is not None
        if address.raw.size < FEW or any(v.shape[0] > shape[0] or v.shape[1] > shape[1] for v in values):
            return False
        steps = address.steps()
        if steps is None or not apart(steps, shape, total):
            return False
        start = int(address.raw[0, 0]) + offset - buffer.base
        unit = buffer.unit
        if buffer.written is not None and (start + buffer.base - buffer.origin | steps[0] | steps[1] | total) % unit:
            return False
        if self.sharing is not None and not ordered and not (
                shape[1] == self.machine.blocks and self.sharing.grid(self.machine, buffer, start, steps, shape, total, store=True)):
            return False
        for k, value in enumerate(values):
            np.ndarray(shape, f"u{size}", buffer.data, start + k * size, steps)[...] = value
        if buffer.written is not None:
            first = (start + buffer.base - buffer.origin) // unit
            strides = (steps[0] // unit, steps[1] // unit, 1)
            np.ndarray((*shape, total // unit), np.uint8, buffer.written, first, strides)[...] = 1
        return True

    # Blocks that meet at one place ----------------------------------------------------------------------------------

    def enter_load(self, address: Address, offset: int, total: int, line: int | None) -> None:
        """Tell the launch's `sharing` of a load."""
        buffer, machine = address.buffer, self.machine
        assert buffer is not None and self.sharing is not None
        shape, steps = address.raw.shape, address.steps()
        start = int(address.raw[0, 0]) + offset - buffer.base
        if steps is not None and shape[1] == machine.blocks and apart(steps, shape if steps[0] else (1, shape[1]), total) \
                and self.sharing.grid(machine, buffer, start, steps, shape, total, store=False):
            return
        lanes = np.broadcast_to(machine.active(address.lanes), (machine.threads, machine.blocks))
        if shape[0] == 1:
            lanes = lanes.any(axis=0, keepdims=True)
        at = np.broadcast_to((address.raw - np.uint64(buffer.base)).view(np.int64) + offset, lanes.shape)[lanes]
        self.sharing.load(machine, buffer, at, np.nonzero(lanes)[1], total,
                          self.meeting(f"global load from {buffer.name} of", lanes, line))

    def store_shared(self, address: Address, total: int, items: Lanes, index: NDArray[np.int64], value: Lanes, mask: Mask,
                     line: int | None) -> NDArray[np.int64]:
        """Store, and tell the launch's `sharing` of it; returns the index of every lane that stores."""
        buffer, machine = address.buffer, self.machine
        assert buffer is not None and self.sharing is not None
        lanes = np.broadcast_to(machine.active(mask), (machine.threads, machine.blocks))
        index, value = np.broadcast_to(index, lanes.shape)[lanes], np.broadcast_to(value, lanes.shape)[lanes]
        at, blocks = index * total + (buffer.view("u", total)[0] - buffer.base), np.nonzero(lanes)[1]
        fault = self.meeting(f"global store to {buffer.name} over", lanes, line)
        self.sharing.store(machine, buffer, at, blocks, total, items[index] != value, fault)
        items[index] = value
        self.sharing.settle(machine, buffer, at, blocks, total, items[index] != value, fault)
        return index

    def enter_atomic(self, address: Address, index: NDArray[np.int64], size: int, lanes: NDArray[np.bool_], line: int | None) -> None:
        """Tell the launch's `sharing` of an atomic on the items `index`."""
        buffer, machine = address.buffer, self.machine
        assert buffer is not None and self.sharing is not None
        at = np.broadcast_to(index, lanes.shape)[lanes] * size + (buffer.view("u", size)[0] - buffer.base)
        self.sharing.store(machine, buffer, at, np.nonzero(lanes)[1], size, np.ones(len(at), bool),
                           self.meeting(f"atomic on {buffer.name} over", lanes, line), atomic=True)

    def meeting(self, what: str, lanes: NDArray[np.bool_], line: int | None) -> Callable[[str, NDArray[np.bool_]], None]:
        """How `sharing` reports lanes, of those of `lanes`, that meet another block."""
        def report(whose: str, bad: NDArray[np.bool_]) -> None:
            found = np.zeros(lanes.shape, bool)
            found[lanes] = bad
            self.machine.fault("race", f"{what} {whose} in the same launch: nothing orders the two blocks", found, line)
        return report

    def fence(self, mask: Mask) -> None:
        if self.sharing is not None:
            self.sharing.fence(self.machine, self.machine.active(mask))

    def signal(self, mask: Mask, looks: bool, publishes: bool) -> None:
        """An atomic, or a volatile access: what blocks tell each other by."""
        if self.sharing is not None:
            self.sharing.signal(self.machine, self.machine.active(mask), looks, publishes)

    def check_writable(self, address: Address, buffer: Buffer, line: int | None) -> None:
        if not buffer.writable:
            lanes = np.ones((1, 1), bool) if address.lanes is None else address.lanes
            self.machine.fault("read_only", f"global store to {buffer.name}, which is an input", lanes, line)

    def check_written(self, address: Address, buffer: Buffer, index: NDArray[np.int64], total: int, line: int | None) -> None:
        view, entry, full = buffer.entries(index, total)
        found = view.take(entry, mode="clip")
        known = found == (full if full else np.full(16, 1, np.uint8).view("c16")[0])
        if not known.all():
            self.machine.fault("uninitialized", f"global load from {buffer.name} where nothing was stored",
                               self.spread(~known, address), line)
