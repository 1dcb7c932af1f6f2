"""Modelled time of counted launches on a named GPU: a small sum of bounds, meant for ranking and called modelled everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.program import KernelInfo
from forge_tui.cuda.target import LaunchCounts

ISSUE_PER_CYCLE = 4
"""Warp instructions an SM issues a cycle (four schedulers, compute capability 7.0 to 9.0)."""
SECTOR = 32
FILL_BYTES = 64
"""Bytes an SM gets from the L2 a cycle."""
PIPE_CYCLES = {"special": 2.0, "conversion": 0.5, "float64": 0.5, "half": 0.25}
"""Cycles of an SM that a warp instruction holds a pipe narrower than 128 lanes for: 16 lanes a cycle for special functions, 64 for conversions
and double precision (CUDA C++ programming guide, throughput of native arithmetic instructions, 9.0)."""
MAX_BLOCKS_PER_SM = 32
REGISTER_UNIT = 256
"""Registers are given to a warp in units of this many (CUDA C++ programming guide, technical specifications)."""


class Constants(Struct, frozen=True):
    """What the device's facts do not say. Fitted on an H200 by `python -m benchmarks.calibration --fit` within what each may mean, on ten of
    the landscapes of benchmarks/landscapes; docs/measured.md says how well, and how well on operators left out of the fit."""

    machine_per_ptx: float = 1.2
    """Machine instructions for one of PTX: conversions and divisions expand, address arithmetic folds."""
    latency_cycles: float = 600
    """From a load to its use, out of DRAM."""
    in_flight: float = 12
    """Loads of one warp that overlap at the most; how many could, the counts say (`load_rounds`)."""
    warp_cycles: float = 2.67
    """Between two instructions of one warp: they wait for each other's results."""
    barrier_cycles: float = 143
    """Of one barrier of a block."""
    flight_cycles: float = 300
    """How long a byte is on its way from DRAM: with the bandwidth, the bytes that must be in flight to use all of it (Little's law)."""
    l2_speed: float = 3.0
    """Bandwidth of the L2 over that of a copy in DRAM."""
    sharpness: float = 2.75
    """How the bounds combine: their norm of this order. 1: one after the other; large: the largest alone."""
    l2_kept: float = 0.7
    """Part of the L2 that still holds what an earlier launch touched."""
    block_cycles: float = 157
    """Between the starts of two blocks on one multiprocessor."""
    memory_share: float = 1.0
    """Part of the copy bandwidth that a kernel reaches at the most."""


CONSTANTS = Constants()


def modelled_us(counts: Iterable[LaunchCounts], facts: DeviceFacts, kernels: Sequence[KernelInfo] = (), constants: Constants = CONSTANTS) -> float:
    """Microseconds of all launches, one after the other. kernels: their registers, where the compiler says.

    A launch takes the device's launch time plus a norm of eight bounds: bytes from DRAM, from the L2, and into each multiprocessor, the starts of blocks, instruction
    issue, narrow pipes, shared memory passes, and latency (a warp's loads, instructions and barriers in sequence, for as many rounds as the resident
    blocks need). Compute
    units that are idle in the last round, or never get a block, lengthen issue and shared. A launch finds in the L2 what the ones before touched,
    as far as that fits.
    """
    registers = {kernel.name: kernel.registers for kernel in kernels}
    total, there = 0.0, 0.0
    for c in counts:
        total += launch_us(c, facts, registers.get(c.kernel), constants, there)
        there += SECTOR * (c.global_loaded + c.global_stored)
    return total


def launch_us(c: LaunchCounts, facts: DeviceFacts, registers: int | None = None, constants: Constants = CONSTANTS,
              there: float = 0.0) -> float:
    """Microseconds of one launch. there: bytes that earlier launches of the call touched."""
    k = constants
    warps = -(-c.threads // 32)
    resident = blocks_per_sm(c, facts, registers)
    rounds = -(-c.blocks // (resident * facts.sm_count))
    busy = min(facts.sm_count, c.blocks)
    cycles_per_us = facts.clock_mhz
    uneven = -(-c.blocks // facts.sm_count) * facts.sm_count / max(1, c.blocks) if c.blocks > facts.sm_count else 1.0

    bytes_per_us = facts.copy_bytes_per_s * 1e-6 * k.memory_share
    loaded = min(c.global_loaded if c.global_loaded or c.global_stored else c.global_sectors, c.global_sectors) * SECTOR
    stored = min(c.global_stored, c.global_sectors) * SECTOR
    if there and there <= k.l2_kept * facts.l2_bytes:
        loaded = max(0.0, loaded - there)
    asked = SECTOR * c.global_sectors / max(1, c.global_requests)
    all_warps = max(1, c.blocks * warps)
    loads_of_a_warp = c.global_requests / all_warps
    waits_of_a_warp = max(c.load_rounds / all_warps, loads_of_a_warp / k.in_flight)
    together = min(k.in_flight, loads_of_a_warp / max(waits_of_a_warp, 1e-9))
    flying = busy * min(resident, -(-c.blocks // facts.sm_count)) * warps * asked * together
    saturation = min(1.0, flying / (bytes_per_us * k.flight_cycles / cycles_per_us))
    dram_us = (loaded + stored) / bytes_per_us / max(saturation, 1e-3)
    l2_us = c.global_sectors * SECTOR / (bytes_per_us * k.l2_speed) / max(saturation, 1e-3)
    issue_us = c.warp_instructions * k.machine_per_ptx / ISSUE_PER_CYCLE / busy * uneven / cycles_per_us
    shared_us = c.shared_waves / busy * uneven / cycles_per_us
    fill_us = c.global_sectors * SECTOR / FILL_BYTES / busy * uneven / cycles_per_us
    slow = sum(PIPE_CYCLES.get(kind.name, 0.0) * kind.warps for kind in c.classes)
    pipes_us = slow / busy * uneven / cycles_per_us
    barriers_of_a_block = c.barriers / max(1, c.blocks)
    latency_us = rounds * (waits_of_a_warp * k.latency_cycles + c.warp_instructions / all_warps * k.machine_per_ptx * k.warp_cycles
                           + barriers_of_a_block * k.barrier_cycles) / cycles_per_us
    start_us = -(-c.blocks // facts.sm_count) * k.block_cycles / cycles_per_us
    bounds = (dram_us, l2_us, fill_us, issue_us, pipes_us, shared_us, latency_us, start_us)
    largest = max(bounds)
    if not largest:
        return facts.launch_us
    return facts.launch_us + largest * sum((bound / largest) ** k.sharpness for bound in bounds) ** (1 / k.sharpness)


def blocks_per_sm(c: LaunchCounts, facts: DeviceFacts, registers: int | None = None) -> int:
    """Blocks resident on one SM, by threads, shared memory and, where known, registers."""
    warps = -(-c.threads // 32)
    found = min(facts.threads_per_sm // (warps * 32), MAX_BLOCKS_PER_SM)
    if c.shared_bytes:
        found = min(found, facts.shared_per_sm // (c.shared_bytes + 1024))
    if registers:
        found = min(found, facts.registers_per_sm // (-(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT * warps))
    return max(1, found)
