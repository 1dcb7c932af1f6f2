"""How often a warp has to wait for memory: of each basic block, the longest chain of loads that need one another's results.

Loads that do not depend on each other are in flight together: ptxas moves them before their first use. A load that may see an
earlier store of its block stays behind what that store waits for; waits for asynchronous copies are waits.
"""

from __future__ import annotations

from forge_tui.cuda.host.lower import Block, Kernel
from forge_tui.cuda.host.ptx import Instruction

NEAR = {"shared", "shared::cta", "local", "param", "const"}


def load_rounds(kernel: Kernel) -> list[int]:
    """Of each basic block, how many times in a row a warp waits for global memory in it."""
    return [_rounds(block) for block in kernel.blocks]


def _rounds(block: Block) -> int:
    level: dict[str, int] = {}
    stored = deepest = waits = 0
    for i in block.instructions:
        here = max((level.get(name, 0) for name in i.reads()), default=0)
        if _is_load(i):
            here = max(here, 0 if "nc" in i.parts else stored) + 1
        elif i.root in ("st", "red") and not NEAR & set(i.parts):
            stored = max(stored, here)
        elif i.root == "cp" and "wait" in i.opcode or i.root == "mbarrier" and "wait" in i.opcode:
            waits += 1
        for name in i.writes():
            level[name] = here
        deepest = max(deepest, here)
    return deepest + waits


def _is_load(i: Instruction) -> bool:
    return i.root in ("ld", "ldu", "atom") and not NEAR & set(i.parts)
