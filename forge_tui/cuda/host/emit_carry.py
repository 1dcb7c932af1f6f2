"""Code for extended-precision integer arithmetic: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.

The carry flag is a register like any other here: `lower` names it as a second result of what sets it and a last operand of what
uses it.
"""

from __future__ import annotations

from forge_tui.cuda.host.generate import Emitter, Unsupported, handles
from forge_tui.cuda.host.ptx import SIZES, Group, Instruction


def carries(e: Emitter, i: Instruction) -> None:
    """Any instruction of the family."""
    kind, sets, uses = i.type, "cc" in i.parts, i.root in ("addc", "subc", "madc")
    bits = f"u{8 * SIZES[kind]}"
    if kind not in ("u32", "s32", "u64", "s64"):
        raise Unsupported
    target, flag = i.args[0].items if isinstance(i.args[0], Group) else (i.args[0], None)
    operands = i.args[1:-1] if uses else i.args[1:]
    carry = e.read(i.args[-1], "pred") if uses else "None"
    if i.root in ("mad", "madc"):
        high = "hi" in i.parts
        a, b = (e.read(x, kind if high else bits) for x in operands[:2])
        first, second = f"I.product({a}, {b}, {high})", e.read(operands[2], bits)
    else:
        first, second = (e.read(x, bits) for x in operands)
    d, out = e.write(target, bits), e.write(flag, "pred") if sets and flag is not None else "None"
    e.line(f"I.{'subtract_borrow' if i.root in ('sub', 'subc') else 'add_carry'}({first}, {second}, {carry}, {d}, {out})")


@handles("addc", "subc", "madc")
def _carries(e: Emitter, i: Instruction) -> None:
    carries(e, i)
