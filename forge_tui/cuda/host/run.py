"""Running a chunk of blocks: the machine that generated code works on, its scheduler, barriers and faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.faults import CandidateFault, FaultKind
from forge_tui.cuda.host.analyse import BLOCK, THREAD, Analysis
from forge_tui.cuda.host.async_copy import AsyncCopies
from forge_tui.cuda.host.atomics import Atomics
from forge_tui.cuda.host.barriers import Barriers
from forge_tui.cuda.host.checks import SharedShadow
from forge_tui.cuda.host.counts import Tally
from forge_tui.cuda.host.generate import Code
from forge_tui.cuda.host.lower import EXIT, Kernel
from forge_tui.cuda.host.memory import Buffer, GlobalMemory
from forge_tui.cuda.host.generic import GenericMemory
from forge_tui.cuda.host.warp import POISON, Warps
from forge_tui.cuda.host.words import WordMemory

Lanes = NDArray[np.generic]
Mask = NDArray[np.bool_] | None

SPIN_LIMIT = 64
"""Visits to a block that may be waiting for other lanes before those get a turn."""
HOLD_STEPS = 256
"""How many block executions waiting lanes then stand back for, if the others do not stop before."""
COLLECTIVES = {"shfl", "vote", "match", "redux", "elect"}


@dataclass(frozen=True, slots=True)
class Geometry:
    """One launch. Sizes as in CUDA."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    """Dynamic shared memory, bytes."""
    parameters: bytes
    budget: int
    """Vector instructions a chunk may execute before it is called endless."""
    deadline: float
    """`time.monotonic()` after which it is called endless."""

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(slots=True)
class Variant:
    """One translation of a kernel: narrow registers where the analysis allows, or everything wide."""

    analysis: Analysis
    code: Code


@dataclass(slots=True)
class Translations:
    """A kernel and its translations, made when first needed."""

    kernel: Kernel
    narrow: Variant
    make_wide: Callable[[], Variant]
    granule: int
    """Smallest size of a shared memory access, bytes, at most 4."""
    local_granule: int
    sizes: list[int] = field(init=False)
    collective: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = [len(b.instructions) for b in self.kernel.blocks]
        self.collective = [any(i.root in COLLECTIVES or "warp" in i.parts for i in b.instructions) for b in self.kernel.blocks]


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
        self.tally = tally
        self.live: Mask = None
        self.live_count = self.lanes
        self.sampling = False
        self.specials: dict[tuple[str, int], Lanes] = {}
        self.constant_bases = {b.name: b.base for b in buffers if b is not None}
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
        self.variant = translations.narrow
        self.use(translations.narrow)

    def use(self, variant: Variant) -> None:
        """Make this chunk's arrays for a translation."""
        self.variant = variant
        shapes = [(self.threads if cls & THREAD else 1, self.blocks if cls & BLOCK else 1) for _, cls in variant.code.slots]
        self.slots = [np.zeros(shape, bool if size == 1 else f"u{size}")
                      for (size, _), shape in zip(variant.code.slots, shapes, strict=True)]
        self.whole, self.masked = variant.code.build(self)

    # Values that generated code asks for once ---------------------------------------------------------------------

    @staticmethod
    def scalar(value: int, size: int) -> Lanes:
        return np.array([[value]], np.uint64).astype(f"u{size}")

    @staticmethod
    def flag(value: bool) -> Lanes:
        return np.array([[value]])

    def parameter(self, name: str, offset: int, size: int) -> Lanes:
        start = next(p.offset for p in self.kernel.parameters if p.name == name) + offset
        return np.frombuffer(self.geometry.parameters[start:start + size], f"u{size}").reshape(1, 1).copy()

    def symbol(self, name: str, offset: int, size: int) -> Lanes:
        """Address of a variable in its own space; data tables and parameters have global addresses."""
        kernel = self.kernel
        if name in kernel.shared:
            return self.scalar(kernel.shared[name] + offset, size)
        if name in kernel.local:
            return self.scalar(kernel.local[name] + offset, size)
        if name in kernel.constants:
            return self.scalar(self.constant_bases["constant data"] + kernel.constants[name] + offset, size)
        for parameter in kernel.parameters:
            if parameter.name == name:
                return self.scalar(self.constant_bases["kernel parameters"] + parameter.offset + offset, size)
        raise KeyError(name)

    def special(self, name: str, size: int) -> Lanes:
        """A special register, shaped by what it varies over. The arrays are kept and follow the chunk."""
        key = (name, size)
        if key not in self.specials:
            self.specials[key] = self.special_value(name).astype(f"u{size}")
        return self.specials[key]

    def special_value(self, name: str) -> Lanes:
        base, _, axis_name = name.partition(".")
        axis = "xyz".find(axis_name) if axis_name else 0
        grid, block = self.geometry.grid, self.geometry.block
        thread = np.arange(self.threads)[:, None]
        if base == "%tid":
            return _coordinate(thread, block, axis) if block[axis] > 1 else np.zeros((1, 1), np.int64)
        if base == "%ctaid":
            linear = np.arange(self.first, self.first + self.blocks)[None, :]
            return _coordinate(linear, grid, axis) if grid[axis] > 1 else np.zeros((1, 1), np.int64)
        lane = thread & 31
        per_lane = {"%laneid": lane, "%warpid": thread >> 5, "%lanemask_eq": 1 << lane, "%lanemask_lt": (1 << lane) - 1,
                    "%lanemask_le": (2 << lane) - 1, "%lanemask_gt": 0xFFFFFFFF & ~((2 << lane) - 1),
                    "%lanemask_ge": 0xFFFFFFFF & ~((1 << lane) - 1)}
        if base in per_lane:
            return per_lane[base]
        shared = self.kernel.static_shared + self.geometry.shared
        same = {"%ntid": block[axis], "%nctaid": grid[axis], "%nwarpid": -(-self.threads // 32), "%smid": 0, "%nsmid": 132,
                "%gridid": 0, "%dynamic_smem_size": self.geometry.shared, "%total_smem_size": shared,
                "%cluster_ctaid": 0, "%cluster_nctaid": 1, "%cluster_ctarank": 0, "%cluster_nctarank": 1, "%WARP_SZ": 32}
        if base not in same:
            raise CandidateFault("not_interpretable", f"not interpretable: special register {name}", kernel=self.kernel.name)
        return np.array([[same[base]]])

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

    def fault(self, kind: FaultKind, message: str, bad: Lanes, line: int | None) -> NoReturn:
        """Raise for the first lane of `bad`, by block and then thread."""
        lanes = np.broadcast_to(bad, (self.threads, self.blocks))
        if self.live is not None:
            lanes = lanes & self.live
        position = int(lanes.T.argmax())
        raise CandidateFault(kind, message, kernel=self.kernel.name, line=line, block=self.first + position // self.threads,
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

    def sample_global(self, address: object, offset: int, total: int) -> None:
        if self.sampling:
            self.tally.global_access(self, address, offset, total)      # type: ignore[arg-type]

    def sample_shared(self, address: object, offset: int, total: int) -> None:
        if self.sampling:
            self.tally.shared_access(self, address, offset, total)      # type: ignore[arg-type]

    # One chunk ------------------------------------------------------------------------------------------------------

    def run(self, first: int, sampling: bool) -> None:
        """Run blocks `first` ... `first + blocks - 1` to their end. Raises CandidateFault."""
        self.first, self.sampling = first, sampling
        for (name, size), array in self.specials.items():
            if name.startswith("%ctaid"):
                np.copyto(array, self.special_value(name).astype(f"u{size}"))
        granules = (self.kernel.static_shared + self.geometry.shared) // self.smem.granule + 8
        self.smem.data.fill(POISON)
        self.smem.shadow = SharedShadow(self, granules)
        if self.kernel.local_bytes:
            self.lmem.data.fill(POISON)
            self.lmem.written = np.zeros((self.kernel.local_bytes // self.lmem.granule + 8, self.lanes), bool)
        self.copies.reset()
        self.live, self.live_count = None, self.lanes
        self.pending: dict[int, Mask] = {0: None}
        self.held: dict[int, Mask] = {}
        self.barriers = Barriers(self)
        self.visits: dict[int, int] = {}
        self.steps = self.held_until = self.executed = 0
        with np.errstate(all="ignore"):
            while self.live_count and (self.pending or self.barriers.parked or self.held):
                if self.pending:
                    self.step(self.choose())
                else:
                    self.release()
        if self.live_count:
            self.fault("not_interpretable", "not interpretable: a jump to nowhere", self.active(None), None)

    def step(self, index: int) -> None:
        """Run one basic block for the lanes that are at it, and send them on."""
        mask = self.pending.pop(index)
        here = self.live_count
        if mask is not None:
            here = self.count(mask)
            if here == self.live_count:
                mask = None
        if mask is not None and self.variant.analysis.entry_needs[index] and not self.is_whole(mask, index):
            self.widen()
        size = self.translations.sizes[index]
        self.executed += 1
        self.steps += size
        self.tally.executed(self, size, here, self.live if mask is None else mask)
        if self.steps > self.geometry.budget or self.executed % 512 == 0 and time.monotonic() > self.geometry.deadline:
            block = self.kernel.blocks[index]
            self.fault("endless", f"still running after {self.steps} instructions a thread", self.active(mask), block.last.line)
        if self.held and self.executed > self.held_until:
            self.restore()
        try:
            out = self.whole[index](self.live) if mask is None else self.masked[index](mask)
        except (AttributeError, TypeError, ValueError, LookupError, RuntimeError, AssertionError) as error:
            # A form of an instruction that its handler mistook. Our fault: said as such, never a verdict on the candidate.
            line = self.kernel.blocks[index].instructions[0].line
            place = f"{self.tally.filename}:{line}"
            raise CandidateFault("not_interpretable", f"not interpretable: {error} in the instructions from {place}",
                                 kernel=self.kernel.name, line=line) from error
        self.send(index, mask, out)

    def send(self, index: int, mask: Mask, out: object) -> None:
        """Where the lanes go after block `index`, given what its function returned."""
        block = self.kernel.blocks[index]
        root, ways = block.last.root, block.successors
        if root in ("bar", "barrier") and "warp" not in block.last.parts:
            self.barriers.arrive(block.last.parts, ways[0], mask, out, block.last.line)
        elif root == "brx":
            for position, way in enumerate(ways):
                self.go(way, mask, np.asarray(out) == position)
        elif out is None:
            self.join(ways[0], mask)
        elif isinstance(out, bool):
            self.join(ways[0] if out else ways[-1], mask)
        else:
            taken = np.asarray(out)
            self.go(ways[0], mask, taken)
            self.go(ways[-1], mask, ~taken)

    def go(self, way: int, mask: Mask, part: Lanes) -> None:
        """Send the lanes of `mask` that are in `part`."""
        base = self.live if mask is None else mask
        if base is None:
            if part.all():
                self.join(way, None)
                return
            lanes = part.copy()
        else:
            lanes = base & part
        if lanes.any():
            self.join(way, lanes)

    def join(self, way: int, mask: Mask) -> None:
        if way == EXIT:
            self.leave(mask)
        else:
            self.add(self.pending, way, mask)

    @staticmethod
    def add(places: dict[int, Mask], way: int, mask: Mask) -> None:
        """Put lanes with those that are at a block already."""
        there = places.get(way, mask)
        places[way] = None if there is None or mask is None else there | mask

    def leave(self, mask: Mask) -> None:
        """Lanes are done."""
        if mask is None:
            self.live_count = 0
            return
        gone = np.broadcast_to(mask, (self.threads, self.blocks))
        self.live = ~gone if self.live is None else self.live & ~gone
        self.live_count = int(np.count_nonzero(self.live))

    # Whose turn it is -----------------------------------------------------------------------------------------------

    def choose(self) -> int:
        """The lowest block whose lanes are all there that can be; waiting loops stand back when others could go on."""
        if len(self.pending) == 1:
            index = next(iter(self.pending))
        else:
            order = sorted(self.pending)
            index = next((i for i in order if self.is_ready(i)), order[0])
        if self.variant.analysis.may_spin[index] and (len(self.pending) > 1 or self.barriers.parked):
            self.visits[index] = self.visits.get(index, 0) + 1
            if self.visits[index] > SPIN_LIMIT:
                self.visits[index] = 0
                self.add(self.held, index, self.pending.pop(index))
                self.held_until = self.executed + HOLD_STEPS
                if not self.pending:
                    self.release()
                return self.choose()
        return index

    def release(self) -> None:
        """Nobody can go on: let go those whose barrier is complete, and those that stand back."""
        self.barriers.release()
        self.restore()

    def restore(self) -> None:
        held, self.held = self.held, {}
        for index, mask in held.items():
            self.join(index, mask)

    def is_ready(self, index: int) -> bool:
        mask = self.pending[index]
        if mask is None:
            return True
        if self.translations.collective[index] and not self.warps_whole(mask):
            return False
        return not self.variant.analysis.entry_needs[index] or self.is_whole(mask, index)

    def warps_whole(self, mask: NDArray[np.bool_]) -> bool:
        """Whether of every warp either all live lanes are here, or none."""
        if mask.shape[0] == 1:
            return True
        live = np.ones((1, 1), bool) if self.live is None else self.live
        missing = live & ~mask
        starts = np.arange(0, self.threads, 32)
        return not (np.logical_or.reduceat(mask, starts, axis=0)
                    & np.logical_or.reduceat(np.broadcast_to(missing, (self.threads, missing.shape[1])), starts, axis=0)).any()

    def is_whole(self, mask: NDArray[np.bool_], index: int) -> bool:
        """Whether the lanes here are all that live, along the axes over which registers of this block are stored once."""
        needs = self.variant.analysis.entry_needs[index]
        folded = mask
        if needs & THREAD and folded.shape[0] > 1:
            folded = folded.any(axis=0, keepdims=True)
        if needs & BLOCK and folded.shape[1] > 1:
            folded = folded.any(axis=1, keepdims=True)
        if folded is mask:
            return True
        expected = folded if self.live is None else folded & self.live
        return bool((mask == expected).all())

    def widen(self) -> None:
        """Lanes did not meet where expected: from here on every register is stored for every lane."""
        old, slots = self.variant.code, self.slots
        self.use(self.translations.make_wide())
        for name, slot in old.slot_of.items():
            np.copyto(self.slots[self.variant.code.slot_of[name]], slots[slot])


def _coordinate(linear: NDArray[np.int64], sizes: tuple[int, int, int], axis: int) -> NDArray[np.int64]:
    return (linear % sizes[0], linear // sizes[0] % sizes[1], linear // (sizes[0] * sizes[1]))[axis]
