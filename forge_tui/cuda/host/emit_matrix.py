"""Code for the matrix instructions of a warp."""

from __future__ import annotations

import re

from forge_tui.cuda.host.emit_async import raw, wanted
from forge_tui.cuda.host.generate import SPACES, Emitter, Unsupported, handles
from forge_tui.cuda.host.matrix import BITS
from forge_tui.cuda.host.ptx import Group, Instruction, Operand

SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
MMA = {("f16", (16, 8, 8)), ("f16", (16, 8, 16)), ("bf16", (16, 8, 8)), ("bf16", (16, 8, 16)), ("tf32", (16, 8, 4)), ("tf32", (16, 8, 8)),
       ("s8", (8, 8, 16)), ("s8", (16, 8, 16)), ("s8", (16, 8, 32)), ("u8", (8, 8, 16)), ("u8", (16, 8, 16)), ("u8", (16, 8, 32)),
       ("e4m3", (16, 8, 32)), ("e5m2", (16, 8, 32)), ("f64", (8, 8, 4)), ("f64", (16, 8, 4)), ("f64", (16, 8, 8)), ("f64", (16, 8, 16)),
       ("e4m3", (16, 8, 16)), ("e5m2", (16, 8, 16))}
"""Types of A and shapes of `mma.sync` that are known."""
WMMA = {"f16", "bf16", "tf32", "s8", "u8", "f64"}


def items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Group) else (operand,)


def shape_of(i: Instruction) -> tuple[int, int, int]:
    found = next((SHAPE.fullmatch(p) for p in i.parts if SHAPE.fullmatch(p)), None)
    if found is None:
        raise Unsupported
    return int(found[1]), int(found[2]), int(found[3])


def fragment(e: Emitter, operand: Operand, kind: str) -> str:
    bits = 64 if kind == "f64" else 32
    return f"({', '.join(e.read(x, f'u{bits}') for x in items(operand))},)"


def results(e: Emitter, operand: Operand, bits: int = 32) -> str:
    return f"({', '.join(wanted(e, x, f'u{bits}') for x in items(operand))},)"


@handles("mma")
def _mma(e: Emitter, i: Instruction) -> None:
    shape, kinds = shape_of(i), [p for p in i.parts if p in BITS]
    if len(kinds) == 3 and kinds[0] == "f64":
        kinds.append("f64")
    if len(kinds) != 4 or (kinds[1], shape) not in MMA or {"sp", "xor", "and"} & set(i.parts) or "col" not in i.parts:
        raise Unsupported
    a, b, c = (fragment(e, x, kind) for x, kind in zip(i.args[1:4], kinds[1:], strict=True))
    d = results(e, i.args[0], 64 if kinds[0] == "f64" else 32)
    e.line(f"matrix.multiply({shape}, {tuple(kinds)}, {a}, {b}, {c}, {d}, {'satfinite' in i.parts}, {e.mask}, {i.line})")


def _memory(e: Emitter, i: Instruction, operand: Operand) -> str:
    """The memory and the address there, as arguments."""
    space = next((p for p in i.parts if p in SPACES), None)
    address, offset = raw(e, operand)
    return f"{SPACES[space] if space else 'generic'}, {address}, {offset}"


@handles("ldmatrix", "stmatrix")
def _ldmatrix(e: Emitter, i: Instruction) -> None:
    if "m8n8" not in i.parts or i.parts[-1] != "b16":
        raise Unsupported
    trans = "trans" in i.parts
    if i.root == "ldmatrix":
        where = _memory(e, i, i.args[1])
        e.line(f"matrix.load({where}, {trans}, {results(e, i.args[0])}, {e.mask}, {i.line})")
    else:
        where = _memory(e, i, i.args[0])
        e.line(f"matrix.store({where}, {trans}, {fragment(e, i.args[1], 'b32')}, {e.mask}, {i.line})")


@handles("movmatrix")
def _movmatrix(e: Emitter, i: Instruction) -> None:
    if "trans" not in i.parts:
        raise Unsupported
    e.line(f"matrix.transpose({e.read(i.args[1], 'u32')}, {e.write(i.args[0], 'u32')}, {e.mask}, {i.line})")


@handles("wmma")
def _wmma(e: Emitter, i: Instruction) -> None:
    m, n, k = shape_of(i)
    kinds = [p for p in i.parts if p in BITS]
    if i.parts[1] == "mma":
        return _wmma_multiply(e, i, (m, n, k), kinds)
    role = i.parts[2]
    kind = kinds[-1]
    shape = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    by_row = "row" in i.parts
    load = i.parts[1] == "load"
    where = _memory(e, i, i.args[1 if load else 0])
    leading = len(i.args) > 2
    stride = e.read(i.args[2], "u32") if leading else f"V.scalar({shape[1] if by_row else shape[0]}, 4)"
    bits = 64 if kind == "f64" else 32
    held = results(e, i.args[0], bits) if load else fragment(e, i.args[1], kind)
    e.line(f"matrix.{'load' if load else 'store'}_plain({where}, {stride}, {by_row}, {shape}, {kind!r}, {held}, {e.mask}, {i.line})")


def _wmma_multiply(e: Emitter, i: Instruction, shape: tuple[int, int, int], kinds: list[str]) -> None:
    """The types named are D and C for f16 operands, else D, A, B, C."""
    if len(kinds) == 2:
        kinds = [kinds[0], "f16", "f16", kinds[1]]
    if len(kinds) != 4 or kinds[1] not in WMMA or "popc" in i.parts:
        raise Unsupported
    a, b, c = (fragment(e, x, kind) for x, kind in zip(i.args[1:4], kinds[1:], strict=True))
    d = results(e, i.args[0], 64 if kinds[0] == "f64" else 32)
    e.line(f"matrix.multiply_plain({shape}, {tuple(kinds)}, {a}, {b}, {c}, {d}, {'satfinite' in i.parts}, {e.mask}, {i.line})")


