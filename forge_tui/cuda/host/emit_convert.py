"""Code for conversions between types."""

from __future__ import annotations

from forge_tui.cuda.host import arithmetic
from forge_tui.cuda.host.emit_arithmetic import HALF, INTEGER, finish_float, operands
from forge_tui.cuda.host.generate import FLOAT, SIGNED, Emitter, Unsupported, handles
from forge_tui.cuda.host.ptx import SIZES, Instruction

FP8 = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}


@handles("cvt")
def _cvt(e: Emitter, i: Instruction) -> None:
    kinds = [p for p in i.parts if p in SIZES]
    if set(i.parts) & set(FP8):
        return _cvt_fp8(e, i)
    if "pack" in i.parts:
        return _cvt_pack(e, i)
    if kinds == ["tf32", "f32"]:
        return _cvt_tf32(e, i)
    if len(kinds) != 2 or set(i.parts) & {"rna", "rs", "satfinite", "scaled"} or any(p.startswith("e") for p in i.parts[1:]):
        raise Unsupported
    to, source = kinds
    mode = next((p for p in i.parts if p in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi")), "rn")
    if to in ("f16x2", "bf16x2"):
        return _cvt_pair(e, i, to, mode)
    if source in ("f16", "bf16") or to in ("f16", "bf16"):
        return _cvt_half(e, i, to, source, mode)
    if to in FLOAT and source in FLOAT:
        return _cvt_float(e, i, to, source, mode)
    a = e.read(i.args[1], source)
    if to in FLOAT:
        d = e.write(i.args[0], to)
        e.line(f"A.integer_to_float({a}, {mode!r}, {d})")
        return finish_float(e, i, d)
    if source in FLOAT:
        d, size = e.write(i.args[0], to), SIZES[to]
        if size == 1 or e.size(i.args[0]) != size:
            dtype = f"{'i' if to in SIGNED else 'u'}{size}"
            e.line(f"h = np.empty({a}.shape, {dtype!r}); A.to_integer({a}, {mode!r}, False, h); copyto({d}, h, casting='unsafe')")
        else:
            e.line(f"A.to_integer({a}, {mode!r}, {source == 'f64' or size == 8}, {d})")
        return
    d = e.write(i.args[0], to)
    if "sat" in i.parts:
        e.line(f"A.clamp_integer({a}, {d}, {to!r})")
    elif SIZES[to] < e.size(i.args[0]):        # keep the narrow value, extended by its own sign
        e.line(f"copyto({d}, {a}.astype('{'i' if to in SIGNED else 'u'}{SIZES[to]}'), casting='unsafe')")
    else:
        e.line(f"copyto({d}, {a}, casting='unsafe')")


def _cvt_pair(e: Emitter, i: Instruction, to: str, mode: str) -> None:
    """Two float32 values into one word: the first source is the high half."""
    if mode != "rn" or len(i.args) != 3:
        raise Unsupported
    d = e.write(i.args[0], "u32")
    kind = HALF[to]
    for index, operand in ((1, i.args[1]), (0, i.args[2])):
        value = e.read(operand, "f32")
        if "relu" in i.parts:
            value = f"np.maximum({value}, np.float32(0))"
        e.line(f"copyto(H.lanes_of({d})[..., {index}], H.narrow({value}, {kind!r}))")


def _cvt_half(e: Emitter, i: Instruction, to: str, source: str, mode: str) -> None:
    if source in ("f16", "bf16"):
        bits = e.read(i.args[1], "u16")
        if to == "f32" and "sat" not in i.parts:
            return e.line(f"H.widen_into({bits}, {source!r}, {e.write(i.args[0], 'f32')})")
        value = f"H.widen({bits}, {source!r})"
    else:
        value = e.read(i.args[1], source)
    if to in ("f16", "bf16"):
        d = e.write(i.args[0], "u16")
        if "sat" in i.parts or "relu" in i.parts:
            value = f"np.clip(np.nan_to_num({value}, nan=0.0), 0, {1 if 'sat' in i.parts else 'np.inf'})"
        if mode in arithmetic.ROUND:
            value = f"np.{arithmetic.ROUND[mode].__name__}({value})"
            mode = "rn"
        if mode == "rn" and (source in ("f32", "f16", "bf16") or source in INTEGER and SIZES[source] <= 2):
            cast = f"{value}.astype('f4')" if source in INTEGER else value
            return e.line(f"copyto({d}, H.narrow({cast}, {to!r}))")
        return e.line(f"copyto({d}, H.round_half({value}.astype('f8'), {to!r}, {mode!r}))")
    d = e.write(i.args[0], to)
    if to in FLOAT:
        e.line(f"copyto({d}, {value})")
        return finish_float(e, i, d)
    e.line(f"A.to_integer({value}, {mode!r}, {SIZES[to] == 8}, {d})")


def _cvt_float(e: Emitter, i: Instruction, to: str, source: str, mode: str) -> None:
    (a,) = operands(e, i, source)
    d = e.write(i.args[0], to)
    if mode in arithmetic.ROUND:
        e.line(f"np.{arithmetic.ROUND[mode].__name__}({a}, {d})")
    elif to == "f32" and source == "f64" and mode != "rn":
        e.line(f"A.round_directed({a}, {mode!r}, {d})")
    else:
        e.line(f"copyto({d}, {a}, casting='unsafe')")
    finish_float(e, i, d)


def _cvt_fp8(e: Emitter, i: Instruction) -> None:
    """Pairs of 8-bit floats to and from pairs of wider ones: the first source is the upper element."""
    name = next(p for p in i.parts if p in FP8)
    kind = FP8[name]
    if "f16x2" in i.parts and i.parts.index("f16x2") < i.parts.index(name):
        bits = e.read(i.args[1], "u16")
        value = f"P.widen(P.lanes({bits}), {kind!r})"
        value = f"np.maximum({value}, np.float32(0))" if "relu" in i.parts else value
        return e.line(f"copyto(H.lanes_of({e.write(i.args[0], 'u32')}), H.narrow({value}, 'f16'))")
    if "satfinite" not in i.parts or "rn" not in i.parts:
        raise Unsupported
    if "f16x2" in i.parts:
        values = [f"H.widen(H.lanes({e.read(i.args[1], 'u32')})[..., {k}], 'f16')" for k in (1, 0)]
    elif "f32" in i.parts and len(i.args) == 3:
        values = [e.read(x, "f32") for x in i.args[1:]]
    else:
        raise Unsupported
    if "relu" in i.parts:
        values = [f"np.maximum({v}, np.float32(0))" for v in values]
    high, low = (f"P.narrow({v}, {kind!r}).astype('u2')" for v in values)
    e.line(f"copyto({e.write(i.args[0], 'u16')}, {high} << np.uint16(8) | {low})")


def _cvt_pack(e: Emitter, i: Instruction) -> None:
    kind = i.parts[3]
    if "sat" not in i.parts or kind not in ("u8", "s8", "u16", "s16", "u4", "s4", "u2", "s2") or i.parts[4] != "s32":
        raise Unsupported
    a, b = (e.read(x, "s32") for x in i.args[1:3])
    above = e.read(i.args[3], "u32") if len(i.args) > 3 else "None"
    e.line(f"I.pack_saturated({a}, {b}, {above}, {kind!r}, {e.write(i.args[0], 'u32')})")


def _cvt_tf32(e: Emitter, i: Instruction) -> None:
    """To the 10 bits of fraction that a tf32 has."""
    if "satfinite" in i.parts:
        raise Unsupported
    mode = next(p for p in i.parts if p in ("rna", "rn", "rz"))
    relu = "relu" in i.parts
    e.line(f"A.round_tf32({e.read(i.args[1], 'f32')}, {mode!r}, {relu}, {e.write(i.args[0], 'u32')})")
