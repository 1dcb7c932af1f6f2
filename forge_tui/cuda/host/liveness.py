"""Registers that loads fill, and those that hold something needed later: what bounds the loads that ptxas can send out together."""

from __future__ import annotations

from functools import lru_cache

from forge_tui.cuda.host.lower import Block, Kernel
from forge_tui.cuda.host.ptx import SIZES, Instruction

NEAR = {"shared", "shared::cta", "local", "param", "const"}


@lru_cache(maxsize=64)      # a kernel is launched again and again
def load_steps(kernel: Kernel) -> dict[int, tuple[int, int]]:
    """Of each basic block with loads from global memory: 32-bit registers they fill, and those live at its beginning."""
    filled = {block.index: sum(_words(kernel, name) for i in block.instructions if is_load(i) for name in i.writes()) for block in kernel.blocks}
    filled = {index: words for index, words in filled.items() if words}
    if not filled:
        return {}
    live = live_in(kernel)
    return {index: (words, sum(_words(kernel, name) for name in live[index])) for index, words in filled.items()}


def is_load(i: Instruction) -> bool:
    """Loads, or an atomic whose result is wanted, from global memory."""
    return i.root in ("ld", "ldu", "atom") and not NEAR & set(i.parts)


def live_in(kernel: Kernel) -> list[set[str]]:
    """Registers that hold, at the beginning of each basic block, what it or a later one reads."""
    reads, writes = zip(*(_first_reads(block) for block in kernel.blocks), strict=True)
    live: list[set[str]] = [set(found) for found in reads]
    changed = True
    while changed:
        changed = False
        for block in reversed(kernel.blocks):
            after = {name for successor in block.successors if successor >= 0 for name in live[successor]}
            more = after - writes[block.index] - live[block.index]
            if more:
                live[block.index] |= more
                changed = True
    return live


def _first_reads(block: Block) -> tuple[set[str], set[str]]:
    """Registers that a block reads before it writes them, and those it surely writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for i in block.instructions:
        reads.update(name for name in i.reads() if name not in writes)
        if i.guard is None:
            writes.update(i.writes())
    return reads, writes


def _words(kernel: Kernel, name: str) -> int:
    """32-bit registers of one PTX register; predicates and special registers take none."""
    kind = kernel.registers.get(name)
    return 0 if kind in (None, "pred") else -(-SIZES[kind] // 4)
