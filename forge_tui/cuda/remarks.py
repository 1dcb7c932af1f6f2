"""What the counts of a launch say in words: bank conflicts, scattered accesses, divergence, contention, spills, with their lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from forge_tui.cuda.program import KernelInfo
from forge_tui.cuda.target import LaunchCounts, LineCounts

Kind = Literal["bank_conflict", "scattered", "divergence", "contention", "hot_address", "spills", "local_memory"]

SMALL = 0.02
"""A line whose waste is less than this part of the launch's traffic is not worth a word."""
SCATTERED = 1.5
"""Sectors over the least that would do, from which an access is called scattered: a misaligned row has up to 1.25."""
SPLIT = 0.1
"""Part of the warps that split at a branch, from which it is called divergent: the last warp of a row always may."""
IDLE = 0.1
"""Part of lanes that idle over a whole launch, below which divergence does not matter."""
HOT = 256
"""Updates of one address, from which their turn at it is worth a word: each takes some nanoseconds in L2."""


class Remark(Struct, frozen=True):
    """One thing worth knowing of a launch. Not a fault."""

    kind: Kind
    kernel: str
    line: int | None
    """In the kernel file."""
    text: str
    """`32-way bank conflict at line 27 (shared load): 2,048 passes where 64 would do`."""
    cure: str
    """What to do about it."""


def remarks(counts: Iterable[LaunchCounts], kernels: Sequence[KernelInfo] = ()) -> list[Remark]:
    """Of all launches, the first of each kind, kernel and line. kernels: what the compiler says of each."""
    infos = {info.name: info for info in kernels}
    found: dict[tuple[str, str, int | None], Remark] = {}
    for launch in counts:
        for remark in (*_lines(launch), *_launch(launch, infos.get(launch.kernel))):
            found.setdefault((remark.kind, remark.kernel, remark.line), remark)
    return list(found.values())


def _lines(launch: LaunchCounts) -> Iterable[Remark]:
    for line in launch.lines:
        waste = line.passes - line.least
        if line.kind.startswith("shared") and waste > SMALL * launch.shared_waves and line.passes >= 2 * line.requests:
            yield _remark("bank_conflict", launch, line, f"{_ways(line)}-way bank conflict",
                          "pad the rows of the array by one word, or let neighbouring lanes use neighbouring words")
        elif line.kind.startswith("global") and waste > SMALL * launch.global_sectors and line.passes > SCATTERED * line.least:
            yield _remark("scattered", launch, line, "scattered access",
                          "let neighbouring lanes touch neighbouring addresses, or pass the tile through shared memory")
        elif line.kind == "atomic" and line.passes >= 2 * line.requests:
            yield _remark("contention", launch, line, f"{_ways(line)} lanes of a warp update one address in turn",
                          "reduce over the warp or the block first, then one atomic")
        elif line.kind == "branch" and line.passes > SPLIT * line.requests and _idle(launch) > IDLE:
            text = f"divergent branch at line {line.line}: {line.passes:,} of {line.requests:,} warps split, " \
                   f"{_idle(launch):.0%} of the lanes idle over the launch"
            yield Remark("divergence", launch.kernel, line.line, text, "let the lanes of a warp take the same way: branch by warp, not by thread")


def _launch(launch: LaunchCounts, info: KernelInfo | None) -> Iterable[Remark]:
    if launch.atomic_hottest >= HOT and launch.atomic_hottest > launch.atomic_passes // 2:
        yield Remark("hot_address", launch.kernel, None, f"one address is updated {launch.atomic_hottest:,} times, one after the other",
                     "let each block add up its part and update once, or spread the sums and add them in a second launch")
    if info is not None and info.spill_bytes:
        yield Remark("spills", launch.kernel, None, f"{info.spill_bytes} bytes a thread are spilled from {info.registers} registers",
                     "keep less alive at once: smaller tiles, fewer unrolled steps, or fewer threads a block in __launch_bounds__")
    if launch.local_bytes:
        yield Remark("local_memory", launch.kernel, None, f"{launch.local_bytes} bytes of arrays a thread live in local memory",
                     "index arrays by constants only: unroll the loops over them")


def _remark(kind: Kind, launch: LaunchCounts, line: LineCounts, what: str, cure: str) -> Remark:
    unit = "sectors" if kind == "scattered" else "passes"
    text = f"{what} at line {line.line} ({line.kind}): {line.passes:,} {unit} where {line.least:,} would do"
    return Remark(kind, launch.kernel, line.line, text, cure)


def _ways(line: LineCounts) -> int:
    """Passes of a request as people say it: what each takes, on the whole."""
    return max(2, round(line.passes / line.requests))


def _idle(launch: LaunchCounts) -> float:
    return 1 - launch.thread_instructions / (32 * launch.warp_instructions) if launch.warp_instructions else 0.0
