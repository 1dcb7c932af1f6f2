"""How often a warp has to wait for memory: loads that need no other's result are in flight together, a use waits for all of them.

Within a basic block ptxas moves loads before their first use, so the longest chain of loads that need one another counts; a load
that may see an earlier store of the block stays behind what that store waits for. What is loaded and not used in its block is waited for by the first later
block that uses it. Waits for asynchronous copies are waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_tui.cuda.host.lower import Block, Kernel
from forge_tui.cuda.host.ptx import Instruction

NEAR = {"shared", "shared::cta", "local", "param", "const"}


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one basic block."""

    inside: int
    """Waits for what is loaded in the block itself."""
    uses: frozenset[str]
    """Registers it reads from before."""
    left: frozenset[str]
    """Registers it loads and does not use."""


def waits_of(kernel: Kernel) -> list[Waits]:
    return [_waits(block) for block in kernel.blocks]


def _waits(block: Block) -> Waits:
    level: dict[str, int] = {}
    loaded: dict[str, int] = {}
    uses: set[str] = set()
    stored = consumed = waits = 0
    for i in block.instructions:
        reads = i.reads()
        here = max((level.get(name, 0) for name in reads), default=0)
        consumed = max(consumed, here)
        uses.update(name for name in reads if name not in level)
        for name in reads:
            loaded.pop(name, None)
        if _is_load(i):
            here = max(here, 0 if "nc" in i.parts else stored) + 1
            loaded.update(dict.fromkeys(i.writes(), here))
        elif i.root in ("st", "red") and not NEAR & set(i.parts):
            stored = max(stored, here)
        elif i.root == "cp" and "wait" in i.opcode or i.root == "mbarrier" and "wait" in i.opcode:
            waits += 1
        for name in i.writes():
            level[name] = here
    return Waits(max([consumed, *(rank - 1 for rank in loaded.values())]) + waits, frozenset(uses), frozenset(loaded))


def _is_load(i: Instruction) -> bool:
    return i.root in ("ld", "ldu", "atom") and not NEAR & set(i.parts)


class Waiting:
    """What the sampled block of a chunk is waiting for, as it goes."""

    def __init__(self, kernel: Kernel) -> None:
        self.waits = waits_of(kernel)
        self.flying: set[str] = set()
        self.rounds = 0
        """Waits of warps, added up."""

    def ran(self, index: int, warps: int) -> None:
        """Basic block `index` ran for `warps` warps."""
        block = self.waits[index]
        if not self.flying.isdisjoint(block.uses):
            self.rounds += warps
            self.flying.clear()
        self.rounds += block.inside * warps
        self.flying |= block.left
