"""What one PTX instruction costs a warp: machine instructions that ptxas makes of it, and cycles until its result may be used.

Both are estimates for ranking. Latencies: arithmetic 4 cycles, shuffles and shared memory 23 to 33 (Luo et al. 2024 and 2025,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499 and 2501.12084; Jia et al. 2018, arXiv 1804.06826, whose
table of dependent-issue latencies has the special functions). Machine instructions: what ptxas of CUDA 13 emits for sm_90.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from forge_tui.cuda.host.classes import class_of
from forge_tui.cuda.host.lower import Kernel
from forge_tui.cuda.host.ptx import Group, Instruction, Register, is_special

CYCLES = {"float32": 4, "integer": 4, "move": 4, "half": 5, "float64": 8, "conversion": 8, "special": 20, "warp": 24, "shared": 30, "local": 34,
          "matrix": 33, "atomic": 40, "control": 4, "global": 4}
"""From issue to the use of the result, by class. Waits for global memory are counted apart (`rounds.py`); here its instructions only issue."""
DIVISION = (9, 44)
"""Machine instructions and cycles of a rounded float32 division or square root on its short path: a special function, then refinement."""
INTEGER_DIVISION = (18, 90)
"""The same of an integer division or remainder by what is not known at compile time."""


def cost_of(i: Instruction) -> tuple[float, float]:
    """Machine instructions and cycles."""
    kind = class_of(i)
    wide = 2.0 if i.type in ("s64", "u64", "b64") else 1.0
    if kind == "move":
        return _move(i)
    if i.root in ("div", "rem") and kind != "float64":
        return DIVISION if i.type == "f32" and "approx" not in i.parts and "full" not in i.parts else \
            (2.0, 28.0) if i.type == "f32" else (INTEGER_DIVISION[0] * wide, INTEGER_DIVISION[1] * wide)
    if i.root in ("sqrt", "rcp") and "rn" in i.parts:
        return DIVISION
    if i.root in ("div", "sqrt", "rcp"):
        return (2.0, 28.0) if kind == "special" else (20.0, 160.0)
    if kind == "integer":
        return _integer(i, wide)
    return 1.0, CYCLES[kind]


def _move(i: Instruction) -> tuple[float, float]:
    """Copies of registers are renamed away, parameters and constants are operands; what is left selects, takes a register of two
    values apart or reads a special register."""
    if i.root in ("selp", "slct"):
        return 1.0, 4.0
    if i.root == "mov" and len(i.args) == 2:
        source = i.args[1]
        if isinstance(source, Group):
            return 1.0, 4.0
        if isinstance(source, Register) and is_special(source.name):
            return 1.0, 20.0
    return 0.0, 0.0


def _integer(i: Instruction, wide: float) -> tuple[float, float]:
    """64-bit addresses: a 32-bit product or a shift added in one instruction; other 64-bit arithmetic in halves. Logic of predicates is
    part of the comparison."""
    if i.type == "pred" or i.root in ("mul", "mad") and "wide" in i.parts:
        return (0.0, 4.0) if i.type == "pred" else (1.0, 4.0)
    if i.root in ("mul", "mad") and wide > 1:
        return 4.0, 12.0
    if i.root == "shl" and wide > 1:
        return 0.0, 0.0
    if i.root in ("add", "sub", "setp", "min", "max") and wide > 1:
        return 2.0, 8.0
    return 1.0, 4.0


@lru_cache(maxsize=64)      # a kernel is launched again and again
def issues_of(kernel: Kernel) -> list[float]:
    """Machine instructions of each basic block."""
    return [sum(cost_of(i)[0] for i in block.instructions) for block in kernel.blocks]


def chain_cycles(instructions: Iterable[Instruction]) -> float:
    """Cycles that one warp alone needs for instructions without a branch between: the longest chain of results, or their issue, whichever
    is longer."""
    ready: dict[str, float] = {}
    issued = end = 0.0
    for i in instructions:
        issues, cycles = cost_of(i)
        done = max((ready.get(name, 0.0) for name in i.reads()), default=0.0) + cycles
        ready.update(dict.fromkeys(i.writes(), done))
        issued, end = issued + issues, max(end, done)
    return max(issued, end)
