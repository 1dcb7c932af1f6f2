"""8-bit floats as bit patterns: `e4m3` (no infinities, one NaN) and `e5m2` (as IEEE), widened exactly, narrowed with one rounding.

Formats: P. Micikevicius et al., "FP8 formats for deep learning", 2022; conversions as PTX ISA, `cvt` with `.satfinite`: to nearest
even, overflow and infinity to the largest finite value, NaN to 0x7F.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

Lanes = NDArray[np.generic]

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
NAN = 0x7F


@cache
def table(kind: str) -> NDArray[np.float32]:
    """The value of each of the 256 patterns."""
    return torch.arange(256, dtype=torch.uint8).view(TYPES[kind]).float().numpy()


@cache
def thresholds(kind: str) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Midpoints between neighbouring finite positive values, and for each whether a tie goes up (to the even pattern)."""
    values = table(kind)[:128]
    finite = values[np.isfinite(values)].astype(np.float64)
    return (finite[1:] + finite[:-1]) / 2, (np.arange(len(finite) - 1) % 2).astype(np.uint8)


def lanes(word: Lanes) -> NDArray[np.uint8]:
    """uint16 words as a last axis of two patterns, the lower one first."""
    word = np.ascontiguousarray(word)
    return word.view(np.uint8).reshape(*word.shape, 2)


def widen(bits: Lanes, kind: str) -> NDArray[np.float32]:
    """uint8 patterns as float32, exactly."""
    return table(kind)[bits]


def narrow(values: Lanes, kind: str) -> NDArray[np.uint8]:
    """Floats to patterns, to nearest even, saturating."""
    size = np.abs(values).astype(np.float64)
    middle, up = thresholds(kind)
    place = np.searchsorted(middle, size, side="left")                      # midpoints below: the pattern rounded down at a tie
    tie = (place < len(middle)) & (middle[np.minimum(place, len(middle) - 1)] == size)
    bits = (place + (tie & (up[np.minimum(place, len(up) - 1)] == 1))).astype(np.uint8)
    bits |= np.where(np.signbit(values), np.uint8(0x80), np.uint8(0))
    return np.where(np.isnan(values), np.uint8(NAN), bits)
