"""Code for arithmetic, comparison and selection."""

from __future__ import annotations

from forge_tui.cuda.host import arithmetic
from forge_tui.cuda.host.emit_carry import carries
from forge_tui.cuda.host.generate import FLOAT, SIGNED, Emitter, Unsupported, handles
from forge_tui.cuda.host.ptx import SIZES, Group, Immediate, Instruction, Register

HALF = {"f16": "f16", "f16x2": "f16", "bf16": "bf16", "bf16x2": "bf16"}
DIRECTED = {"rz", "rm", "rp"}
PLAIN = {"add": "add", "sub": "subtract", "mul": "multiply", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
UNARY = {"neg": "negative", "abs": "absolute", "not": "invert"}
APPROXIMATE = {"sin": "sin", "cos": "cos", "lg2": "log2", "tanh": "tanh", "sqrt": "sqrt"}
INTEGER = {kind for kind in SIZES if kind[0] in "usb" and kind not in ("bf16", "bf16x2", "u16x2", "s16x2", "b128")}


def mode_of(i: Instruction) -> str:
    return next((part for part in i.parts if part in DIRECTED), "rn")


def finish_float(e: Emitter, i: Instruction, d: str) -> None:
    """`.sat` and `.ftz` on a float result."""
    if "sat" in i.parts:
        e.line(f"A.saturate({d})")
    if "ftz" in i.parts and i.type == "f32":
        e.line(f"A.flush({d})")


def operands(e: Emitter, i: Instruction, kind: str) -> list[str]:
    values = [e.read(a, kind) for a in i.args[1:]]
    return [f"A.flushed({v})" for v in values] if "ftz" in i.parts and kind == "f32" else values


def _half(e: Emitter, i: Instruction, name: str, kind: str) -> None:
    if set(i.parts) & DIRECTED or "ftz" in i.parts and kind in ("f16", "f16x2"):
        raise Unsupported
    bits = f"u{8 * SIZES[kind]}"
    values = ", ".join(e.read(a, bits) for a in i.args[1:])
    flags = tuple(p for p in i.parts if p in ("sat", "relu", "NaN"))
    if set(i.parts) & {"xorsign", "oob"}:
        raise Unsupported
    e.line(f"H.half_operation({name!r}, {HALF[kind]!r}, ({values},), {e.write(i.args[0], bits)}, {flags})")


@handles("add", "sub", "mul")
def _add(e: Emitter, i: Instruction) -> None:
    kind = i.type
    if kind in HALF:
        return _half(e, i, i.root, kind)
    if i.root == "mul" and "wide" in i.parts:
        return _wide(e, i)
    if i.root == "mul" and "hi" in i.parts:
        a, b = operands(e, i, kind)
        return e.line(f"I.mul_high({a}, {b}, {e.write(i.args[0], kind)})")
    if kind in ("u16x2", "s16x2"):
        return _packed(e, i, PLAIN[i.root], kind)
    if "cc" in i.parts:
        return carries(e, i)
    if kind not in INTEGER | FLOAT:
        raise Unsupported
    a, b = operands(e, i, kind)
    d = e.write(i.args[0], kind)
    if kind in FLOAT and mode_of(i) != "rn":
        if kind == "f64" and i.root == "mul":
            raise Unsupported
        if i.root == "mul":
            e.line(f"A.mul_directed({a}, {b}, {mode_of(i)!r}, {d})")
        else:
            e.line(f"A.add{'64' if kind == 'f64' else ''}_directed({a}, {'-' if i.root == 'sub' else ''}{b}, {mode_of(i)!r}, {d})")
    elif "sat" in i.parts and kind == "s32":
        e.line(f"A.clamp_integer(np.{PLAIN[i.root]}({a}, {b}, dtype=np.int64), {d}, 's32')")
    else:
        e.line(f"np.{PLAIN[i.root]}({a}, {b}, {d})")
    if kind in FLOAT:
        finish_float(e, i, d)


def _packed(e: Emitter, i: Instruction, name: str, kind: str) -> None:
    """Two 16-bit integers in a word."""
    lanes = "i2" if kind[0] == "s" else "u2"
    a, b = (f"H.lanes({e.read(x, 'u32')}).view('{lanes}')" for x in i.args[1:])
    value = f"np.{name}({a}, {b})"
    if "relu" in i.parts:
        value = f"np.maximum({value}, np.int16(0))"
    e.line(f"copyto(H.lanes_of({e.write(i.args[0], 'u32')}), {value}.view('u2'))")


def _wide(e: Emitter, i: Instruction) -> None:
    kind = i.type
    wide = f"{kind[0]}{2 * int(kind[1:])}"
    dtype = f"np.{'int' if kind in SIGNED else 'uint'}{wide[1:]}"
    a, b = e.read(i.args[1], kind), e.read(i.args[2], kind)
    d = e.write(i.args[0], wide)
    if i.root == "mad":
        e.line(f"np.add(np.multiply({a}, {b}, dtype={dtype}), {e.read(i.args[3], wide)}, {d})")
    else:
        e.line(f"np.multiply({a}, {b}, {d}, dtype={dtype})")


@handles("mad", "fma")
def _mad(e: Emitter, i: Instruction) -> None:
    kind = i.type
    if kind in HALF:
        return _half(e, i, "fma", kind)
    if kind in FLOAT:
        return _fma(e, i, kind)
    if "cc" in i.parts:
        return carries(e, i)
    if "sat" in i.parts:
        raise Unsupported
    if "wide" in i.parts:
        return _wide(e, i)
    a, b, c = (e.read(x, kind) for x in i.args[1:])
    d = e.write(i.args[0], kind)
    if "hi" in i.parts:
        e.line(f"h = np.empty(np.broadcast_shapes({a}.shape, {b}.shape), {a}.dtype); I.mul_high({a}, {b}, h); np.add(h, {c}, {d})")
    else:
        e.line(f"np.add(np.multiply({a}, {b}), {c}, {d})")


def _fma(e: Emitter, i: Instruction, kind: str) -> None:
    mode, values = mode_of(i), i.args[1:]
    if mode != "rn":
        if kind == "f64":
            raise Unsupported
        a, b, c = operands(e, i, kind)
        d = e.write(i.args[0], kind)
        e.line(f"A.fma_directed({a}, {b}, {c}, {mode!r}, {d})")
    elif arithmetic.FUSED and "ftz" not in i.parts:
        a, b, c = (e.torch(x, kind) for x in values)
        d = e.write(i.args[0], kind)
        out = e.torch(d, kind)
        spread = f"{c}.expand({out}.shape)" if e.wide_result(i.args[0], *values) else c
        e.line(f"torch.addcmul({spread}, {a}, {b}, out={out})")
    else:
        a, b, c = operands(e, i, kind)
        d = e.write(i.args[0], kind)
        e.line(f"A.{'fma_slow' if kind == 'f32' else 'fma64_slow'}({a}, {b}, {c}, {d})")
    finish_float(e, i, d)


@handles("div", "rem")
def _div(e: Emitter, i: Instruction) -> None:
    kind = i.type
    a, b = operands(e, i, kind)
    d = e.write(i.args[0], kind)
    if kind not in FLOAT:
        e.line(f"I.{'divide' if i.root == 'div' else 'remainder'}({a}, {b}, {d})")
    elif mode_of(i) != "rn":
        if kind == "f64":
            raise Unsupported
        e.line(f"A.div_directed({a}, {b}, {mode_of(i)!r}, {d})")
    else:
        e.line(f"np.divide({a}, {b}, {d})")
        finish_float(e, i, d)


@handles("min", "max")
def _extreme(e: Emitter, i: Instruction) -> None:
    kind = i.type
    if kind in HALF:
        return _half(e, i, i.root, kind)
    if kind in ("u16x2", "s16x2") and len(i.args) == 3:
        return _packed(e, i, f"{i.root}imum", kind)
    if len(i.args) != 3 or "xorsign" in i.parts or "relu" in i.parts and kind != "s32":
        raise Unsupported
    a, b = operands(e, i, kind)
    d = e.write(i.args[0], kind)
    name = f"f{i.root}" if kind in FLOAT and "NaN" not in i.parts else f"{i.root}imum"
    e.line(f"np.{name}({a}, {b}, out={d})")
    if kind in FLOAT:
        finish_float(e, i, d)
    elif "relu" in i.parts:
        e.line(f"np.maximum({d}, np.int32(0), out={d})")


@handles("sad", "vabsdiff4")
def _absolute_difference(e: Emitter, i: Instruction) -> None:
    """|a - b| + c; of `vabsdiff4` of every byte, their sum added to c where it says `add`."""
    if i.root == "sad":
        kind = i.type
        a, b, c = (e.read(x, kind) for x in i.args[1:])
        return e.line(f"np.add(np.where({a} > {b}, {a} - {b}, {b} - {a}), {c}, {e.write(i.args[0], kind)})")
    if set(i.parts[1:4]) != {"u32"} or "sat" in i.parts:
        raise Unsupported
    a, b, c = (e.read(x, "u32") for x in i.args[1:4])
    e.line(f"I.byte_differences({a}, {b}, {c}, {'add' in i.parts}, {e.write(i.args[0], 'u32')})")


@handles("and", "or", "xor")
def _logic(e: Emitter, i: Instruction) -> None:
    kind = "pred" if i.type == "pred" else f"u{8 * SIZES[i.type]}"
    a, b = (e.read(x, kind) for x in i.args[1:])
    e.line(f"np.{PLAIN[i.root]}({a}, {b}, {e.write(i.args[0], kind)})")


@handles("neg", "abs", "not", "cnot")
def _unary(e: Emitter, i: Instruction) -> None:
    kind = i.type
    if kind in HALF:
        return _half(e, i, i.root, kind)
    if i.root in ("not", "cnot"):
        kind = "pred" if kind == "pred" else f"u{8 * SIZES[kind]}"
    (a,) = operands(e, i, kind)
    d = e.write(i.args[0], kind)
    if i.root == "cnot":
        e.line(f"copyto({d}, {a} == 0, casting='unsafe')")
    elif kind in FLOAT:      # on the bit pattern, for NaN too
        e.line(f"np.{'negative' if i.root == 'neg' else 'absolute'}({a}, {d})")
        finish_float(e, i, d)
    else:
        e.line(f"np.{UNARY[i.root]}({a}, {d})")


@handles("sqrt", "sin", "cos", "lg2", "tanh", "ex2", "rcp", "rsqrt")
def _special_function(e: Emitter, i: Instruction) -> None:
    kind = i.type
    if kind in HALF:
        return _half(e, i, i.root, kind)
    if i.root == "sqrt" and kind == "f32" and mode_of(i) != "rn" and "ftz" not in i.parts:
        # float64 has more than twice the bits and two more: what lies beside a float32 is seen there
        return e.line(f"A.round_directed(np.sqrt({e.read(i.args[1], kind)}.astype('f8')), {mode_of(i)!r}, {e.write(i.args[0], kind)})")
    if mode_of(i) != "rn" or kind == "f64" and i.root not in ("sqrt", "rcp", "rsqrt"):
        raise Unsupported
    (a,) = operands(e, i, kind)
    d = e.write(i.args[0], kind)
    if i.root == "ex2":
        e.line(f"A.ex2({a}, {d})" if "ftz" in i.parts else f"np.exp2({a}, {d})")
    elif i.root == "rcp":
        one = Immediate(0x3F800000, "f32") if kind == "f32" else Immediate(0x3FF0000000000000, "f64")
        e.line(f"np.divide({e.read(one, kind)}, {a}, {d})")
        finish_float(e, i, d)
    elif i.root == "rsqrt":
        e.line(f"A.rsqrt({a}, {d})")
        finish_float(e, i, d)
    else:
        e.line(f"np.{APPROXIMATE[i.root]}({a}, {d})")
        finish_float(e, i, d)


@handles("copysign")
def _copysign(e: Emitter, i: Instruction) -> None:
    sign, value = (e.read(a, i.type) for a in i.args[1:])
    e.line(f"np.copysign({value}, {sign}, {e.write(i.args[0], i.type)})")


@handles("testp")
def _testp(e: Emitter, i: Instruction) -> None:
    test = {"finite": "np.isfinite({0})", "infinite": "np.isinf({0})", "notanumber": "np.isnan({0})", "number": "~np.isnan({0})"}
    e.line(f"copyto({e.write(i.args[0], 'pred')}, {test[i.parts[1]].format(e.read(i.args[1], i.type))})")


# Comparison and selection ----------------------------------------------------------------------------------------


@handles("setp", "set")
def _setp(e: Emitter, i: Instruction) -> None:
    if i.root == "set":
        return _set(e, i)
    kind, name = i.type, i.parts[1]
    join = next((p for p in i.parts[2:] if p in ("and", "or", "xor")), None)
    if kind in ("f16x2", "bf16x2"):
        return _setp_packed(e, i, name, join)
    targets = i.args[0].items if isinstance(i.args[0], Group) else (i.args[0],)
    text = _comparison(e, i, name, kind)
    if len(targets) == 1 and not join and kind not in HALF and name in arithmetic.ORDERED and not (name == "ne" and kind in FLOAT):
        a, b = operands(e, i, kind)
        ufunc = arithmetic.ORDERED[name].__name__
        return e.line(f"np.{ufunc}({a}, {b}, {e.write(targets[0], 'pred')})")
    e.line(f"c = {text}")
    for target, value in zip(targets, ("c", "~c"), strict=False):
        if isinstance(target, Register) and target.name != "_":
            joined = f"np.logical_{join}({value}, {e.read(i.args[3], 'pred')})" if join else value
            e.line(f"copyto({e.write(target, 'pred')}, {joined})")


def _comparison(e: Emitter, i: Instruction, name: str, kind: str) -> str:
    if kind in HALF:
        a, b = (e.read(x, f"u{8 * SIZES[kind]}") for x in i.args[1:3])
        return f"H.half_compare({name!r}, {HALF[kind]!r}, {a}, {b})"
    a, b = (e.read(x, kind) for x in i.args[1:3])
    if "ftz" in i.parts:
        a, b = f"A.flushed({a})", f"A.flushed({b})"
    return f"A.compare({name!r}, {a}, {b})" if kind in FLOAT else f"np.{arithmetic.ORDERED[name].__name__}({a}, {b})"


def _setp_packed(e: Emitter, i: Instruction, name: str, join: str | None) -> None:
    if join or not isinstance(i.args[0], Group):
        raise Unsupported
    a, b = (f"H.lanes({e.read(x, 'u32')})" for x in i.args[1:3])
    e.line(f"c = H.half_compare({name!r}, {HALF[i.type]!r}, {a}, {b})")
    for k, target in enumerate(i.args[0].items):
        e.line(f"copyto({e.write(target, 'pred')}, c[..., {k}])")


def _set(e: Emitter, i: Instruction) -> None:
    """`set.CMP.DTYPE.STYPE`: ones or 1.0 where true."""
    name = i.parts[1]
    result, kind = [p for p in i.parts if p in SIZES][:2]
    if any(p in ("and", "or", "xor") for p in i.parts[2:]):
        raise Unsupported
    if kind in ("f16x2", "bf16x2"):
        one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(result, 0xFFFF)
        a, b = (f"H.lanes({e.read(x, 'u32')})" for x in i.args[1:3])
        d = e.write(i.args[0], "u32")
        return e.line(f"copyto(H.lanes_of({d}), np.where(H.half_compare({name!r}, {HALF[kind]!r}, {a}, {b}), "
                      f"np.uint16({one}), np.uint16(0)))")
    text = _comparison(e, i, name, kind)
    if result in FLOAT:
        e.line(f"copyto({e.write(i.args[0], result)}, {text}, casting='unsafe')")
    elif result in HALF:
        one = 0x3C00 if result == "f16" else 0x3F80
        e.line(f"copyto({e.write(i.args[0], 'u16')}, np.where({text}, np.uint16({one}), np.uint16(0)))")
    else:
        bits = 8 * SIZES[result]
        e.line(f"copyto({e.write(i.args[0], f'u{bits}')}, np.where({text}, ~np.uint{bits}(0), np.uint{bits}(0)))")


@handles("selp")
def _selp(e: Emitter, i: Instruction) -> None:
    kind = f"u{8 * SIZES[i.type]}"
    a, b, which = e.read(i.args[1], kind), e.read(i.args[2], kind), e.read(i.args[3], "pred")
    e.line(f"A.select({e.write(i.args[0], kind)}, {which}, {a}, {b})")


@handles("slct")
def _slct(e: Emitter, i: Instruction) -> None:
    kind = f"u{8 * SIZES[i.parts[-2]]}"
    a, b, which = e.read(i.args[1], kind), e.read(i.args[2], kind), e.read(i.args[3], i.parts[-1])
    e.line(f"A.select({e.write(i.args[0], kind)}, {which} >= 0, {a}, {b})")
