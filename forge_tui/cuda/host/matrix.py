"""Matrix instructions of a warp: `ldmatrix`, `stmatrix`, `movmatrix`, `mma.sync` and `wmma`.

Fragments are as the PTX ISA draws them ("Matrix fragments for mma"): with E elements in a register, thread `t` of a warp holds of A
the rows t / 4 and t / 4 + 8, and E consecutive columns from E (t % 4) on, of B the like with rows and columns exchanged, of C two
neighbouring columns. The layout of `wmma` fragments is unspecified there; here it is row by row over the lanes.

Products are exact and summed up in float64, then rounded once to the type of the accumulator: somewhat nearer than the hardware,
which drops bits that fall below the largest product (float32) on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host import fp8, halves
from forge_tui.cuda.host.memory import Mask

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Lanes = NDArray[np.generic]
Index = NDArray[np.int64]

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "f64": 64, "f32": 32, "s32": 32}
"""Of one element."""
TF32_MASK = np.uint32(0xFFFFE000)
"""The bits of a float32 that a tf32 operand has (PTX ISA: the lower 13 are ignored)."""
LANE = np.arange(32)


@dataclass(frozen=True)
class Layout:
    """Where the elements of a fragment lie: register, lane and place in the register of every (row, column)."""

    register: Index
    lane: Index
    place: Index


@cache
def layout_of(role: str, rows: int, columns: int, per: int) -> Layout:
    """Of `mma`. role: `a`, `b` or `c`; `per`: elements in a register (for `c` of 32 bits and more, 1)."""
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    if role == "a":
        tall = max(1, rows // 8)
        return Layout(row // 8 + tall * (column // (4 * per)), row % 8 * 4 + column % (4 * per) // per, column % per)
    if role == "b":
        return Layout(row // (4 * per), column * 4 + row % (4 * per) // per, row % per)
    if per == 2:
        return Layout(row // 8, row % 8 * 4 + column // 2, column % 2)
    return Layout(2 * (row // 8) + column % 2, row % 8 * 4 + column // 2, 0 * row)


@cache
def plain_layout(rows: int, columns: int, per: int) -> Layout:
    """Of `wmma`: row after row, `per` elements a lane, lane after lane."""
    linear = np.arange(rows * columns).reshape(rows, columns)
    return Layout(linear // per // 32, linear // per % 32, linear % per)


def decode(bits: Lanes, kind: str) -> Lanes:
    """Elements as numbers that multiply exactly in float64; integers as float64 too (sums stay below 2^53)."""
    if kind in ("f16", "bf16"):
        return halves.widen(bits, kind).astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        return fp8.widen(bits, kind).astype(np.float64)
    if kind == "tf32":
        return (bits & TF32_MASK).view(np.float32).astype(np.float64)
    return bits.view({"s8": "i1", "u8": "u1", "f64": "f8", "f32": "f4", "s32": "i4"}[kind]).astype(np.float64)


def encode(values: NDArray[np.float64], kind: str, saturate: bool) -> Lanes:
    """Sums as elements of the accumulator's type."""
    if kind == "f16":
        return halves.narrow_wide(values, "f16")
    if kind == "s32":
        whole = values.astype(np.int64)
        whole = np.clip(whole, -(1 << 31), (1 << 31) - 1) if saturate else whole
        return whole.astype(np.int32).view(np.uint32)
    return values.astype(np.float32).view(np.uint32) if kind == "f32" else values.view(np.uint64)


