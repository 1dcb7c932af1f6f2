"""Modelled time of counted launches on a named GPU: a small sum of bounds, meant for ranking and called modelled everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.program import KernelInfo
from forge_tui.cuda.target import LaunchCounts

SECTOR = 32
ISSUE_PER_CYCLE = 4
"""Warp instructions an SM issues a cycle (four schedulers, compute capability 7.0 to 9.0)."""
PIPE_CYCLES = {"special": 2.0, "conversion": 0.5, "float64": 0.5}
"""Cycles of an SM that a warp instruction holds a pipe of few lanes for: 16 lanes a cycle for special functions, 64 for conversions and
double precision (CUDA C++ programming guide, throughput of native arithmetic instructions, 9.0)."""
L1_BYTES, SCATTERED_BYTES, FILL_BYTES = 128, 64, 64
"""Bytes a cycle that an SM gets out of its L1, out of sectors that requests need but not for what they ask, and from the L2 (NVIDIA's
descriptions of Volta and later; the second: landscapes of strided loads)."""
L2_BYTES = 27
"""Bytes a cycle that the L2 delivers, for each SM: 5.5 TB/s to 114 SMs at 1.755 GHz (Chips and Cheese, "Nvidia's H100: Funny L2, and Tons of
Bandwidth")."""
L1_CYCLES, L2_CYCLES = 40, 270
"""From a load to its use, out of these caches (Luo et al. 2024, arXiv 2402.13499, H100)."""
MAX_BLOCKS_PER_SM = 32
REGISTER_UNIT = 256
"""Registers are given to a warp in units of this many (CUDA C++ programming guide, technical specifications)."""
OWN_REGISTERS, LEAST_REGISTERS = 9, 8
"""Registers of a thread for addresses and counters, which loads cannot fill; and those that ptxas always finds for loads."""
CLUSTER_REACH = {1: 132, 2: 132, 4: 124, 8: 120, 16: 112}
"""Of 132 SMs, those that blocks of a cluster of so many can be on: a cluster stays within a GPC, and one has 14 SMs, the others 16 or 18.
120 of 132 for 8 on an H100: accel-sim/gpu-app-collection#87, NVIDIA/cutlass#1921; the others follow from it."""


class Constants(Struct, frozen=True):
    """What the device's facts do not say. Fitted on an H200 by `python -m benchmarks.calibration --fit` within what each may mean, on the
    landscapes of benchmarks/landscapes; docs/measured.md says how well, and how well on operators left out of the fit."""

    dram_cycles: float = 800
    """From a load to its use, out of DRAM, others being on their way."""
    issue: float = 1.2
    """Issue slots that a machine instruction takes: schedulers find no ready warp, registers are in one bank."""
    chain: float = 2.25
    """Cycles for one of `chain_cycles`: units that others use, branches, what was not foreseen."""
    barrier_cycles: float = 97
    """Of one barrier of a block."""
    block_cycles: float = 112
    """Between the starts of two blocks on one multiprocessor."""
    cold_us: float = 0.55
    """From the start of a launch to the first block's work, with parameters and code that nothing has brought near; an empty kernel has
    little of it."""
    fetch_cycles: float = 0.61
    """Of a machine instruction that no warp has fetched yet."""
    l2_kept: float = 0.81
    """Part of the L2 that still holds what an earlier launch touched, and that takes stores without writing them out before the end."""
    refill: float = 0.53
    """Part of the sectors stored in pieces that leave the L2 incomplete, and are read back for the rest."""
    sharpness: float = 2.5
    """How the bounds combine: their norm of this order. 1: one after the other; large: the largest alone."""


CONSTANTS = Constants()


def modelled_us(counts: Iterable[LaunchCounts], facts: DeviceFacts, kernels: Sequence[KernelInfo] = (), constants: Constants = CONSTANTS) -> float:
    """Microseconds of all launches, one after the other. kernels: their registers, where the compiler says.

    A launch takes the device's launch time, the fetching of its code, the first wait of its warps with what comes of it, and a norm of four
    bounds: memory, instructions, starts of blocks, and latency (the other waits of a warp, in as many rounds as resident blocks need). A
    launch finds in the L2 what the ones before touched, as far as that fits.
    """
    registers = {kernel.name: kernel.registers for kernel in kernels}
    total, there = 0.0, 0.0
    for c in counts:
        total += launch_us(c, facts, registers.get(c.kernel), constants, there)
        there += SECTOR * (sum(_loaded(c)) + _stored(c))
    return total


def launch_us(c: LaunchCounts, facts: DeviceFacts, registers: int | None = None, constants: Constants = CONSTANTS,
              there: float = 0.0) -> float:
    """Microseconds of one launch. there: bytes that earlier launches of the call touched."""
    k = constants
    reach = max(1, facts.sm_count * CLUSTER_REACH.get(c.cluster, CLUSTER_REACH[16]) // CLUSTER_REACH[1])
    most = -(-c.blocks // reach) / max(1, c.blocks)
    """Part of the blocks that the SM with the most of them has."""
    alone = warp_cycles(c, facts, registers, k, there)
    waits = c.load_rounds / max(1, c.blocks * -(-c.threads // 32))
    first = alone / max(1.0, waits)
    """Until a warp has done what its first wait was for, all warps are at the same point, and nothing else can go on."""
    rounds = -(-c.blocks // (blocks_per_sm(c, facts, registers) * reach))
    mhz = facts.clock_mhz
    bounds = (memory_us(c, facts, k, reach, there), most * compute_cycles(c, k) / mhz, most * c.blocks * k.block_cycles / mhz,
              (rounds * alone - first) / mhz)
    largest = max(bounds)
    together = largest * sum((bound / largest) ** k.sharpness for bound in bounds) ** (1 / k.sharpness) if largest else 0.0
    return facts.launch_us + k.cold_us + (k.fetch_cycles * c.code + first) / mhz + together


def memory_us(c: LaunchCounts, facts: DeviceFacts, k: Constants, reach: int, there: float) -> float:
    """The slowest of DRAM, L2, the way from the L2 into the busiest of `reach` SMs, and its L1.

    What all blocks read, an SM gets from the L2 once. Stores that the L2 has room for are written out after the launch's end. Sectors stored
    in pieces are read back in part once they must leave.
    """
    fresh, again = _loaded(c)
    stored, room = _stored(c), k.l2_kept * facts.l2_bytes / SECTOR
    out = max(0.0, stored - room)
    pieces = k.refill * max(0, c.store_sectors - stored) * out / max(1, stored)
    if there and there <= room * SECTOR:
        fresh, again = max(0.0, fresh - there / SECTOR), again + min(fresh, there / SECTOR)
    dram = SECTOR * (fresh + out + pieces) / (facts.copy_bytes_per_s * 1e-6)
    through = SECTOR * (fresh + again * min(1.0, reach / max(1, c.blocks)) + stored)
    l2 = through / (L2_BYTES * facts.sm_count * facts.clock_mhz)
    needed = min(c.global_sectors, c.global_least or c.global_sectors)
    l1 = SECTOR * (needed / L1_BYTES + (c.global_sectors - needed) / SCATTERED_BYTES)
    most = -(-c.blocks // reach) / max(1, c.blocks)
    return max(dram, l2, most * max(through / FILL_BYTES, l1) / facts.clock_mhz)


def compute_cycles(c: LaunchCounts, k: Constants) -> float:
    """Cycles of one SM for all blocks: the busiest of instruction issue, narrow pipes, and the one of shuffles and shared memory.

    Integer work has half as many lanes as float32, but ptxas spreads it over both pipes (IMAD for sums, shifts and moves).
    """
    warps = {kind.name: kind.warps for kind in c.classes}
    issued = c.issued or c.warp_instructions
    narrow = sum(PIPE_CYCLES.get(name, 0.0) * count for name, count in warps.items())
    return max(k.issue * issued / ISSUE_PER_CYCLE, narrow, c.shared_waves + warps.get("warp", 0))


def warp_cycles(c: LaunchCounts, facts: DeviceFacts, registers: int | None, k: Constants, there: float) -> float:
    """Cycles of an average warp from its start to its end, had it the SM for itself: waits for memory, its chain of instructions, barriers.

    Where registers are too few for all loads of a step besides what is live, the step's loads go out in several turns.
    """
    warps = max(1, c.blocks * -(-c.threads // 32))
    waits = c.load_rounds / warps
    if registers:
        for step in c.load_steps:
            free = max(LEAST_REGISTERS, registers - step.live - OWN_REGISTERS)
            waits += step.warps / warps * max(0.0, step.values / free - 1)
    chain = c.chain_cycles or 4 * c.warp_instructions
    return waits * _wait_cycles(c, facts, k, there) + k.chain * chain / warps + k.barrier_cycles * c.barriers / max(1, c.blocks)


def _wait_cycles(c: LaunchCounts, facts: DeviceFacts, k: Constants, there: float) -> float:
    """Of one wait, by where the bytes come from: DRAM, the L2, or the block's own L1."""
    fresh, again = _loaded(c)
    asked = max(1.0, fresh + again, c.global_least - _stored(c))
    if there and there <= k.l2_kept * facts.l2_bytes:
        fresh, again = 0.0, fresh + again
    return (fresh * k.dram_cycles + again * L2_CYCLES + (asked - fresh - again) * L1_CYCLES) / asked


def _loaded(c: LaunchCounts) -> tuple[float, float]:
    """Sectors that blocks load: from DRAM, and those that the L2 has because other blocks loaded them. Where nobody counted a block's
    distinct sectors, all that were asked for."""
    asked = max(0, c.global_sectors - c.store_sectors)
    loaded = min(c.global_loaded, asked) if c.global_loaded or c.global_stored else asked
    again = min(loaded, c.global_common) * (c.blocks - 1) / max(1, c.blocks)
    return loaded - again, again


def _stored(c: LaunchCounts) -> int:
    return min(c.global_stored, c.global_sectors)


def blocks_per_sm(c: LaunchCounts, facts: DeviceFacts, registers: int | None = None) -> int:
    """Blocks resident on one SM, by threads, shared memory and, where known, registers."""
    warps = -(-c.threads // 32)
    found = min(facts.threads_per_sm // (warps * 32), MAX_BLOCKS_PER_SM)
    if c.shared_bytes:
        found = min(found, facts.shared_per_sm // (c.shared_bytes + 1024))
    if registers:
        found = min(found, facts.registers_per_sm // (-(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT * warps))
    return max(1, found)
