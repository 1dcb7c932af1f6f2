"""Exact arithmetic that NumPy does not have: fused multiply-add, directed rounding, half types, conversions, integer division.

Operands are broadcastable arrays of lanes; results are written into `d`, which may be one of the operands. 16-bit floats
travel as uint16 bit patterns, two of them as uint32.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Lanes = NDArray[np.generic]

HALF = {"f16": torch.float16, "bf16": torch.bfloat16}
ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
TINY = np.float32(2.0**-126)
"""Smallest normal float32: `.ftz` results below it become zero."""
LOW29 = np.uint64(0x1FFFFFFF)
"""Bits of a float64 significand that a float32 has no room for."""


# Fused multiply-add ----------------------------------------------------------------------------------------------


def _probe_fused() -> bool:
    """Whether this machine's `torch.addcmul` rounds once, for every mix of broadcast operands, subnormals included."""
    rng = np.random.default_rng(7)
    shapes = [(1, 1), (13, 1), (1, 40), (13, 40)]
    for scale in (1.0, 2.0**-70):
        for code in range(64):
            a, b, c = (((rng.integers(1, 2**12, shapes[code >> k & 3]) * 2 + 1) * scale).astype(np.float32) for k in (0, 2, 4))
            if scale != 1.0:
                c = (c * np.float32(2.0**-66)).astype(np.float32)
            c = -c * (a.flat[0] if scale == 1.0 else np.float32(1)) * np.float32(1 + 2**-12)
            out = torch.from_numpy(np.empty((13, 40), np.float32))
            torch.addcmul(*(torch.from_numpy(x).expand(13, 40) if k == 0 else torch.from_numpy(x) for k, x in enumerate((c, a, b))),
                          out=out)
            want = np.empty((13, 40), np.float32)
            fma_slow(a, b, c, want)
            if not np.array_equal(out.numpy(), want):
                return False
    return True


def to_odd(a: Lanes, b: Lanes, c: Lanes | None = None) -> NDArray[np.float64]:
    """a * b + c (or a + b) of float32 values in float64, rounded to odd: rounding it again to fewer bits rounds once."""
    x = np.multiply(a, b, dtype=np.float64) if c is not None else np.asarray(a, np.float64)
    y = np.asarray(c if c is not None else b, np.float64)
    total = x + y
    tail = total - x
    error = (x - (total - tail)) + (y - tail)
    bits = total.view(np.uint64)
    fix = np.flatnonzero((error != 0) & (bits & np.uint64(1) == 0) & np.isfinite(total))
    if len(fix):
        flat = total.reshape(-1)
        flat[fix] = np.nextafter(flat[fix], np.copysign(np.inf, np.broadcast_to(error, total.shape).reshape(-1)[fix]))
    return total


def fma_slow(a: Lanes, b: Lanes, c: Lanes, d: Lanes) -> None:
    """float32 a * b + c, rounded once to nearest even, through float64."""
    np.copyto(d, to_odd(a, b, c), casting="unsafe")


def fma64_slow(a: Lanes, b: Lanes, c: Lanes, d: Lanes) -> None:
    """float64 a * b + c with one rounding but in ties of the compensated sum, for machines without a fused operation."""
    x = a * b
    split = np.float64(134217729.0)
    ah, bh = a * split, b * split
    ah, bh = ah - (ah - a), bh - (bh - b)
    low = ((ah * bh - x) + ah * (b - bh) + (a - ah) * bh) + (a - ah) * (b - bh)
    total = x + c
    tail = total - x
    error = (x - (total - tail)) + (c - tail) + low
    np.copyto(d, np.where(np.isfinite(total) & np.isfinite(error), total + error, total))


FUSED = _probe_fused()


