"""How often a warp has to wait for memory: loads that need no other's result are in flight together, a use waits for all of them.

Within a basic block ptxas moves loads before their first use, so the longest chain of loads that need one another counts; a load
that may see an earlier store of the block stays behind what that store waits for. What is loaded and not used in its block is waited for by the first later
block that uses it. Waits for asynchronous copies are waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from forge_tui.cuda.host.costs import chain_cycles
from forge_tui.cuda.host.liveness import NEAR, is_load, load_steps
from forge_tui.cuda.host.lower import Block, Kernel
from forge_tui.cuda.host.ptx import Instruction, Register


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one basic block."""

    inside: int
    """Waits for what is loaded in the block itself."""
    uses: frozenset[str]
    """Registers it reads from before."""
    left: frozenset[str]
    """Registers it loads and does not use."""
    copies: tuple[tuple[str, str], ...]
    """Registers that are copies of registers from before: a copy waits for nothing."""
    cycles: float
    """Of one warp alone, from the first instruction to the last result, waits for global memory apart."""


NOTHING = Waits(0, frozenset(), frozenset(), (), 0.0)
SHORT = 24
"""Instructions of a guarded piece up to which ptxas puts it under predicates, so that loads of several pieces go out together."""


@lru_cache(maxsize=64)      # a kernel is launched again and again
def waits_of(kernel: Kernel) -> list[Waits]:
    """Of each basic block; a chain of short guarded pieces counts as one block, at its head."""
    found = [NOTHING] * len(kernel.blocks)
    ways_in = [0] * len(kernel.blocks)
    for block in kernel.blocks:
        for successor in block.successors:
            if successor >= 0:
                ways_in[successor] += 1
    index = 0
    while index < len(kernel.blocks):
        chain = _chain(kernel, index, ways_in)
        waits = _waits([i for block in chain for i in block.instructions])
        loading = next((block.index for block in chain if any(is_load(i) for i in block.instructions)), index)
        found[index] = replace(waits, inside=0) if loading != index else waits
        if loading != index:      # what a guard skips is not waited for
            found[loading] = replace(NOTHING, inside=waits.inside)
        index += len(chain)
    return found


def _chain(kernel: Kernel, index: int, ways_in: list[int]) -> list[Block]:
    """A block and the short pieces after it that a guard may skip, each with what follows it."""
    blocks = kernel.blocks
    chain = [blocks[index]]
    while index + 2 < len(blocks) and sorted(blocks[index].successors) == [index + 1, index + 2] and blocks[index].last.root == "bra" \
            and blocks[index + 1].successors == [index + 2] and len(blocks[index + 1].instructions) <= SHORT \
            and ways_in[index + 1] == 1 and ways_in[index + 2] == 2 and blocks[index + 1].last.root not in ("bar", "barrier"):
        chain += blocks[index + 1:index + 3]
        index += 2
    return chain


def _waits(instructions: list[Instruction]) -> Waits:
    level: dict[str, int] = {}
    loaded: dict[str, int] = {}
    origin: dict[str, str] = {}
    """What a register is a copy of."""
    uses: set[str] = set()
    stored = consumed = waits = 0
    for i in instructions:
        if i.root == "mov" and i.guard is None and all(isinstance(x, Register) for x in i.args):
            target, source = (x.name for x in i.args)      # type: ignore[union-attr]
            source = origin.get(source, source)
            origin[target], level[target] = source, level.get(source, 0)
            continue
        reads = [origin.get(name, name) for name in i.reads()]
        here = max((level.get(name, 0) for name in reads), default=0)
        consumed = max(consumed, here)
        uses.update(name for name in reads if name not in level)
        for name in reads:
            loaded.pop(name, None)
        if is_load(i):
            here = max(here, 0 if "nc" in i.parts else stored) + 1
            loaded.update(dict.fromkeys(i.writes(), here))
        elif i.root in ("st", "red") and not NEAR & set(i.parts):
            stored = max(stored, here)
        elif i.root == "cp" and "wait" in i.opcode or i.root == "mbarrier" and "wait" in i.opcode:
            waits += 1
        for name in i.writes():
            level[name] = here
            origin.pop(name, None)
    copies = tuple((name, source) for name, source in origin.items() if source not in level)
    loaded = {name: rank for name, rank in loaded.items() if rank > consumed}      # what was asked for with it has come with it
    left = frozenset(loaded) | {name for name, source in origin.items() if source in loaded}
    return Waits(max([consumed, *(rank - 1 for rank in loaded.values())]) + waits, frozenset(uses), left, copies, chain_cycles(instructions))


class Waiting:
    """What the sampled block of a chunk is waiting for, as it goes."""

    def __init__(self, kernel: Kernel) -> None:
        self.waits = waits_of(kernel)
        self.steps = load_steps(kernel)
        self.taken: dict[tuple[int, int], float] = {}
        """Warps that came to each kind of step."""
        self.flying: set[str] = set()
        self.rounds = 0
        """Waits of warps, added up."""
        self.cycles = 0.0
        """Cycles of warps in their own chains of instructions, added up."""

    def ran(self, index: int, warps: int) -> None:
        """Basic block `index` ran for `warps` warps."""
        block = self.waits[index]
        if not self.flying.isdisjoint(block.uses):
            self.rounds += warps
            self.flying.clear()
        self.rounds += block.inside * warps
        self.cycles += block.cycles * warps
        if index in self.steps:
            self.taken[self.steps[index]] = self.taken.get(self.steps[index], 0) + warps
        if self.flying:
            self.flying.update(name for name, source in block.copies if source in self.flying)
        self.flying |= block.left
