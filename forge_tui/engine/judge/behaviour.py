"""How a kernel uses the device: what one multiprocessor holds of it, and which resource it fills. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.program import KernelInfo, Launch
from forge_tui.cuda.target import LaunchCounts

MAX_BLOCKS_PER_SM = 32
"""Resident blocks of one multiprocessor, compute capability 8.0 and 9.0 (CUDA C++ programming guide, technical
specifications)."""

REGISTER_UNIT = 256
"""Registers are given to a warp in units of this many (the same table)."""

SHARED_RESERVED = 1024
"""Bytes of shared memory that the system takes of each block, compute capability 8.0 and up (the same table)."""

ISSUE_PER_CYCLE = 4
"""Warp instructions a multiprocessor issues a cycle: four schedulers, compute capability 7.0 to 9.0."""


class Behaviour(Struct, frozen=True):
    """Of the launch with the most threads: the others are tails of a few microseconds."""

    registers: int | None
    """Of one thread; None where the compiler does not say."""
    shared_bytes: int
    """Static and dynamic, of one block."""
    threads: int
    """Of one block."""
    occupancy: float
    """Resident warps over those a multiprocessor can hold, 0 to 1; by what is known of threads, registers, shared
    memory."""
    dram: float | None = None
    """Bytes that must move over those the device could have moved in the kernel's time, 0 to 1."""
    sm: float | None = None
    """Issued warp instructions over those that could have been issued, 0 to 1; None where nothing counts them."""
    l2: float | None = None
    """None where nothing counts it."""


def behaviour_of(
    launches: Sequence[Launch],
    kernels: Sequence[KernelInfo],
    facts: DeviceFacts,
    *,
    us: float | None = None,
    bytes_moved: int = 0,
    counts: Sequence[LaunchCounts] = (),
) -> Behaviour | None:
    """What is known of one bound program. us: of one call. None when nothing is launched."""
    running = [launch for launch in launches if _threads(launch)]
    if not running:
        return None
    main = max(running, key=_threads)
    info = next((kernel for kernel in kernels if kernel.name == main.kernel), KernelInfo(main.kernel))
    block = main.block[0] * main.block[1] * main.block[2]
    shared = main.shared + (info.static_shared or 0)
    dram = sm = None
    if us:
        dram = min(1.0, bytes_moved / (facts.copy_bytes_per_s * us * 1e-6))
        if counts:
            possible = us * facts.clock_mhz * facts.sm_count * ISSUE_PER_CYCLE
            sm = min(1.0, sum(count.warp_instructions for count in counts) / possible)
    return Behaviour(info.registers, shared, block, occupancy(block, info.registers, shared, facts), dram, sm)


def occupancy(threads: int, registers: int | None, shared_bytes: int, facts: DeviceFacts) -> float:
    """Resident warps over the most there can be, for blocks of `threads` threads."""
    warps = -(-threads // 32)
    most = facts.threads_per_sm // 32
    blocks = min(MAX_BLOCKS_PER_SM, most // warps)
    if registers:
        a_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
        blocks = min(blocks, facts.registers_per_sm // (a_warp * warps))
    if shared_bytes:
        blocks = min(blocks, facts.shared_per_sm // (shared_bytes + SHARED_RESERVED))
    return blocks * warps / most


def _threads(launch: Launch) -> int:
    total = 1
    for size in (*launch.grid, *launch.block):
        total *= size
    return total
