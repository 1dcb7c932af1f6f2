"""Code for arithmetic, comparison, selection, bit operations and conversions."""

from __future__ import annotations

from forge_tui.cuda.host import arithmetic
from forge_tui.cuda.host.generate import FLOAT, SIGNED, Emitter, Unsupported, handles
from forge_tui.cuda.host.ptx import SIZES, Group, Immediate, Instruction, Register

HALF = {"f16": "f16", "f16x2": "f16", "bf16": "bf16", "bf16x2": "bf16"}
DIRECTED = {"rz", "rm", "rp"}
PLAIN = {"add": "add", "sub": "subtract", "mul": "multiply", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
UNARY = {"neg": "negative", "abs": "absolute", "not": "invert"}
APPROXIMATE = {"sin": "sin", "cos": "cos", "lg2": "log2", "tanh": "tanh", "sqrt": "sqrt"}
INTEGER = {kind for kind in SIZES if kind[0] in "usb" and kind not in ("bf16", "bf16x2", "u16x2", "s16x2", "b128")}


def _mode(i: Instruction) -> str:
    return next((part for part in i.parts if part in DIRECTED), "rn")


def _finish_float(e: Emitter, i: Instruction, d: str) -> None:
    """`.sat` and `.ftz` on a float result."""
    if "sat" in i.parts:
        e.line(f"A.saturate({d})")
    if "ftz" in i.parts and i.type == "f32":
        e.line(f"A.flush({d})")


def _operands(e: Emitter, i: Instruction, kind: str) -> list[str]:
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
    e.line(f"A.half_operation({name!r}, {HALF[kind]!r}, ({values},), {e.write(i.args[0], bits)}, {flags})")


@handles("add", "sub", "mul")
def _add(e: Emitter, i: Instruction) -> None:
    kind = i.type
    if kind in HALF:
        return _half(e, i, i.root, kind)
    if i.root == "mul" and "wide" in i.parts:
        return _wide(e, i)
    if i.root == "mul" and "hi" in i.parts:
        a, b = _operands(e, i, kind)
        return e.line(f"A.mul_high({a}, {b}, {e.write(i.args[0], kind)})")
    if kind in ("u16x2", "s16x2"):
        return _packed(e, i, PLAIN[i.root], kind)
    if "cc" in i.parts or kind not in INTEGER | FLOAT:
        raise Unsupported
    a, b = _operands(e, i, kind)
    d = e.write(i.args[0], kind)
    if kind in FLOAT and _mode(i) != "rn":
        if kind == "f64":
            raise Unsupported
        if i.root == "mul":
            e.line(f"A.mul_directed({a}, {b}, {_mode(i)!r}, {d})")
        else:
            e.line(f"A.add_directed({a}, {'-' if i.root == 'sub' else ''}{b}, {_mode(i)!r}, {d})")
    elif "sat" in i.parts and kind == "s32":
        e.line(f"A.clamp_integer(np.{PLAIN[i.root]}({a}, {b}, dtype=np.int64), {d}, 's32')")
    else:
        e.line(f"np.{PLAIN[i.root]}({a}, {b}, {d})")
    if kind in FLOAT:
        _finish_float(e, i, d)


def _packed(e: Emitter, i: Instruction, name: str, kind: str) -> None:
    """Two 16-bit integers in a word."""
    lanes = "i2" if kind[0] == "s" else "u2"
    a, b = (f"A._lanes16({e.read(x, 'u32')}).view('{lanes}')" for x in i.args[1:])
    e.line(f"copyto(A._lanes16_of({e.write(i.args[0], 'u32')}), np.{name}({a}, {b}).view('u2'))")


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
    if "cc" in i.parts or "sat" in i.parts:
        raise Unsupported
    if "wide" in i.parts:
        return _wide(e, i)
    a, b, c = (e.read(x, kind) for x in i.args[1:])
    d = e.write(i.args[0], kind)
    if "hi" in i.parts:
        e.line(f"h = np.empty(np.broadcast_shapes({a}.shape, {b}.shape), {a}.dtype); A.mul_high({a}, {b}, h); np.add(h, {c}, {d})")
    else:
        e.line(f"np.add(np.multiply({a}, {b}), {c}, {d})")


def _fma(e: Emitter, i: Instruction, kind: str) -> None:
    mode, values = _mode(i), i.args[1:]
    if mode != "rn":
        if kind == "f64":
            raise Unsupported
        a, b, c = _operands(e, i, kind)
        d = e.write(i.args[0], kind)
        e.line(f"A.fma_directed({a}, {b}, {c}, {mode!r}, {d})")
    elif arithmetic.FUSED and "ftz" not in i.parts:
        a, b, c = (e.torch(x, kind) for x in values)
        d = e.write(i.args[0], kind)
        out = e.torch(d, kind)
        spread = f"{c}.expand({out}.shape)" if e.wide_result(i.args[0], *values) else c
        e.line(f"torch.addcmul({spread}, {a}, {b}, out={out})")
    else:
        a, b, c = _operands(e, i, kind)
        d = e.write(i.args[0], kind)
        e.line(f"A.{'fma_slow' if kind == 'f32' else 'fma64_slow'}({a}, {b}, {c}, {d})")
    _finish_float(e, i, d)


@handles("div", "rem")
def _div(e: Emitter, i: Instruction) -> None:
    kind = i.type
    a, b = _operands(e, i, kind)
    d = e.write(i.args[0], kind)
    if kind not in FLOAT:
        e.line(f"A.{'divide' if i.root == 'div' else 'remainder'}({a}, {b}, {d})")
    elif _mode(i) != "rn":
        if kind == "f64":
            raise Unsupported
        e.line(f"A.div_directed({a}, {b}, {_mode(i)!r}, {d})")
    else:
        e.line(f"np.divide({a}, {b}, {d})")
        _finish_float(e, i, d)


@handles("min", "max")
def _extreme(e: Emitter, i: Instruction) -> None:
    kind = i.type
    if kind in HALF:
        return _half(e, i, i.root, kind)
    if kind in ("u16x2", "s16x2") and len(i.args) == 3 and "relu" not in i.parts:
        return _packed(e, i, f"{i.root}imum", kind)
    if len(i.args) != 3 or set(i.parts) & {"xorsign", "relu"}:
        raise Unsupported
    a, b = _operands(e, i, kind)
    d = e.write(i.args[0], kind)
    name = f"f{i.root}" if kind in FLOAT and "NaN" not in i.parts else f"{i.root}imum"
    e.line(f"np.{name}({a}, {b}, out={d})")
    if kind in FLOAT:
        _finish_float(e, i, d)


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
    (a,) = _operands(e, i, kind)
    d = e.write(i.args[0], kind)
    if i.root == "cnot":
        e.line(f"copyto({d}, {a} == 0, casting='unsafe')")
    elif kind in FLOAT:      # on the bit pattern, for NaN too
        e.line(f"np.{'negative' if i.root == 'neg' else 'absolute'}({a}, {d})")
        _finish_float(e, i, d)
    else:
        e.line(f"np.{UNARY[i.root]}({a}, {d})")


@handles("sqrt", "sin", "cos", "lg2", "tanh", "ex2", "rcp", "rsqrt")
def _special_function(e: Emitter, i: Instruction) -> None:
    kind = i.type
    if kind in HALF:
        return _half(e, i, i.root, kind)
    if _mode(i) != "rn" or kind == "f64" and i.root not in ("sqrt", "rcp", "rsqrt"):
        raise Unsupported
    (a,) = _operands(e, i, kind)
    d = e.write(i.args[0], kind)
    if i.root == "ex2":
        e.line(f"A.ex2({a}, {d})" if "ftz" in i.parts else f"np.exp2({a}, {d})")
    elif i.root == "rcp":
        one = Immediate(0x3F800000, "f32") if kind == "f32" else Immediate(0x3FF0000000000000, "f64")
        e.line(f"np.divide({e.read(one, kind)}, {a}, {d})")
        _finish_float(e, i, d)
    elif i.root == "rsqrt":
        e.line(f"A.rsqrt({a}, {d})")
        _finish_float(e, i, d)
    else:
        e.line(f"np.{APPROXIMATE[i.root]}({a}, {d})")
        _finish_float(e, i, d)


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
        a, b = _operands(e, i, kind)
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
        return f"A.half_compare({name!r}, {HALF[kind]!r}, {a}, {b})"
    a, b = (e.read(x, kind) for x in i.args[1:3])
    if "ftz" in i.parts:
        a, b = f"A.flushed({a})", f"A.flushed({b})"
    return f"A.compare({name!r}, {a}, {b})" if kind in FLOAT else f"np.{arithmetic.ORDERED[name].__name__}({a}, {b})"


def _setp_packed(e: Emitter, i: Instruction, name: str, join: str | None) -> None:
    if join or not isinstance(i.args[0], Group):
        raise Unsupported
    a, b = (f"A._lanes16({e.read(x, 'u32')})" for x in i.args[1:3])
    e.line(f"c = A.half_compare({name!r}, {HALF[i.type]!r}, {a}, {b})")
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
        a, b = (f"A._lanes16({e.read(x, 'u32')})" for x in i.args[1:3])
        d = e.write(i.args[0], "u32")
        return e.line(f"copyto(A._lanes16_of({d}), np.where(A.half_compare({name!r}, {HALF[kind]!r}, {a}, {b}), "
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


# Bits ------------------------------------------------------------------------------------------------------------


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
    e.line(f"A.shift({i.root!r}, {a}, {e.read(count, 'u32')}, {e.write(i.args[0], kind)})")


@handles("shf")
def _shf(e: Emitter, i: Instruction) -> None:
    a, b, count = (e.read(x, "u32") for x in i.args[1:])
    e.line(f"A.funnel({'l' in i.parts}, {'wrap' in i.parts}, {a}, {b}, {count}, {e.write(i.args[0], 'u32')})")


@handles("bfi")
def _bfi(e: Emitter, i: Instruction) -> None:
    kind = f"u{8 * SIZES[i.type]}"
    a, b = e.read(i.args[1], kind), e.read(i.args[2], kind)
    start, length = (e.read(x, "u32") for x in i.args[3:])
    e.line(f"A.bit_insert({a}, {b}, {start}, {length}, {e.write(i.args[0], kind)})")


@handles("bfe")
def _bfe(e: Emitter, i: Instruction) -> None:
    a, start, length = e.read(i.args[1], i.type), e.read(i.args[2], "u32"), e.read(i.args[3], "u32")
    e.line(f"A.bit_extract({a}, {start}, {length}, {e.write(i.args[0], i.type)})")


@handles("prmt")
def _prmt(e: Emitter, i: Instruction) -> None:
    if i.opcode != "prmt.b32":
        raise Unsupported
    a, b, c = (e.read(x, "u32") for x in i.args[1:])
    e.line(f"A.permute({a}, {b}, {c}, {e.write(i.args[0], 'u32')})")


@handles("lop3")
def _lop3(e: Emitter, i: Instruction) -> None:
    if not isinstance(i.args[4], Immediate) or i.opcode != "lop3.b32":
        raise Unsupported
    a, b, c = (e.read(x, "u32") for x in i.args[1:4])
    e.line(f"A.lop3({a}, {b}, {c}, {i.args[4].value}, {e.write(i.args[0], 'u32')})")


@handles("popc", "clz", "brev", "bfind")
def _count(e: Emitter, i: Instruction) -> None:
    kind = i.type if i.root == "bfind" else f"u{8 * SIZES[i.type]}"
    a = e.read(i.args[1], kind)
    d = e.write(i.args[0], kind if i.root == "brev" else "u32")
    e.line({"popc": f"np.bitwise_count({a}, out={d}, casting='unsafe')", "clz": f"copyto({d}, A.count_leading({a}))",
            "brev": f"A.reverse_bits({a}, {d})", "bfind": f"A.find_top({a}, {'shiftamt' in i.parts}, {d})"}[i.root])


@handles("dp4a")
def _dp4a(e: Emitter, i: Instruction) -> None:
    kinds = (i.parts[1], i.parts[2])
    result = "s32" if "s32" in kinds else "u32"
    a, b, c = e.read(i.args[1], kinds[0]), e.read(i.args[2], kinds[1]), e.read(i.args[3], result)
    e.line(f"A.dot4({a}, {b}, {c}, {kinds}, {e.write(i.args[0], result)})")


# Conversions -----------------------------------------------------------------------------------------------------


@handles("cvt")
def _cvt(e: Emitter, i: Instruction) -> None:
    kinds = [p for p in i.parts if p in SIZES]
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
        return _finish_float(e, i, d)
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
        e.line(f"copyto(A._lanes16_of({d})[..., {index}], A.narrow({value}, {kind!r}))")


def _cvt_half(e: Emitter, i: Instruction, to: str, source: str, mode: str) -> None:
    if source in ("f16", "bf16"):
        bits = e.read(i.args[1], "u16")
        if to == "f32" and "sat" not in i.parts:
            return e.line(f"A.widen_into({bits}, {source!r}, {e.write(i.args[0], 'f32')})")
        value = f"A.widen({bits}, {source!r})"
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
            return e.line(f"copyto({d}, A.narrow({cast}, {to!r}))")
        return e.line(f"copyto({d}, A.round_half({value}.astype('f8'), {to!r}, {mode!r}))")
    d = e.write(i.args[0], to)
    if to in FLOAT:
        e.line(f"copyto({d}, {value})")
        return _finish_float(e, i, d)
    e.line(f"A.to_integer({value}, {mode!r}, {SIZES[to] == 8}, {d})")


def _cvt_float(e: Emitter, i: Instruction, to: str, source: str, mode: str) -> None:
    (a,) = _operands(e, i, source)
    d = e.write(i.args[0], to)
    if mode in arithmetic.ROUND:
        e.line(f"np.{arithmetic.ROUND[mode].__name__}({a}, {d})")
    elif to == "f32" and source == "f64" and mode != "rn":
        e.line(f"A.round_directed({a}, {mode!r}, {d})")
    else:
        e.line(f"copyto({d}, {a}, casting='unsafe')")
    _finish_float(e, i, d)
