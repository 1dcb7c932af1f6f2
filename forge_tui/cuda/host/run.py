"""The machine that generated code works on: a chunk of blocks with its registers, memories and barriers, and its faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.faults import CandidateFault, FaultKind
from forge_tui.cuda.host.analyse import BLOCK, THREAD
from forge_tui.cuda.host.async_copy import AsyncCopies
from forge_tui.cuda.host.atomics import Atomics
from forge_tui.cuda.host.barriers import Barriers
from forge_tui.cuda.host.bulk import BulkCopies
from forge_tui.cuda.host.checks import SharedShadow
from forge_tui.cuda.host.cluster_barrier import ClusterBarrier
from forge_tui.cuda.host.clusters import ClusterMemory
from forge_tui.cuda.host.counts import Tally
from forge_tui.cuda.host.generic import GenericMemory
from forge_tui.cuda.host.matrix import Matrix
from forge_tui.cuda.host.mbarriers import Mbarriers
from forge_tui.cuda.host.memory import Buffer, GlobalMemory
from forge_tui.cuda.host.ordered_shadow import OrderedShadow
from forge_tui.cuda.host.orders import scheduler_of
from forge_tui.cuda.host.translation import Geometry, Translations, Variant
from forge_tui.cuda.host.values import Values
from forge_tui.cuda.host.warp import POISON, Warps
from forge_tui.cuda.host.words import WordMemory

Lanes = NDArray[np.generic]
Mask = NDArray[np.bool_] | None


class Machine:
    """A chunk of `count` blocks. Lanes are (threads, blocks) arrays; one machine runs chunk after chunk of one size."""

    def __init__(self, translations: Translations, geometry: Geometry, buffers: list[Buffer | None], count: int,
                 tally: Tally) -> None:
        self.translations = translations
        self.kernel = translations.kernel
        self.geometry = geometry
        self.threads, self.blocks = geometry.threads, count
        self.lanes = self.threads * count
        self.first = 0
        self.cluster_size = geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2]
        self.block_ids = np.arange(count)
        """Linear index in the grid of each block of the chunk."""
        self.tally = tally
        self.live: Mask = None
        self.live_count = self.lanes
        self.sampling = False
        self.values = Values(self, {b.name: b.base for b in buffers if b is not None})
        size = self.kernel.static_shared + geometry.shared
        columns = np.arange(count)[None, :]
        self.gmem = GlobalMemory(self, buffers)
        self.smem = WordMemory(self, "shared", size, columns, count, translations.granule)
        lanes = np.arange(self.lanes).reshape(self.threads, count)
        self.lmem = WordMemory(self, "local", self.kernel.local_bytes, lanes, self.lanes if self.kernel.local_bytes else 1,
                               translations.local_granule)
        self.generic = GenericMemory(self)
        self.warps = Warps(self)
        self.atomic = Atomics(self)
        self.copies = AsyncCopies(self)
        self.cmem = ClusterMemory(self)
        self.mbarriers = Mbarriers(self)
        self.bulk = BulkCopies(self)
        self.matrix = Matrix(self)
        self.variant = translations.narrow
        self.use(translations.narrow)

    def use(self, variant: Variant) -> None:
        """Make this chunk's arrays for a translation."""
        self.variant = variant
        shapes = [(self.threads if cls & THREAD else 1, self.blocks if cls & BLOCK else 1) for _, cls in variant.code.slots]
        self.slots = [np.zeros(shape, bool if size == 1 else f"u{size}")
                      for (size, _), shape in zip(variant.code.slots, shapes, strict=True)]
        self.whole, self.masked = variant.code.build(self)

    # Masks ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def both(mask: Mask, guard: Lanes) -> Lanes:
        return guard if mask is None else mask & guard

    @staticmethod
    def fold_threads(mask: Lanes) -> Lanes:
        """A mask for values stored once for all blocks."""
        return mask if mask.shape[1] == 1 else mask.any(axis=1, keepdims=True)

    @staticmethod
    def fold_blocks(mask: Lanes) -> Lanes:
        """A mask for values stored once for all threads."""
        return mask if mask.shape[0] == 1 else mask.any(axis=0, keepdims=True)

    def active(self, mask: Mask) -> NDArray[np.bool_]:
        """Lanes meant by a mask, as an array that broadcasts."""
        if mask is not None:
            return mask
        return np.ones((1, 1), bool) if self.live is None else self.live

    def count(self, mask: NDArray[np.bool_]) -> int:
        return int(np.count_nonzero(mask)) * (self.lanes // mask.size)

    # Faults ---------------------------------------------------------------------------------------------------------

    def fault(self, kind: FaultKind, message: str, bad: Lanes, line: int | None, alive: bool = True) -> NoReturn:
        """Raise for the first lane of `bad` (of those that live, unless not `alive`), by block and then thread."""
        lanes = np.broadcast_to(bad, (self.threads, self.blocks))
        if self.live is not None and alive:
            lanes = lanes & self.live
        position = int(lanes.T.argmax())
        raise CandidateFault(kind, message, kernel=self.kernel.name, line=line, block=int(self.block_ids[position // self.threads]),
                             thread=position % self.threads)

    def unsupported(self, opcode: str, mask: Mask, line: int | None) -> None:
        active = self.active(mask)
        if active.any():
            place = f"{self.tally.filename}:{line}" if line is not None else self.tally.filename
            self.fault("not_interpretable", f"not interpretable: {opcode} at {place}", active, line)

    def trap(self, assertion: bool, mask: Mask, line: int | None) -> None:
        active = self.active(mask)
        if active.any():
            self.fault("illegal_instruction", "a device assertion failed" if assertion else "__trap() was reached", active, line)

    def bar_red(self, mode: str, flags: Lanes, give: Callable[[Lanes, Lanes], None],
                operands: tuple[Lanes, ...]) -> tuple[object, ...]:
        return ("red", (mode, flags.copy(), give), operands)

    # Sampled counts -------------------------------------------------------------------------------------------------

    def sample_global(self, address: object, offset: int, total: int, what: str = "global load", line: int | None = None) -> None:
        if self.sampling:
            self.tally.global_access(self, address, offset, total, what, line)      # type: ignore[arg-type]

    def sample_shared(self, address: object, offset: int, total: int, what: str = "load", line: int | None = None) -> None:
        if self.sampling:
            self.tally.shared_access(self, address, offset, total, what, line)      # type: ignore[arg-type]

    # One chunk ------------------------------------------------------------------------------------------------------

    def run(self, first: int, sampling: bool) -> None:
        """Run blocks `first` ... `first + blocks - 1` to their end. Raises CandidateFault."""
        self.first, self.sampling = first, sampling
        self.tally.sampled_blocks += self.blocks if sampling else 0
        self.block_ids = self.geometry.block_ids(first, self.blocks)
        self.values.follow()
        granules = (self.kernel.static_shared + self.geometry.shared) // self.smem.granule + 8
        self.smem.data.fill(POISON)
        if self.translations.ordered:
            self.smem.shadow = self.ordered = OrderedShadow(self, granules)
            self.mbarriers.reset()
            self.bulk.reset()
        else:
            self.smem.shadow = SharedShadow(self, granules)
        if self.kernel.local_bytes:
            self.lmem.data.fill(POISON)
            self.lmem.written = np.zeros((self.kernel.local_bytes // self.lmem.granule + 8, self.lanes), bool)
        self.copies.reset()
        self.live, self.live_count = None, self.lanes
        self.barriers = Barriers(self)
        self.cluster_barrier = ClusterBarrier(self)
        self.scheduler = scheduler_of(self, self.geometry.schedule)
        with np.errstate(all="ignore"):
            self.scheduler.run()
            self.bulk.finish()
        if sampling:
            self.tally.sampled()

    def leave(self, mask: Mask) -> None:
        """Lanes are done."""
        if mask is None:
            if self.translations.ordered:
                self.check_exit(np.broadcast_to(self.active(None), (self.threads, self.blocks)).any(axis=0))
            self.live_count = 0
            return
        gone = np.broadcast_to(mask, (self.threads, self.blocks))
        live = ~gone if self.live is None else self.live & ~gone
        if self.translations.ordered:
            self.check_exit(gone.any(axis=0) & ~live.any(axis=0))
        self.live = live
        self.live_count = int(np.count_nonzero(self.live))

    def check_exit(self, ends: NDArray[np.bool_]) -> None:
        """Blocks end: neither other blocks nor copies may still need their shared memory."""
        columns = np.flatnonzero(ends)
        if len(columns):
            self.ordered.check_exit(columns)
            self.bulk.check_exit(columns)

    def widen(self) -> None:
        """Lanes did not meet where expected: from here on every register is stored for every lane."""
        old, slots = self.variant.code, self.slots
        self.use(self.translations.make_wide())
        for name, slot in old.slot_of.items():
            np.copyto(self.slots[self.variant.code.slot_of[name]], slots[slot])
