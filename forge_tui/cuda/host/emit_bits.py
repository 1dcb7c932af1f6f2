"""Code for shifts, bit fields, permutations and counting."""

from __future__ import annotations

from forge_tui.cuda.host.generate import SIGNED, Emitter, Unsupported, handles
from forge_tui.cuda.host.ptx import SIZES, Immediate, Instruction



@handles("shl", "shr")
def _shift(e: Emitter, i: Instruction) -> None:
    kind = i.type if i.root == "shr" and i.type in SIGNED else f"u{8 * SIZES[i.type]}"
    bits, count = 8 * SIZES[kind], i.args[2]
    a = e.read(i.args[1], kind)
    if isinstance(count, Immediate):
        d = e.write(i.args[0], kind)
        if count.value >= bits and kind not in SIGNED:
            return e.line(f"copyto({d}, 0)")
        amount = e.read(Immediate(min(count.value, bits - 1)), kind)
        return e.line(f"np.{'left' if i.root == 'shl' else 'right'}_shift({a}, {amount}, {d})")
    e.line(f"I.shift({i.root!r}, {a}, {e.read(count, 'u32')}, {e.write(i.args[0], kind)})")


@handles("shf")
def _shf(e: Emitter, i: Instruction) -> None:
    a, b, count = (e.read(x, "u32") for x in i.args[1:])
    e.line(f"I.funnel({'l' in i.parts}, {'wrap' in i.parts}, {a}, {b}, {count}, {e.write(i.args[0], 'u32')})")


@handles("bfi")
def _bfi(e: Emitter, i: Instruction) -> None:
    kind = f"u{8 * SIZES[i.type]}"
    a, b = e.read(i.args[1], kind), e.read(i.args[2], kind)
    start, length = (e.read(x, "u32") for x in i.args[3:])
    e.line(f"I.bit_insert({a}, {b}, {start}, {length}, {e.write(i.args[0], kind)})")


@handles("bfe")
def _bfe(e: Emitter, i: Instruction) -> None:
    a, start, length = e.read(i.args[1], i.type), e.read(i.args[2], "u32"), e.read(i.args[3], "u32")
    e.line(f"I.bit_extract({a}, {start}, {length}, {e.write(i.args[0], i.type)})")


@handles("prmt")
def _prmt(e: Emitter, i: Instruction) -> None:
    a, b, c = (e.read(x, "u32") for x in i.args[1:])
    if i.opcode != "prmt.b32":
        c = f"I.permutation({i.parts[2]!r}, {c})"
    e.line(f"I.permute({a}, {b}, {c}, {e.write(i.args[0], 'u32')})")


@handles("lop3")
def _lop3(e: Emitter, i: Instruction) -> None:
    if not isinstance(i.args[4], Immediate) or i.opcode != "lop3.b32":
        raise Unsupported
    a, b, c = (e.read(x, "u32") for x in i.args[1:4])
    e.line(f"I.lop3({a}, {b}, {c}, {i.args[4].value}, {e.write(i.args[0], 'u32')})")


@handles("popc", "clz", "brev", "bfind")
def _count(e: Emitter, i: Instruction) -> None:
    kind = i.type if i.root == "bfind" else f"u{8 * SIZES[i.type]}"
    a = e.read(i.args[1], kind)
    d = e.write(i.args[0], kind if i.root == "brev" else "u32")
    e.line({"popc": f"np.bitwise_count({a}, out={d}, casting='unsafe')", "clz": f"copyto({d}, I.count_leading({a}))",
            "brev": f"I.reverse_bits({a}, {d})", "bfind": f"I.find_top({a}, {'shiftamt' in i.parts}, {d})"}[i.root])


@handles("dp4a")
def _dp4a(e: Emitter, i: Instruction) -> None:
    kinds = (i.parts[1], i.parts[2])
    result = "s32" if "s32" in kinds else "u32"
    a, b, c = e.read(i.args[1], kinds[0]), e.read(i.args[2], kinds[1]), e.read(i.args[3], result)
    e.line(f"I.dot4({a}, {b}, {c}, {kinds}, {e.write(i.args[0], result)})")


@handles("dp2a")
def _dp2a(e: Emitter, i: Instruction) -> None:
    kinds = (i.parts[2], i.parts[3])
    result = "s32" if "s32" in kinds else "u32"
    a, b, c = e.read(i.args[1], kinds[0]), e.read(i.args[2], kinds[1]), e.read(i.args[3], result)
    e.line(f"I.dot2({a}, {b}, {c}, {kinds}, {'hi' in i.parts}, {e.write(i.args[0], result)})")
