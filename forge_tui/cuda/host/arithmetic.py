"""Float arithmetic that NumPy does not have: fused multiply-add, directed rounding, flushing, comparisons, conversions.

Operands are broadcastable arrays of lanes; results are written into `d`, which may be one of the operands.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

Lanes = NDArray[np.generic]

ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
TINY = np.float32(2.0**-126)
"""Smallest normal float32: `.ftz` results below it become zero."""


def _probe_fused() -> bool:
    """Whether this machine's `torch.addcmul` rounds once, for every mix of broadcast operands, subnormals included.

    The addend is minus the rounded product, so that only a fused operation leaves the product's last bits over.
    """
    shapes = [(1, 1), (13, 1), (1, 40), (13, 40)]
    for kind, a, b in ((np.float32, 1 + 2.0**-12, 1 + 2.0**-13), (np.float32, (1 + 2.0**-12) * 2.0**-60, (1 + 2.0**-13) * 2.0**-64),
                       (np.float32, 4097.0, 4099.0), (np.float64, 1 + 2.0**-30, 1 - 2.0**-31)):
        x, y = kind(a), kind(b)
        z = -(x * y)
        left = float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for code in range(64):
            operands = [torch.from_numpy(np.full(shapes[code >> 2 * k & 3], v, kind)) for k, v in enumerate((z, x, y))]
            operands[0] = operands[0].expand(shapes[3]) if code % 2 else operands[0]
            out = torch.empty(np.broadcast_shapes(*(o.shape for o in operands)), dtype=operands[0].dtype)
            torch.addcmul(*operands, out=out)
            if left == 0 or not bool((out == left).all()):
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


def add64_directed(a: Lanes, b: Lanes, mode: str, d: Lanes) -> None:
    """float64 a + b with directed rounding: the nearest sum, moved where its exact error says so."""
    total = a + b
    tail = total - a
    error = (a - (total - tail)) + (b - tail)
    down = error < 0 if mode == "rm" else (error < 0) & (total > 0) if mode == "rz" else np.False_
    up = error > 0 if mode == "rp" else (error > 0) & (total < 0) if mode == "rz" else np.False_
    np.copyto(d, np.where(down, np.nextafter(total, -np.inf), np.where(up, np.nextafter(total, np.inf), total)))


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
    bad = np.zeros((), d.dtype)
    if wide_nan:
        bad = np.array(1 << (8 * d.itemsize - 1), np.uint64).astype(f"u{d.itemsize}").view(d.dtype)
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


def round_tf32(value: Lanes, mode: str, relu: bool, d: Lanes) -> None:
    """float32 to tf32, in a word whose lower 13 bits are zero: to nearest (ties away, or to even) or toward zero."""
    bits = np.maximum(value, np.float32(0)).view(np.uint32) if relu else value.view(np.uint32)
    half = {"rna": np.uint32(0x1000), "rn": np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1)), "rz": np.uint32(0)}[mode]
    rounded = bits + half & np.uint32(0xFFFFE000)
    np.copyto(d, np.where(np.isfinite(value), rounded, np.where(np.isnan(value), np.uint32(0x7FFFE000), bits)))
