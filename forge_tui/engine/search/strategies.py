"""The strategies a kernel can be improved by: the arms of the search, and the plan and pitfalls a writer is given."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Strategy(Struct, frozen=True):
    """One way to make a kernel faster."""

    name: str
    resource: Literal["sm", "dram", "l2", "latency"]
    """What it relieves."""
    plan: str
    pitfalls: str


STRATEGIES: tuple[Strategy, ...] = (
    Strategy(
        "vectorization", "dram",
        "Move 16 bytes per thread and access: load into a vector type, work on its elements in registers, store the same "
        "way. Keep several independent loads in flight before the first use.",
        "The address must be 16-byte aligned at every row, not only at the first: require it in [require] or handle head "
        "and tail elements. A width that does not divide the row needs a scalar tail."),
    Strategy(
        "fusion", "dram",
        "Read every input once and write every output once: merge passes, keep the row in registers or shared memory "
        "between them, use online (single-pass) forms of the reductions.",
        "A row that does not fit registers spills; check rows against shared memory before keeping them there. One-pass "
        "variance by sum of squares loses digits: use Welford or a second pass over the kept row."),
    Strategy(
        "tiling", "l2",
        "Change what one block owns: rows per block, elements per thread, a tile kept in shared memory. Choose it so "
        "that neighbouring threads touch neighbouring addresses and every SM has several blocks.",
        "Few large blocks leave SMs idle at the end; many small ones pay for launch and reduction. Shared tiles need "
        "padding against bank conflicts."),
    Strategy(
        "split", "sm",
        "Fill the device: split long rows over several blocks with a second, tiny launch (or a workspace) to combine, "
        "give short rows to a warp or less each, use grid-stride loops sized from sm_count.",
        "Combining partial results must not depend on the order of blocks unless the result is exact. Atomics on floats "
        "make results differ between runs."),
    Strategy(
        "pipelining", "latency",
        "Overlap loads with arithmetic: cp.async or bulk copies into a ring of shared-memory stages, or plain register "
        "double-buffering with unrolled loops.",
        "Every stage needs its wait before use and its barrier before reuse. More stages cost occupancy."),
    Strategy(
        "access", "dram",
        "Change layout and order of access: coalesce along the innermost stride, transpose through shared memory, "
        "choose the loop order by the strides in the card, use the read-only path for reused tables.",
        "Strides in the card are in elements. Sizes of 1 carry arbitrary strides. Expanded tensors have stride 0."),
    Strategy(
        "reordering", "sm",
        "Do less work per element: hoist invariants, replace divisions by multiplications with a reciprocal computed "
        "once, use warp shuffles instead of shared-memory reductions, drop barriers that order nothing.",
        "Rounding must stay within what eager itself loses: accumulate in float32. No fast-math flag is given, and "
        "approximate intrinsics must be within the tolerance for all values."),
)

NAMES = tuple(strategy.name for strategy in STRATEGIES)


def find_strategy(name: str) -> Strategy | None:
    return next((strategy for strategy in STRATEGIES if strategy.name == name), None)