def round_directed(value: NDArray[np.float64], mode: str, d: Lanes) -> None:
    """float64 (rounded to odd) to float32 `d`, by `rn`, `rz`, `rm` (down) or `rp` (up)."""
    near = value.astype(np.float32)
    if mode != "rn":
        wide = near.astype(np.float64)
        high = wide > value
        low = wide < value
        if mode == "rz":
            high, low = high & (value > 0), low & (value < 0)
        if mode in ("rm", "rz"):
            near = np.where(high, np.nextafter(near, np.float32(-np.inf)), near)
        if mode in ("rp", "rz"):
            near = np.where(low, np.nextafter(near, np.float32(np.inf)), near)
    np.copyto(d, near)


def fma_directed(a: Lanes, b: Lanes, c: Lanes, mode: str, d: Lanes) -> None:
    """float32 a * b + c with directed rounding."""
    round_directed(to_odd(a, b, c), mode, d)


def add_directed(a: Lanes, b: Lanes, mode: str, d: Lanes) -> None:
    round_directed(to_odd(a, b), mode, d)


def mul_directed(a: Lanes, b: Lanes, mode: str, d: Lanes) -> None:
    round_directed(np.multiply(a, b, dtype=np.float64), mode, d)


def div_directed(a: Lanes, b: Lanes, mode: str, d: Lanes) -> None:
    """float32 a / b; the float64 quotient of two float32 values is never nearer to a float32 tie than its own error."""
    quotient = np.divide(a, b, dtype=np.float64)
    near = quotient.astype(np.float32).astype(np.float64)
    error = np.multiply(near, b, dtype=np.float64) - a      # exact: 48 bits
    exact = np.where(near == quotient, np.where(error == 0, near, np.nextafter(
        near, np.where((error > 0) == (np.asarray(b) > 0), -np.inf, np.inf))), quotient)
    round_directed(np.where(np.isfinite(quotient) & (near != 0), exact, quotient), mode, d)


def flush(d: Lanes) -> None:
    """Subnormal float32 results become zero of the same sign (`.ftz`)."""
    small = np.abs(d) < TINY
    if small.any():
        np.copyto(d, np.copysign(np.float32(0), d), where=small)


def flushed(a: Lanes) -> Lanes:
    """An operand with its subnormals as zeros (`.ftz`)."""
    small = (np.abs(a) < TINY) & (a != 0)
    return np.where(small, np.copysign(np.float32(0), a), a) if small.any() else a


def saturate(d: Lanes) -> None:
    """Clamp to [0, 1], NaN to 0 (`.sat`)."""
    np.fmax(d, d.dtype.type(0), out=d)
    np.fmin(d, d.dtype.type(1), out=d)


def ex2(a: Lanes, d: Lanes) -> None:
    """2**a with subnormal results flushed, as `ex2.approx.ftz.f32`. The hardware is off by up to 2 units; this is nearer."""
    deep = np.fmin.reduce(a, axis=None) < -126
    np.exp2(a, out=d)
    if deep:
        flush(d)


def rsqrt(a: Lanes, d: Lanes) -> None:
    np.divide(1.0, np.sqrt(a, dtype=np.float64), out=d, dtype=np.float64, casting="unsafe")


# 16-bit floats ---------------------------------------------------------------------------------------------------


def widen(bits: Lanes, kind: str) -> NDArray[np.float32]:
    """uint16 patterns of `f16` or `bf16` as float32, exactly."""
    bits = np.ascontiguousarray(bits)
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return torch.from_numpy(bits).view(torch.float16).float().numpy()


def widen_into(bits: Lanes, kind: str, d: Lanes) -> None:
    if kind == "bf16":
        np.left_shift(bits, np.uint32(16), out=d.view(np.uint32), dtype=np.uint32)
    else:
        torch.from_numpy(d).copy_(torch.from_numpy(np.ascontiguousarray(bits)).view(torch.float16))


def narrow(value: Lanes, kind: str) -> NDArray[np.uint16]:
    """float32 to uint16 patterns, to nearest even."""
    value = np.ascontiguousarray(value)
    return torch.from_numpy(value).to(HALF[kind]).view(torch.uint16).numpy()


