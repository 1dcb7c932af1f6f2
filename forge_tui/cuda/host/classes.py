"""What kind of work an instruction is, for counting: one class each."""

from __future__ import annotations

from forge_tui.cuda.host.lower import Kernel
from forge_tui.cuda.host.ptx import Instruction

SPECIAL = {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"}
CONTROL = {"bra", "brx", "ret", "exit", "bar", "barrier", "trap", "call", "membar", "fence", "nanosleep", "mbarrier", "griddepcontrol"}
WARP = {"shfl", "vote", "match", "redux", "elect", "activemask"}
MATRIX = {"mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix"}
MOVES = {"mov", "selp", "cvta", "slct", "isspacep"}
MEMORY = {"ld", "ldu", "st", "cp", "prefetch", "prefetchu"}
HALF = {"f16", "f16x2", "bf16", "bf16x2"}


def class_of(i: Instruction) -> str:
    """`float32`, `float64`, `half`, `integer`, `special`, `conversion`, `move`, `global`, `shared`, `local`, `atomic`, `warp`,
    `matrix` or `control`. Parameters and constants count as `move`, generic addresses as `global`."""
    parts = set(i.parts)
    if i.root in MEMORY:
        if parts & {"param", "const"}:
            return "move"
        if "local" in parts:
            return "local"
        return "shared" if "global" not in parts and any(part.startswith("shared") for part in i.parts) else "global"
    for name, roots in (("atomic", {"atom", "red"}), ("control", CONTROL), ("warp", WARP), ("matrix", MATRIX), ("move", MOVES),
                        ("conversion", {"cvt"})):
        if i.root in roots:
            return name
    if i.root in SPECIAL and i.type != "f64" or i.root == "div" and i.type == "f32":
        return "special"
    return {"f32": "float32", "f64": "float64"}.get(i.type, "half" if i.type in HALF else "integer")


def histogram(kernel: Kernel) -> list[dict[str, int]]:
    """Of each basic block, how many instructions of each class it has."""
    found: list[dict[str, int]] = []
    for block in kernel.blocks:
        counted: dict[str, int] = {}
        for instruction in block.instructions:
            name = class_of(instruction)
            counted[name] = counted.get(name, 0) + 1
        found.append(counted)
    return found
