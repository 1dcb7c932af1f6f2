"""16-bit floats as bit patterns: exact widening, narrowing with one rounding, arithmetic, comparison.

`f16` and `bf16` values travel as uint16 arrays, two of them as uint32.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forge_tui.cuda.host.arithmetic import compare, to_odd

Lanes = NDArray[np.generic]

HALF = {"f16": torch.float16, "bf16": torch.bfloat16}
TINY_PRODUCT = np.float32(2.0 ** -110)
"""Below it a float32 product of two bfloat16 values may have lost bits that decide its rounding (denormals begin at 2**-126)."""


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


def lanes(x: Lanes) -> NDArray[np.uint16]:
    """uint32 words as a last axis of two uint16, uint16 words as one."""
    x = np.ascontiguousarray(x)
    return x.view(np.uint16).reshape(*x.shape, -1)


def half_operation(name: str, kind: str, operands: tuple[Lanes, ...], d: Lanes, flags: tuple[str, ...] = ()) -> None:
    """One arithmetic instruction on `f16` or `bf16` values, scalar (uint16 arrays) or packed in pairs (uint32 arrays)."""
    parts = [lanes(x) for x in operands]
    if name in ("neg", "abs"):
        bits = parts[0] ^ np.uint16(0x8000) if name == "neg" else parts[0] & np.uint16(0x7FFF)
    else:
        values = [widen(x, kind) for x in parts]
        if name == "fma":
            bits = narrow_wide(to_odd(*values), kind)
        elif name in ("add", "sub", "mul"):
            # float32 has more than twice the bits and two more: rounding twice is rounding once, but for bfloat16 products so small
            # that float32 itself runs out of bits.
            wide = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name](*values)
            if kind == "bf16" and name == "mul" and ((np.abs(wide) < TINY_PRODUCT) & (wide != 0)).any():
                bits = narrow_wide(np.multiply(*values, dtype=np.float64), kind)
            else:
                bits = narrow(wide, kind)
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
    np.copyto(lanes_of(d), bits)


def lanes_of(d: Lanes) -> NDArray[np.uint16]:
    """A writable view of a result as `lanes` would see it."""
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