class Matrix:
    """The matrix instructions of one chunk."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.shape = (machine.threads, machine.blocks)
        self.warps = machine.threads // 32
        self.lane = np.arange(machine.threads)[:, None] % 32
        self.base = np.arange(machine.threads)[:, None] // 32 * 32

    def whole(self, mask: Mask, what: str, line: int | None) -> NDArray[np.bool_]:
        """The active lanes. Faults unless whole warps are here."""
        active = np.broadcast_to(self.machine.active(mask), self.shape)
        if self.shape[0] % 32 == 0:
            warps = active.reshape(self.warps, 32, -1)
            if (warps.any(axis=1) == warps.all(axis=1)).all():
                if self.machine.smem.shadow is not None:
                    self.machine.smem.shadow.warp_sync(active)
                return active
            bad = (warps & ~warps.all(axis=1, keepdims=True)).reshape(self.shape)
        else:
            bad = active & (self.base == self.shape[0] // 32 * 32)
            if not bad.any():
                bad = active
        self.machine.fault("divergent_barrier", f"{what}: not all 32 threads of the warp are here", bad, line)

    # Fragments ------------------------------------------------------------------------------------------------------

    def gather(self, registers: tuple[Lanes, ...], layout: Layout, kind: str) -> NDArray[np.float64]:
        """A fragment as (warps * blocks, rows, columns) numbers."""
        words = np.stack([np.broadcast_to(r, self.shape) for r in registers])
        bits = BITS[kind]
        items = words.view(f"u{bits // 8}").reshape(len(registers), self.warps, 32, self.shape[1], -1)
        found = items[layout.register, :, layout.lane, :, layout.place]          # (rows, columns, warps, blocks)
        return decode(np.ascontiguousarray(found.reshape(*layout.lane.shape, -1).transpose(2, 0, 1)), kind)

    def scatter(self, values: NDArray[np.float64], layout: Layout, kind: str, results: tuple[Lanes | None, ...], saturate: bool) -> None:
        """(warps * blocks, rows, columns) numbers into the registers of a fragment."""
        encoded = encode(values, kind, saturate).reshape(self.warps, self.shape[1], *layout.lane.shape)
        per = int(layout.place.max()) + 1
        items = np.zeros((len(results), self.warps, 32, self.shape[1], per), encoded.dtype)
        items[layout.register, :, layout.lane, :, layout.place] = encoded.transpose(2, 3, 0, 1)
        for k, d in enumerate(results):
            if d is not None:
                np.copyto(d, items[k].view(d.dtype).reshape(self.shape))

    def multiply(self, shape: tuple[int, int, int], kinds: tuple[str, str, str, str], a: tuple[Lanes, ...], b: tuple[Lanes, ...],
                 c: tuple[Lanes, ...], d: tuple[Lanes | None, ...], saturate: bool, mask: Mask, line: int | None) -> None:
        """`mma.sync`. kinds: of D, A, B and C."""
        self.whole(mask, "mma.sync", line)
        (m, n, k), (kd, ka, kb, kc) = shape, kinds
        left = self.gather(a, layout_of("a", m, k, max(1, 32 // BITS[ka])), ka)
        right = self.gather(b, layout_of("b", k, n, max(1, 32 // BITS[kb])), kb)
        total = left @ right + self.gather(c, layout_of("c", m, n, max(1, 32 // BITS[kc])), kc)
        self.scatter(total, layout_of("c", m, n, max(1, 32 // BITS[kd])), kd, d, saturate)

    def multiply_plain(self, shape: tuple[int, int, int], kinds: tuple[str, str, str, str], a: tuple[Lanes, ...], b: tuple[Lanes, ...],
                       c: tuple[Lanes, ...], d: tuple[Lanes | None, ...], saturate: bool, mask: Mask, line: int | None) -> None:
        """`wmma.mma`, of fragments in the layout of `load_plain`."""
        self.whole(mask, "wmma.mma", line)
        (m, n, k), (kd, ka, kb, kc) = shape, kinds
        per = [max(1, 32 // BITS[kind]) for kind in kinds]
        left, right = self.gather(a, plain_layout(m, k, per[1]), ka), self.gather(b, plain_layout(k, n, per[2]), kb)
        total = left @ right + self.gather(c, plain_layout(m, n, per[3]), kc)
        self.scatter(total, plain_layout(m, n, per[0]), kd, d, saturate)

    def load_plain(self, memory, raw: Lanes, offset: int, stride: Lanes, by_row: bool, shape: tuple[int, int], kind: str,
                   results: tuple[Lanes | None, ...], mask: Mask, line: int | None) -> None:
        """`wmma.load`: a matrix whose rows (or columns) lie `stride` elements apart."""
        active = self.whole(mask, "wmma.load", line)
        bytes_, per = BITS[kind] // 8, max(1, 32 // BITS[kind])
        for k, d in enumerate(results):
            if d is None:
                continue
            word = np.zeros((*self.shape, per), f"u{bytes_}")
            for place, (at, lanes) in enumerate(self.elements(k, per, stride, by_row, shape, bytes_)):
                item = np.zeros(self.shape, f"u{bytes_}")
                here = active & lanes
                address = memory.prepare(raw + at.astype(raw.dtype), here)
                memory.load(address, offset, bytes_, (item,), "u", line)
                word[..., place] = item
            np.copyto(d, word.view(d.dtype)[..., 0])

    def store_plain(self, memory, raw: Lanes, offset: int, stride: Lanes, by_row: bool, shape: tuple[int, int], kind: str,
                    values: tuple[Lanes, ...], mask: Mask, line: int | None) -> None:
        """`wmma.store`."""
        active = self.whole(mask, "wmma.store", line)
        bytes_, per = BITS[kind] // 8, max(1, 32 // BITS[kind])
        for k, value in enumerate(values):
            items = np.ascontiguousarray(np.broadcast_to(value, self.shape))[..., None].view(f"u{bytes_}")
            for place, (at, lanes) in enumerate(self.elements(k, per, stride, by_row, shape, bytes_)):
                here = active & lanes
                address = memory.prepare(raw + at.astype(raw.dtype), here)
                memory.store(address, offset, bytes_, (np.ascontiguousarray(items[..., place]),), here, line)

    def elements(self, register: int, per: int, stride: Lanes, by_row: bool, shape: tuple[int, int], bytes_: int):
        """Of each place of one register: byte offset from the matrix's start of every lane's element, and which lanes have one."""
        size = shape[0] * shape[1]
        step = stride.astype(np.int64)
        for place in range(per):
            linear = (register * 32 + self.lane) * per + place
            held = np.broadcast_to(linear < size, self.shape)
            row, column = linear % size // shape[1], linear % size % shape[1]
            yield (row * step + column if by_row else column * step + row) * bytes_, held

    # 8 x 8 matrices of 16-bit elements --------------------------------------------------------------------------------

    def load(self, memory, raw: Lanes, offset: int, trans: bool, results: tuple[Lanes | None, ...], mask: Mask,
             line: int | None) -> None:
        """`ldmatrix`: lane `8 i + r` names row `r` of matrix `i`; lane `t` gets two elements of row `t / 4` of each."""
        active = self.whole(mask, "ldmatrix", line)
        address = memory.prepare(raw, active & (self.lane < 8 * len(results)))
        words = tuple(np.zeros(self.shape, np.uint32) for _ in range(4))
        memory.load(address, offset, 4, words, "u", line)
        rows = np.stack(words, axis=2)                                          # (threads, blocks, 4): the row a lane names
        for i, d in enumerate(results):
            if d is not None:
                np.copyto(d, self.share(rows, i, trans))

    def share(self, rows: NDArray[np.uint32], i: int, trans: bool) -> Lanes:
        """What every lane gets of matrix `i`."""
        lane = self.lane[:, 0]
        first = self.base[:, 0] + 8 * i
        if not trans:
            return rows[first + lane // 4, :, lane % 4]
        items = np.ascontiguousarray(rows).view(np.uint16)                      # (threads, blocks, 8)
        low, high = (items[first + lane % 4 * 2 + k, :, lane // 4].astype(np.uint32) for k in (0, 1))
        return low | high << np.uint32(16)

    def store(self, memory, raw: Lanes, offset: int, trans: bool, values: tuple[Lanes, ...], mask: Mask, line: int | None) -> None:
        """`stmatrix`: the inverse of `ldmatrix`."""
        active = self.whole(mask, "stmatrix", line)
        lane, base = self.lane[:, 0], self.base[:, 0]
        rows = np.zeros((*self.shape, 4), np.uint32)
        for i, value in enumerate(values):
            wide = np.ascontiguousarray(np.broadcast_to(value, self.shape))
            mine = lane // 8 == i
            for k in range(4):
                if not trans:
                    word = wide[base + lane % 8 * 4 + k]
                else:
                    halves_ = wide.view(np.uint16).reshape(*self.shape, 2)
                    low, high = (halves_[base + (2 * k + h) * 4 + lane % 8 // 2, :, lane % 2].astype(np.uint32) for h in (0, 1))
                    word = low | high << np.uint32(16)
                rows[mine, :, k] = word[mine]
        here = active & (self.lane < 8 * len(values))
        memory.store(memory.prepare(raw, here), offset, 4, tuple(np.ascontiguousarray(rows[..., k]) for k in range(4)), here, line)

    def transpose(self, value: Lanes, d: Lanes, mask: Mask, line: int | None) -> None:
        """`movmatrix.trans`."""
        self.whole(mask, "movmatrix", line)
        items = np.ascontiguousarray(np.broadcast_to(value, self.shape)).view(np.uint16).reshape(*self.shape, 2)
        lane, base = self.lane[:, 0], self.base[:, 0]
        low, high = (items[base + (lane % 4 * 2 + k) * 4 + lane // 8, :, lane // 4 % 2].astype(np.uint32) for k in (0, 1))
        np.copyto(d, low | high << np.uint32(16))