def narrow_wide(value: NDArray[np.float64], kind: str) -> NDArray[np.uint16]:
    """float64 (rounded to odd) to patterns with one rounding: squeezed to a float32 that keeps a sticky last bit."""
    near = value.astype(np.float32)
    wide = near.astype(np.float64)
    bits = near.view(np.uint32)
    move = (wide != value) & (bits & np.uint32(1) == 0) & np.isfinite(near)
    toward = np.where(value > wide, np.float32(np.inf), np.float32(-np.inf))
    near = np.where(move, np.nextafter(near, toward), near)
    return narrow(near, kind)


def round_half(value: NDArray[np.float64], kind: str, mode: str) -> NDArray[np.uint16]:
    """float64 values to patterns by `rn` or `rz` (`rm`, `rp` where asked)."""
    bits = narrow_wide(value, kind)
    if mode == "rn":
        return bits
    wide = widen(bits, kind).astype(np.float64)
    away = np.abs(wide) > np.abs(value) if mode == "rz" else wide > value if mode == "rm" else wide < value
    step = np.where(away, np.uint16(1), np.uint16(0))
    grows = (mode == "rm") & (value < 0) | (mode == "rp") & (value > 0)
    return np.where(grows, bits + step, bits - step).astype(np.uint16)


def _lanes16(x: Lanes) -> NDArray[np.uint16]:
    """uint32 words as a last axis of two uint16, uint16 words as one."""
    x = np.ascontiguousarray(x)
    return x.view(np.uint16).reshape(*x.shape, -1)


def half_operation(name: str, kind: str, operands: tuple[Lanes, ...], d: Lanes, flags: tuple[str, ...] = ()) -> None:
    """One arithmetic instruction on `f16` or `bf16` values, scalar (uint16 arrays) or packed in pairs (uint32 arrays)."""
    parts = [_lanes16(x) for x in operands]
    if name in ("neg", "abs"):
        bits = parts[0] ^ np.uint16(0x8000) if name == "neg" else parts[0] & np.uint16(0x7FFF)
    else:
        values = [widen(x, kind) for x in parts]
        if name == "fma":
            bits = narrow_wide(to_odd(*values), kind)
        elif name in ("add", "sub", "mul"):
            if kind == "f16":       # float32 has more than twice the bits and two more: rounding twice is rounding once
                bits = narrow({"add": np.add, "sub": np.subtract, "mul": np.multiply}[name](*values), kind)
            elif name == "mul":
                bits = narrow_wide(np.multiply(*values, dtype=np.float64), kind)
            else:
                bits = narrow_wide(to_odd(values[0], -values[1] if name == "sub" else values[1]), kind)
        elif name in ("min", "max"):
            bits = _half_extreme(name, parts, values, flags)
        elif name == "ex2":
            bits = narrow(np.exp2(values[0]), kind)
        elif name == "tanh":
            bits = narrow(np.tanh(values[0]), kind)
        else:
            raise KeyError(name)
    if "sat" in flags or "relu" in flags:
        value = widen(bits, kind)
        value = np.clip(np.nan_to_num(value, nan=0.0), 0, 1 if "sat" in flags else np.inf)
        bits = narrow(value.astype(np.float32), kind)
    np.copyto(_lanes16_of(d), bits)


def _lanes16_of(d: Lanes) -> NDArray[np.uint16]:
    """A writable view of a result as `_lanes16` would see it."""
    return d.view(np.uint16).reshape(*d.shape, -1)


def _half_extreme(name: str, parts: list[Lanes], values: list[Lanes], flags: tuple[str, ...]) -> Lanes:
    (x, y), (a, b) = values, parts
    if name == "min":
        first = (x < y) | ((x == y) & (a > b))          # -0 below +0
    else:
        first = (x > y) | ((x == y) & (a < b))
    bits = np.where(first | np.isnan(y), a, b)
    nan = np.isnan(x) | np.isnan(y) if "NaN" in flags else np.isnan(x) & np.isnan(y)
    return np.where(nan, np.uint16(0x7FFF), bits)


