"""One kernel launch: parameters laid out, blocks run in chunks, counts made."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field

import numpy as np

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host import emit_arithmetic, emit_async, emit_bits, emit_carry, emit_convert, emit_matrix, emit_memory
from forge_tui.cuda.host.analyse import BLOCK, THREAD, analyse
from forge_tui.cuda.host.counts import Tally
from forge_tui.cuda.host.generate import Emitter
from forge_tui.cuda.host.lower import Kernel, lower
from forge_tui.cuda.host.memory import MAX_BUFFERS, Buffer
from forge_tui.cuda.host.orders import IN_STEP, chunk_order
from forge_tui.cuda.host.parser import parse_ptx
from forge_tui.cuda.host.ptx import SIZES, Module, PtxError
from forge_tui.cuda.host.run import Machine
from forge_tui.cuda.host.sharing import sharing_of
from forge_tui.cuda.host.translation import Geometry, Translations, Variant
from forge_tui.cuda.program import Argument, Launch
from forge_tui.cuda.target import LaunchCounts

EMITTERS = emit_arithmetic, emit_async, emit_bits, emit_carry, emit_convert, emit_matrix, emit_memory
"""They register what writes each instruction."""

SHARED = {"shared", "shared::cta"}
SIGNALS = {"volatile", "relaxed", "acquire", "release"}
LANES = 1 << 16
"""Lanes of a chunk: arrays of this size stay in a core's cache while call overhead is small beside the work."""
CHUNK_BYTES = 192 << 20
"""Most memory the arrays of a chunk may take."""
RESIDENT_BYTES = 2 << 30
"""Most memory the arrays of a cooperative launch may take, whose blocks are one chunk."""

GRID_BARRIER_BYTES = 64
"""Memory of a cooperative launch's `grid.sync()`, whose address `%envreg1` and `%envreg2` hold (cooperative_groups/details)."""


@dataclass(slots=True)
class LoadedModule:
    """A parsed image and the translations of its kernels."""

    module: Module
    filename: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    translations: dict[tuple[str, tuple[bool, ...]], Translations] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, filename: str) -> LoadedModule:
        try:
            return cls(parse_ptx(text, filename), filename)
        except PtxError as error:
            raise CandidateFault("not_interpretable", f"not interpretable: {error} in the PTX of {filename}") from error

    def translate(self, name: str, block: tuple[int, int, int], grid: tuple[int, int, int], cluster: bool) -> Translations:
        """The kernel's translations for launches that are larger than 1 along the same axes, with clusters or without."""
        shape = (*(size > 1 for size in (*block, *grid)), cluster)
        found = self.translations.get((name, shape))
        if found is None:
            found = self.translations[name, shape] = _translate(self.kernel(name), block, grid, cluster)
        return found

    def kernel(self, name: str) -> Kernel:
        if name not in self.kernels:
            if name not in self.module.kernels:
                known = ", ".join(self.module.kernels) or "none"
                raise CandidateFault("launch", f"the plan launches kernel {name!r}; the file has: {known} (extern \"C\" missing?)")
            try:
                self.kernels[name] = lower(self.module, name)
            except (PtxError, KeyError) as error:
                raise CandidateFault("not_interpretable", f"not interpretable: {error} in {name}", kernel=name) from error
        return self.kernels[name]


def _translate(kernel: Kernel, block: tuple[int, int, int], grid: tuple[int, int, int], cluster: bool) -> Translations:
    def make(wide: bool) -> Variant:
        analysis = analyse(kernel, block, grid, wide)
        return Variant(analysis, Emitter(kernel, analysis).generate())

    cached: list[Variant] = []

    def make_wide() -> Variant:
        if not cached:
            cached.append(make(True))
        return cached[0]

    return Translations(kernel, make(False), make_wide, _granule(kernel, "shared"), _granule(kernel, "local"),
                        cluster or needs_order(kernel))


def needs_order(kernel: Kernel) -> bool:
    """Whether accesses to shared memory may be ordered by more than barriers of the block: by mbarriers, copies, clusters, or
    atomics and signals with fences.
    """
    instructions = [i for b in kernel.blocks for i in b.instructions]
    if any(i.root in ("mbarrier", "mapa") or i.root == "barrier" and "cluster" in i.parts or "bulk" in i.parts
           or "shared::cluster" in i.parts for i in instructions):
        return True
    shared = [i for i in instructions if i.root in ("atom", "red", "ld", "st") and SHARED & set(i.parts)]
    signals = any(i.root in ("atom", "red") or SIGNALS & set(i.parts) for i in shared)
    return signals and any(i.root in ("membar", "fence") for i in instructions)


def _granule(kernel: Kernel, space: str) -> int:
    """Smallest size with which a kernel accesses shared or local memory: what its shadow is kept by."""
    sizes = [SIZES[i.type] for b in kernel.blocks for i in b.instructions if i.root in ("ld", "st", "atom", "red", "wmma")
             and (space in i.parts or f"{space}::cta" in i.parts or not {"global", "param", "const", "shared", "local"} & set(i.parts))]
    return min([4, *sizes])


