"""Modelled time of counted launches on a named GPU: a small sum of bounds, meant for ranking and called modelled everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.target import LaunchCounts

ISSUE_PER_CYCLE = 4
"""Warp instructions an SM issues a cycle (four schedulers, compute capability 7.0 to 9.0)."""
PTX_TO_MACHINE = 1.2
"""Machine instructions for one of PTX, roughly: conversions and divisions expand, address arithmetic folds."""
SECTOR = 32
BANK_BYTES = 128
"""Shared memory bytes an SM moves a cycle in one pass."""
MEMORY_LATENCY_CYCLES = 600
"""From a load to its use, out of DRAM."""
BARRIER_CYCLES = 30
IN_FLIGHT = 4
"""Loads of one warp that overlap, typically: the compiler hoists the loads of an unrolled loop."""
MAX_BLOCKS_PER_SM = 32


def modelled_us(counts: Iterable[LaunchCounts], facts: DeviceFacts) -> float:
    """Microseconds of all launches, one after the other.

    A launch takes the device's launch time plus the largest of four bounds: bytes over the measured bandwidth,
    instruction issue, shared memory passes, and latency (a warp's loads and barriers in sequence, for as many rounds as
    the resident blocks need). Compute units that are idle in the last round, or never get a block, lengthen the middle two.
    """
    return sum(launch_us(c, facts) for c in counts)


def launch_us(c: LaunchCounts, facts: DeviceFacts) -> float:
    """Microseconds of one launch."""
    warps = -(-c.threads // 32)
    resident = blocks_per_sm(c, facts)
    rounds = -(-c.blocks // (resident * facts.sm_count))
    busy = min(facts.sm_count, c.blocks)
    cycles_per_us = facts.clock_mhz
    balance = max(1.0, -(-c.blocks // facts.sm_count) * facts.sm_count / max(1, c.blocks)) if c.blocks > facts.sm_count else 1.0

    moved_us = c.global_sectors * SECTOR / facts.copy_bytes_per_s * 1e6
    saturation = min(1.0, busy * min(resident, -(-c.blocks // facts.sm_count)) * warps * 32 / (facts.sm_count * 512))
    moved_us /= max(saturation, 1e-3)                       # too few threads in flight cannot use the whole bandwidth
    issue_us = c.warp_instructions * PTX_TO_MACHINE / ISSUE_PER_CYCLE / busy * balance / cycles_per_us
    shared_us = c.shared_waves / busy * balance / cycles_per_us
    loads_of_a_warp = c.global_requests / max(1, c.blocks * warps)
    barriers_of_a_block = c.barriers / max(1, c.blocks)
    latency_us = rounds * (loads_of_a_warp / IN_FLIGHT * MEMORY_LATENCY_CYCLES + barriers_of_a_block * BARRIER_CYCLES) / cycles_per_us
    return facts.launch_us + max(moved_us, issue_us, shared_us, latency_us)


def blocks_per_sm(c: LaunchCounts, facts: DeviceFacts) -> int:
    """Blocks resident on one SM, by threads and shared memory (registers are unknown here)."""
    warps = -(-c.threads // 32)
    by_threads = facts.threads_per_sm // (warps * 32)
    by_shared = facts.shared_per_sm // (c.shared_bytes + 1024) if c.shared_bytes else MAX_BLOCKS_PER_SM
    return max(1, min(by_threads, by_shared, MAX_BLOCKS_PER_SM))