def half_compare(name: str, kind: str, a: Lanes, b: Lanes) -> NDArray[np.bool_]:
    """A `setp` comparison of 16-bit floats."""
    return compare(name, widen(a, kind), widen(b, kind))


ORDERED = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
           "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal, "neu": np.not_equal}
UNORDERED = {"equ": np.not_equal, "ltu": np.greater_equal, "leu": np.greater, "gtu": np.less_equal, "geu": np.less}
"""`xu` is true for NaN: the negation of the opposite ordered comparison."""


def compare(name: str, a: Lanes, b: Lanes) -> NDArray[np.bool_]:
    """Any `setp` comparison of floats, NaN forms included."""
    if name == "ne":      # ordered: false for NaN, unlike NumPy's
        return (a != b) & ~(np.isnan(a) | np.isnan(b)) if a.dtype.kind == "f" else a != b
    if name == "equ":
        return (a == b) | np.isnan(a) | np.isnan(b)
    if name in ORDERED:
        return ORDERED[name](a, b)
    if name in UNORDERED:
        return ~UNORDERED[name](a, b)
    nan = np.isnan(a) | np.isnan(b)
    return nan if name == "nan" else ~nan


def select(d: Lanes, which: Lanes, a: Lanes, b: Lanes) -> None:
    """d = which ? a : b, on unsigned patterns."""
    if d.size < 4096:
        np.copyto(d, np.where(which, a, b))
        return
    signed = f"i{d.itemsize}"
    torch.where(torch.from_numpy(which).expand(d.shape), torch.from_numpy(a.view(signed)), torch.from_numpy(b.view(signed)),
                out=torch.from_numpy(d.view(signed)))


# Integers --------------------------------------------------------------------------------------------------------


def divide(a: Lanes, b: Lanes, d: Lanes) -> None:
    """Quotient toward zero; all ones for a zero divisor, as the hardware gives."""
    quotient = np.floor_divide(a - np.fmod(a, b), b)
    zero = b == 0
    np.copyto(d, np.where(zero, np.array(-1).astype(d.dtype), quotient) if zero.any() else quotient)


def remainder(a: Lanes, b: Lanes, d: Lanes) -> None:
    """Remainder with the sign of the dividend; the dividend itself for a zero divisor."""
    rest = np.fmod(a, b)
    zero = b == 0
    np.copyto(d, np.where(zero, a, rest) if zero.any() else rest)