def run_launch(loaded: LoadedModule, launch: Launch, buffers: dict[str, Buffer], budget: int, deadline_s: float,
               schedule: str = IN_STEP) -> LaunchCounts:
    """Run one launch to its end. `buffers`: every tensor and workspace by name. Raises CandidateFault."""
    kernel = loaded.kernel(launch.kernel)
    parameters = _parameters(kernel, launch.arguments, buffers)
    geometry = Geometry(launch.grid, launch.block, launch.shared, parameters, budget, time.monotonic() + deadline_s,
                        schedule, launch.cluster or (1, 1, 1))
    translations = loaded.translate(launch.kernel, launch.block, launch.grid, geometry.cluster != (1, 1, 1))
    table: list[Buffer | None] = list(buffers.values())
    for name, data in (("constant data", kernel.constant_data), ("kernel parameters", parameters)):
        padded = np.zeros(len(data) + 16, np.uint8)         # numpy aligns to 16 bytes at least; windows start at multiples of 256
        padded[:len(data)] = np.frombuffer(data, np.uint8)
        table.append(Buffer(name, padded, len(table), writable=False, lead=0))
    if launch.cooperative:
        table.append(Buffer("grid barrier", np.zeros(GRID_BARRIER_BYTES, np.uint8), len(table), writable=True, lead=0))
    if len(table) > MAX_BUFFERS:
        raise CandidateFault("not_interpretable", f"not interpretable: more than {MAX_BUFFERS - 2} tensors in one launch")
    tally = Tally(loaded.filename, kernel)
    _run_chunks(translations, geometry, table, tally, cooperative=launch.cooperative)
    cluster = geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2]
    return tally.result(geometry.blocks, geometry.threads, launch.shared, sum(buffer.size for buffer in buffers.values()), cluster)


def block_bytes(translations: Translations, geometry: Geometry) -> float:
    """Memory that the arrays of one block take, about."""
    lane_bytes = translations.kernel.local_bytes * (1 + 1 / translations.local_granule)
    for size, cls in translations.narrow.code.slots:
        lane_bytes += size if cls == THREAD | BLOCK else 0
    shadow = 1 + 37 / translations.granule if translations.ordered else 1.25      # bytes of tables and memory for each shared byte
    return geometry.threads * lane_bytes + shadow * (translations.kernel.static_shared + geometry.shared) + 1


def chunk_blocks(translations: Translations, geometry: Geometry, cooperative: bool) -> int:
    """Blocks of a chunk: about LANES lanes, less where the kernel needs much memory for each; all that may wait for each other."""
    per_block = block_bytes(translations, geometry)
    if cooperative:
        if per_block * geometry.blocks > RESIDENT_BYTES:
            name = translations.kernel.name
            raise CandidateFault("not_interpretable", f"not interpretable: a cooperative launch of {name} with {geometry.blocks} "
                                 "blocks, which must all be held in memory at once", kernel=name)
        return geometry.blocks
    cluster = geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2]
    wanted = min(LANES // geometry.threads, int(CHUNK_BYTES / per_block), geometry.blocks)
    return max(1, wanted // cluster) * cluster


def _run_chunks(translations: Translations, geometry: Geometry, table: list[Buffer | None], tally: Tally,
                cooperative: bool) -> None:
    size = chunk_blocks(translations, geometry, cooperative)
    chunks = -(-geometry.blocks // size)
    cluster = geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2]
    size = -(-geometry.blocks // (chunks * cluster)) * cluster
    machine: Machine | None = None
    sharing = sharing_of(translations.kernel, geometry.blocks)
    sampled = {0, chunks // 2}       # whose memory traffic is counted
    for number, first in enumerate(chunk_order(geometry.schedule, range(0, geometry.blocks, size))):
        if number and time.monotonic() > geometry.deadline:  # steps look at the clock too, but a chunk may take few
            raise CandidateFault("endless", f"still running after {number} of {chunks} groups of blocks ({geometry.blocks} blocks)",
                                 kernel=translations.kernel.name)
        count = min(size, geometry.blocks - first)
        if machine is None or machine.blocks != count:
            machine = Machine(translations, geometry, table, count, tally)
            machine.gmem.sharing = sharing
        machine.run(first, sampling=number in sampled)


def _parameters(kernel: Kernel, arguments: tuple[Argument, ...], buffers: dict[str, Buffer]) -> bytes:
    """The parameter block. Raises CandidateFault('launch') when the plan's arguments do not fit the kernel's parameters."""
    if len(arguments) != len(kernel.parameters):
        raise CandidateFault("launch", f"{kernel.name} takes {len(kernel.parameters)} arguments; the plan passes {len(arguments)}",
                             kernel=kernel.name)
    block = bytearray(kernel.parameter_bytes)
    for position, (argument, parameter) in enumerate(zip(arguments, kernel.parameters, strict=True)):
        if argument.kind == "pointer":
            raw = struct.pack("<Q", buffers[argument.name].base if argument.name is not None else 0)
        elif argument.kind in ("float32", "float64"):
            raw = struct.pack("<f" if argument.kind == "float32" else "<d", argument.value)
        else:
            raw = int(argument.value or 0).to_bytes(4 if argument.kind == "int32" else 8, "little", signed=True)
        if len(raw) != parameter.size:
            raise CandidateFault("launch", f"argument {position + 1} of {kernel.name} is {argument.kind} ({len(raw)} bytes); the "
                                 f"kernel's parameter has {parameter.size} bytes", kernel=kernel.name)
        block[parameter.offset:parameter.offset + parameter.size] = raw
    return bytes(block)
