"""Clusters: which blocks belong together, shared memory of another block, and addresses that lead there.

A `shared::cluster` address holds the rank of its block plus one in its top byte; 0 stands for the block that uses it, so that
every `shared::cta` address is one. Blocks of a cluster are neighbours among the columns of a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.memory import BUFFER_SHIFT, SHARED_WINDOW, Lanes, Mask, fold
from forge_tui.cuda.host.words import WordAddress

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

Index = NDArray[np.int64]

RANK_SHIFT = 24
OFFSET = (1 << RANK_SHIFT) - 1
LOW_WORD = np.uint64(0xFFFFFFFF)


class FarAddress:
    """One register of addresses of which some lead to another block, and the lanes meant."""

    __slots__ = ("active", "raw")

    def __init__(self, raw: Lanes, active: NDArray[np.bool_]) -> None:
        self.raw, self.active = raw, active


class ClusterMemory:
    """Shared memory of all blocks of a cluster, as loads, stores and atomics by `shared::cluster` or generic addresses see it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.shape = (machine.threads, machine.blocks)
        self.columns = np.broadcast_to(np.arange(machine.blocks), self.shape)
        self.first = np.arange(machine.blocks) // machine.cluster_size * machine.cluster_size
        """Column of the first block of each block's cluster."""

    # Addresses ------------------------------------------------------------------------------------------------------

    def active(self, mask: Mask) -> NDArray[np.bool_]:
        return np.broadcast_to(self.machine.active(mask), self.shape)

    def map(self, d: Lanes, address: Lanes, rank: Lanes, mask: Mask, line: int | None) -> None:
        """`mapa`: the address of the same variable in the block of that rank."""
        size = self.machine.cluster_size
        bad = rank >= size
        if bad.any() and (bad & self.machine.active(mask)).any():
            self.machine.fault("out_of_bounds", f"mapa to block rank {int(rank[bad].flat[0])} of a cluster of {size}",
                               bad & self.machine.active(mask), line)
        kind = d.dtype.type
        kept = OFFSET if d.itemsize == 4 else OFFSET | ~0xFFFFFFFF & 0xFFFFFFFFFFFFFFFF       # a generic address keeps its window
        near = address & kind(kept)
        np.copyto(d, near | (rank.astype(kind) + kind(1)) << kind(RANK_SHIFT))

    def rank_of(self, d: Lanes, address: Lanes) -> None:
        """`getctarank`: the rank of the block an address leads to."""
        named = (address >> address.dtype.type(RANK_SHIFT) & address.dtype.type(255)).astype(np.int64)
        own = np.arange(self.machine.blocks)[None, :] - self.first
        np.copyto(d, np.where(named > 0, named - 1, own), casting="unsafe")

    def is_near(self, address: Lanes) -> NDArray[np.bool_]:
        """Lanes whose generic or `shared::cluster` address leads to their own block."""
        named = (address >> address.dtype.type(RANK_SHIFT) & address.dtype.type(255)).astype(np.int64)
        return (named == 0) | (named == np.arange(self.machine.blocks)[None, :] - self.first + 1)

    def places(self, raw: Lanes, active: NDArray[np.bool_], offset: int, size: int, what: str, line: int | None,
               engine: bool = False) -> tuple[Index, Index]:
        """Byte offset and column of every active lane, flat. Faults where `size` bytes there are not shared memory of a block
        of the cluster that is still running, or are misaligned (`size` up to 16). `engine`: the copy engine goes there, whose
        work the other block must wait for; it is looked at where that block ends.
        """
        value = np.broadcast_to(raw, self.shape)[active]
        if value.dtype.itemsize == 8:
            outside = (value >> np.uint64(BUFFER_SHIFT) != SHARED_WINDOW >> BUFFER_SHIFT) & (value >> np.uint64(32) != 0)
            self.refuse(outside, active, "out_of_bounds", f"{what} at an address that is not in shared memory", line)
            value = value & LOW_WORD
        value = value.astype(np.int64)
        rank, at = value >> RANK_SHIFT, (value & OFFSET) + offset
        own = self.columns[active]
        limit = self.machine.cluster_size
        self.refuse(rank > limit, active, "out_of_bounds", f"{what} in a block outside the cluster of {limit}", line)
        column = np.where(rank == 0, own, self.first[own] + rank - 1)
        bytes_ = self.machine.smem.size
        bad = (at < 0) | (at + size > bytes_)
        first = int(at[bad][0]) if bad.any() else 0
        self.refuse(bad, active, "out_of_bounds", f"{what} of {size} bytes at byte {first} of shared memory; there are {bytes_}", line)
        align = min(size, 16)
        self.refuse((at & align - 1) != 0, active, "misaligned", f"{what} at an address that is not a multiple of {align}", line)
        self.reach(own, column, active, what, line, engine)
        return at, column

    def reach(self, own: Index, column: Index, active: NDArray[np.bool_], what: str, line: int | None, engine: bool) -> None:
        """Lanes use the memory of the blocks `column`."""
        far = column != own
        if not far.any():
            return
        if self.machine.live is not None:
            gone = far & ~np.broadcast_to(self.machine.live, self.shape).any(axis=0)[column]
            self.refuse(gone, active, "race", f"{what} in shared memory of a block of the cluster that has exited", line)
        if engine:
            return
        lanes = np.zeros(self.shape, bool)
        lanes[active] = far
        self.machine.ordered.far_access(column[far], lanes, line)

    def refuse(self, bad: NDArray[np.bool_], active: NDArray[np.bool_], kind: str, message: str, line: int | None) -> None:
        if bad.any():
            lanes = np.zeros(self.shape, bool)
            lanes[active] = bad
            self.machine.fault(kind, message, lanes, line)      # type: ignore[arg-type]

    # Accesses -------------------------------------------------------------------------------------------------------

    def prepare(self, raw: Lanes, mask: Mask) -> WordAddress | FarAddress | None:
        """Look at a register of addresses (32 bits, or 64 without the window). None: no lane is active."""
        active = self.active(mask)
        if not active.any():
            return None
        if (np.broadcast_to(raw, self.shape)[active] >> raw.dtype.type(RANK_SHIFT)).any():
            return FarAddress(raw, active)
        return self.machine.smem.prepare(raw, mask)

    def locate(self, address: FarAddress, offset: int, total: int, what: str, line: int | None) -> tuple[Index, Index, Index]:
        """Flat word index of every active lane, the byte in it, and what it covers of the shadow as (granules, lanes)."""
        at, column = self.places(address.raw, address.active, offset, total, what, line)
        self.machine.tally.far_access(self.machine, address.active, total)
        return (at >> 2) * self.shape[1] + column, at & 3, self.cells(at, column, total)

    def cells(self, at: Index, column: Index, total: int) -> Index:
        """Flat indices into the shadow's tables of `total` bytes from byte `at` of each column on, as (granules, lanes)."""
        unit = self.machine.smem.granule
        return (at // unit + np.arange(max(1, total // unit))[:, None]) * self.shape[1] + column

    def load(self, address: WordAddress | FarAddress | None, offset: int, size: int, results: tuple[Lanes | None, ...], kind: str,
             line: int | None, ordered: bool = False) -> None:
        if not isinstance(address, FarAddress):
            return self.machine.smem.load(address, offset, size, results, kind, line, ordered)
        index, byte, cells = self.locate(address, offset, size * len(results), "load", line)
        self.machine.ordered.read_cells(cells, address.active, line, ordered)
        flat, count = self.machine.smem.data.reshape(-1), self.shape[1]
        for k, d in enumerate(results):
            if d is None:
                continue
            if size == 8:
                low = index + 2 * k * count
                value = flat[low].astype(np.uint64) | flat[low + count].astype(np.uint64) << np.uint64(32)
            else:
                place = byte + k * size
                value = flat.view(f"{kind}{size}")[(index + (place >> 2) * count) * (4 // size) + (place & 3) // size]
            wide = np.zeros(self.shape, d.dtype)
            wide[address.active] = value
            np.copyto(d, wide, where=fold(address.active, d.shape))

    def store(self, address: WordAddress | FarAddress | None, offset: int, size: int, values: tuple[Lanes, ...], mask: Mask,
              line: int | None, ordered: bool = False) -> None:
        if not isinstance(address, FarAddress):
            return self.machine.smem.store(address, offset, size, values, mask, line, ordered)
        index, byte, cells = self.locate(address, offset, size * len(values), "store", line)
        flat, count = self.machine.smem.data.reshape(-1), self.shape[1]
        self.machine.ordered.write_cells(cells, address.active, line, ordered=ordered)
        for k, value in enumerate(values):
            taken = np.broadcast_to(value, self.shape)[address.active]
            if size == 8:
                low = index + 2 * k * count
                flat[low], flat[low + count] = taken & LOW_WORD, taken >> np.uint64(32)
            else:
                place = byte + k * size
                flat.view(f"u{size}")[(index + (place >> 2) * count) * (4 // size) + (place & 3) // size] = taken.astype(f"u{size}")

    def update(self, address: FarAddress, offset: int, size: int, line: int | None) -> Index:
        """Lanes are about to update items of another block atomically: flat word index of each, checked."""
        index, byte, cells = self.locate(address, offset, size, "atomic", line)
        self.machine.ordered.atomic_cells(cells, address.active, line)
        return index if size > 2 else index * 2 + byte // 2