def mul_high(a: Lanes, b: Lanes, d: Lanes) -> None:
    """Upper half of the product."""
    kind, bits = a.dtype.kind, 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{kind}{2 * bits // 8}")
        np.copyto(d, np.multiply(a, b, dtype=wide) >> wide.type(bits), casting="unsafe")
        return
    x, y, half, low = a.view(np.uint64), b.view(np.uint64), np.uint64(32), np.uint64(0xFFFFFFFF)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    np.copyto(d, high.view(d.dtype))


def shift(name: str, a: Lanes, count: Lanes, d: Lanes) -> None:
    """`shl` or `shr` by a count of lanes: counts past the width give zero, or the sign for signed `shr`."""
    bits = 8 * a.dtype.itemsize
    over = count >= bits
    amount = np.minimum(count, bits - 1).astype(a.dtype)
    result = np.left_shift(a, amount) if name == "shl" else np.right_shift(a, amount)
    if a.dtype.kind == "u" and over.any():
        result = np.where(over, a.dtype.type(0), result)
    np.copyto(d, result)


def funnel(left: bool, wrap: bool, a: Lanes, b: Lanes, count: Lanes, d: Lanes) -> None:
    """`shf`: 32 bits out of b:a (b high)."""
    amount = (count & np.uint32(31) if wrap else np.minimum(count, np.uint32(32))).astype(np.uint64)
    whole = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    shifted = whole << amount >> np.uint64(32) if left else whole >> amount
    np.copyto(d, shifted.astype(np.uint32))


def field_masks(start: Lanes, length: Lanes, bits: int) -> tuple[Lanes, Lanes]:
    """Clamped position and the unshifted mask of a bit field."""
    kind = np.dtype(f"u{bits // 8}").type
    start = (start & np.uint32(255)).astype(kind)
    length = (length & np.uint32(255)).astype(kind)
    mask = np.where(length >= bits, ~kind(0), (kind(1) << np.minimum(length, kind(bits - 1))) - kind(1))
    return start, mask


def bit_insert(a: Lanes, b: Lanes, start: Lanes, length: Lanes, d: Lanes) -> None:
    """`bfi`: the low bits of a put into b."""
    bits = 8 * a.dtype.itemsize
    kind = a.dtype.type
    start, mask = field_masks(start, length, bits)
    inside = start < bits
    start = np.minimum(start, kind(bits - 1))
    np.copyto(d, np.where(inside, (b & ~(mask << start)) | ((a & mask) << start), b))


def bit_extract(a: Lanes, start: Lanes, length: Lanes, d: Lanes) -> None:
    """`bfe`: signed types repeat the field's top bit (or the value's, past its end)."""
    bits = 8 * a.dtype.itemsize
    kind = np.dtype(f"u{bits // 8}").type
    signed = a.dtype.kind == "i"
    start, mask = field_masks(start, length, bits)
    count = np.minimum((length & np.uint32(255)).astype(kind), kind(bits))
    low = np.where(start >= bits, kind(0), a.view(kind) >> np.minimum(start, kind(bits - 1))) & mask
    if signed:
        top = np.minimum(start.astype(np.int64) + count.astype(np.int64) - 1, bits - 1)
        sign = (a.view(kind) >> np.maximum(top, 0).astype(kind)) & kind(1)
        valid = np.minimum(count.astype(np.int64), np.maximum(bits - start.astype(np.int64), 0)).astype(kind)
        fill = np.where(valid >= bits, kind(0), ~kind(0) << np.minimum(valid, kind(bits - 1)))
        low = np.where((sign == 1) & (count > 0), low | fill, low)
    np.copyto(d, low.view(d.dtype))


def permute(a: Lanes, b: Lanes, selector: Lanes, d: Lanes) -> None:
    """`prmt`: four bytes out of b:a by nibbles; bit 3 of a nibble repeats the byte's sign."""
    whole = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.uint32(0)
    for index in range(4):
        nibble = selector >> np.uint32(4 * index) & np.uint32(15)
        byte = (whole >> ((nibble & np.uint32(7)) * np.uint32(8)).astype(np.uint64) & np.uint64(255)).astype(np.uint32)
        byte = np.where(nibble & np.uint32(8), np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0)), byte)
        result = result | byte << np.uint32(8 * index)
    np.copyto(d, result)


def lop3(a: Lanes, b: Lanes, c: Lanes, table: int, d: Lanes) -> None:
    """Any logical function of three words, by its truth table."""
    result = np.uint32(0)
    for index in range(8):
        if table >> index & 1:
            result = result | ((a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c))
    np.copyto(d, result)


