"""What may differ between lanes: control flow, post-dominators, and the class of every register.

A class says over which axes of a chunk (threads, blocks) a value can vary. A register that cannot vary over an axis is
stored once along it. The classes rest on lanes meeting again at post-dominators; `schedule.py` checks that they did before
it lets a partial set of lanes write such a register, and widens every register when they did not.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_tui.cuda.host.lower import EXIT, Block, Kernel
from forge_tui.cuda.host.ptx import Group, Instruction, Register

UNIFORM, THREAD, BLOCK, BOTH = 0, 1, 2, 3
"""Classes, as bits: what a value may vary over."""

THREAD_SPECIALS = ("%laneid", "%warpid", "%lanemask")
CLUSTER_SPECIALS = ("%cluster_ctaid", "%cluster_ctarank", "%clusterid")
SYNCHRONIZING = {"atom", "red", "membar", "fence", "nanosleep"}


@dataclass(slots=True)
class Analysis:
    """Classes of one kernel for one shape of launch."""

    classes: dict[str, int]
    """Of every register that is written."""
    private: set[str]
    """Registers that live inside one basic block: lanes outside the mask never read them."""
    entry_needs: list[int]
    """Of each block, the axes along which its set of lanes must be whole: some register it writes is stored once along them."""
    may_spin: list[bool]
    """Of each block, whether waiting for other lanes makes sense there: it holds an atomic, a fence or a volatile load."""


def analyse(kernel: Kernel, block: tuple[int, int, int], grid: tuple[int, int, int], wide: bool = False) -> Analysis:
    """Classify every register. `wide`: everything varies over everything, which asks nothing of control flow."""
    written = {name for b in kernel.blocks for i in b.instructions for name in i.writes()}
    private = _private(kernel)
    if wide:
        classes = dict.fromkeys(written, BOTH)
        return Analysis(classes, private, [UNIFORM] * len(kernel.blocks), [_may_spin(b) for b in kernel.blocks])
    classes = _classes(kernel, written, private, block, grid)
    needs = []
    for b in kernel.blocks:
        need = UNIFORM
        for instruction in b.instructions:
            for name in instruction.writes():
                if name not in private:
                    need |= BOTH & ~classes[name]
        needs.append(need)
    return Analysis(classes, private, needs, [_may_spin(b) for b in kernel.blocks])


def _may_spin(block: Block) -> bool:
    return any(i.root in SYNCHRONIZING or {"volatile", "acquire", "relaxed", "test_wait", "mmio"} & set(i.parts)
               for i in block.instructions)


def _private(kernel: Kernel) -> set[str]:
    """Registers used in one block only, each use after an unguarded definition there."""
    where: dict[str, set[int]] = {}
    carried: set[str] = set()
    for block in kernel.blocks:
        defined: set[str] = set()
        for instruction in block.instructions:
            reads, writes = instruction.reads(), instruction.writes()
            carried.update(name for name in reads if name not in defined)
            if instruction.guard is None:
                defined.update(writes)
            else:
                carried.update(name for name in writes if name not in defined)
            for name in (*reads, *writes):
                where.setdefault(name, set()).add(block.index)
    return {name for name, blocks in where.items() if len(blocks) == 1} - carried


def _classes(kernel: Kernel, written: set[str], private: set[str], block: tuple[int, int, int],
             grid: tuple[int, int, int]) -> dict[str, int]:
    classes = dict.fromkeys(written, UNIFORM)
    control = [UNIFORM] * len(kernel.blocks)
    regions = {b.index: _region(kernel, b.index, post) for post in [post_dominators(kernel)]
               for b in kernel.blocks if b.branches}
    changed = True
    while changed:
        changed = False
        for b in kernel.blocks:
            for instruction in b.instructions:
                found = result_class(instruction, classes, block, grid)
                for name in instruction.writes():
                    new = classes[name] | found | (UNIFORM if name in private else control[b.index])
                    if new != classes[name]:
                        classes[name] = new
                        changed = True
            if b.branches:
                decides = UNIFORM
                for name in b.last.reads():
                    decides |= classes.get(name, BOTH)
                for index in regions[b.index]:
                    if control[index] | decides != control[index]:
                        control[index] |= decides
                        changed = True
    return classes


def result_class(instruction: Instruction, classes: dict[str, int], block: tuple[int, int, int],
                 grid: tuple[int, int, int]) -> int:
    """Over what the results of an instruction can vary, given the classes of its sources."""
    root, parts = instruction.root, instruction.parts
    if root in ("atom", "vote", "match", "activemask", "elect", "call", "mma", "wmma", "ldmatrix", "movmatrix",
                "mbarrier", "isspacep"):
        return BOTH
    if root == "ld" and not {"global", "shared", "param", "const"} & set(parts):
        return BOTH                                        # local memory, or an address that may lead there
    if root == "shfl":
        # A value that all threads share stays what it is; only a second result (in range or not) depends on the lane.
        value = instruction.args[1]
        own = classes.get(value.name, BOTH) if isinstance(value, Register) else UNIFORM
        return BOTH if own & THREAD or isinstance(instruction.args[0], Group) else own
    found = UNIFORM
    for name in instruction.reads():
        found |= classes[name] if name in classes else _special(name, block, grid)
    if root == "ld" and "shared" in parts or root in ("bar", "barrier"):
        found |= BLOCK
    if root == "getctarank":
        return BOTH
    if root == "redux":
        found |= THREAD if instruction.args else UNIFORM
    return found


def _special(name: str, block: tuple[int, int, int], grid: tuple[int, int, int]) -> int:
    if not name.startswith("%"):
        return UNIFORM
    axis = "xyz".find(name[-1]) if "." in name else -1
    if name.startswith("%tid"):
        return THREAD if block[axis] > 1 else UNIFORM
    if name.startswith("%ctaid"):
        return BLOCK if grid[axis] > 1 else UNIFORM
    if name.startswith(CLUSTER_SPECIALS):
        return BLOCK
    if name.startswith(THREAD_SPECIALS):
        return THREAD
    return UNIFORM


def post_dominators(kernel: Kernel) -> list[int]:
    """Of each block, the set (as bits; the last bit is the exit) of blocks every lane that goes on must pass.

    Edges to the exit count only where there is no other way: lanes that leave read nothing any more.
    """
    n = len(kernel.blocks)
    everything = (1 << n + 1) - 1
    sets = [everything] * n + [1 << n]
    ways = [going_on(b) for b in kernel.blocks]
    changed = True
    while changed:
        changed = False
        for index in reversed(range(n)):
            new = everything
            for successor in ways[index]:
                new &= sets[successor]
            new |= 1 << index
            if new != sets[index]:
                sets[index] = new
                changed = True
    return sets[:n]


def going_on(block: Block) -> list[int]:
    """Successors, without the exit where lanes have another way (the exit is block `n` = -1 from the end)."""
    inner = [s for s in block.successors if s != EXIT]
    return inner or [EXIT]


def _region(kernel: Kernel, index: int, post: list[int]) -> set[int]:
    """Blocks that some lanes of a branch may pass before all of them meet again at its immediate post-dominator."""
    n = len(kernel.blocks)
    candidates = [j for j in range(n) if post[index] >> j & 1 and j != index]
    meet = max(candidates, key=lambda j: post[j].bit_count(), default=n)
    seen: set[int] = set()
    todo = [s for s in going_on(kernel.blocks[index]) if s not in (meet, EXIT)]
    while todo:
        j = todo.pop()
        if j not in seen:
            seen.add(j)
            todo += [k for k in going_on(kernel.blocks[j]) if k not in (meet, EXIT)]
    return seen