def count_leading(a: Lanes) -> NDArray[np.uint32]:
    """Leading zeros of unsigned words."""
    bits = 8 * a.dtype.itemsize
    high = (a >> a.dtype.type(bits // 2)).astype(np.float64)
    low = (a & a.dtype.type((1 << bits // 2) - 1)).astype(np.float64)
    top = np.where(high > 0, np.frexp(high)[1] + bits // 2, np.frexp(low)[1])
    return (bits - top).astype(np.uint32)


def find_top(a: Lanes, shift_amount: bool, d: Lanes) -> None:
    """`bfind`: position of the highest bit that is not the sign; all ones when there is none."""
    word = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
    zeros = count_leading(word.view(f"u{a.dtype.itemsize}"))
    bits = np.uint32(8 * a.dtype.itemsize)
    found = zeros if shift_amount else bits - np.uint32(1) - zeros
    np.copyto(d, np.where(zeros == bits, np.uint32(0xFFFFFFFF), found))


def reverse_bits(a: Lanes, d: Lanes) -> None:
    table = np.array([int(f"{k:08b}"[::-1], 2) for k in range(256)], np.uint8)
    flat = table[np.ascontiguousarray(a).view(np.uint8)].reshape(*a.shape, -1)[..., ::-1]
    np.copyto(d, np.ascontiguousarray(flat).view(a.dtype)[..., 0])


def dot4(a: Lanes, b: Lanes, c: Lanes, signs: tuple[str, str], d: Lanes) -> None:
    """`dp4a`: four byte products added to c."""
    total = c.astype(np.int64)
    for index in range(4):
        x, y = ((np.right_shift(w, w.dtype.type(8 * index)).astype(np.uint8).view(np.int8 if sign == "s32" else np.uint8))
                for w, sign in ((a, signs[0]), (b, signs[1])))
        total = total + x.astype(np.int64) * y.astype(np.int64)
    np.copyto(d, total.astype(np.uint64).astype(np.uint32).view(d.dtype))


# Conversions -----------------------------------------------------------------------------------------------------


def to_integer(a: Lanes, mode: str, wide_nan: bool, d: Lanes) -> None:
    """float to integer, rounded by `mode`, clamped to the type. NaN gives 0, or the lowest value where 64 bits are involved."""
    limits = np.iinfo(d.dtype)
    value = ROUND[mode](a.astype(np.float64))
    nan = np.isnan(value)
    low, high = value <= limits.min, value >= float(limits.max)
    plain = nan | low | high
    if not plain.any():
        np.copyto(d, value, casting="unsafe")
        return
    result = np.where(plain, 0.0, value).astype(d.dtype)
    result = np.where(low, d.dtype.type(limits.min), np.where(high, d.dtype.type(limits.max), result))
    bad = np.array(1 << (8 * d.itemsize - 1)).astype(np.uint64).astype(f"u{d.itemsize}").view(d.dtype) if wide_nan else d.dtype.type(0)
    np.copyto(d, np.where(nan, bad, result))


def integer_to_float(a: Lanes, mode: str, d: Lanes) -> None:
    """Integer to float32 or float64; NumPy's cast is to nearest."""
    if mode == "rn" or (d.dtype == np.float64 and a.itemsize < 8):
        np.copyto(d, a, casting="unsafe")
        return
    near = a.astype(d.dtype)
    # Compared as integers: past 2**53 the float cannot tell. Values that round up past the type's end are above it.
    top = np.iinfo(a.dtype).max
    past = near >= d.dtype.type(float(top))
    back = np.where(past, 0, near).astype(a.dtype)
    high, low = past | (back > a), ~past & (back < a)
    if mode in ("rm", "rz"):
        near = np.where(high & ((mode == "rm") | (a > 0)), np.nextafter(near, d.dtype.type(-np.inf)), near)
    if mode in ("rp", "rz"):
        near = np.where(low & ((mode == "rp") | (a < 0)), np.nextafter(near, d.dtype.type(np.inf)), near)
    np.copyto(d, near)


def clamp_integer(a: Lanes, d: Lanes, kind: str) -> None:
    """Integer to integer with `.sat`; `kind` is the destination's PTX type."""
    limits = np.iinfo(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    mine = np.iinfo(a.dtype)
    np.copyto(d, np.clip(a, max(limits.min, mine.min), min(limits.max, mine.max)), casting="unsafe")
