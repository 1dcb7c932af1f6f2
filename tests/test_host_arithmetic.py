"""Arithmetic of the host target, bit for bit against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from forge_tui.cuda.host import arithmetic as A
from forge_tui.cuda.host import halves as H
from forge_tui.cuda.host import integers as I

INF = float("inf")
FORMATS = {"f32": (24, -149, 127), "f16": (11, -24, 15), "bf16": (8, -133, 127)}
"""Bits of the significand, exponent of the smallest value, exponent of the largest."""


def exactly(value: Fraction, kind: str, mode: str = "rn") -> float:
    """The float of a format that a rational rounds to."""
    bits, lowest, highest = FORMATS[kind]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - bits + 1, lowest)
    low = value / unit
    whole = low.numerator // low.denominator
    rest = low - whole
    if mode == "rn":
        whole += rest > Fraction(1, 2) or rest == Fraction(1, 2) and whole & 1
    elif mode == "rp" or mode == "rz" and value < 0:
        whole += rest > 0
    result = whole * unit
    limit = (2 - Fraction(2) ** (1 - bits)) * Fraction(2) ** highest
    if abs(result) > limit:
        toward_limit = mode == "rz" or mode == "rm" and value > 0 or mode == "rp" and value < 0
        return float(limit if value > 0 else -limit) if toward_limit else INF if value > 0 else -INF
    return float(result)


def hard_values(seed: int, count: int, kind: str = "f32") -> np.ndarray:
    """Values of a format: of all sizes, near ties, tiny, huge."""
    rng = np.random.default_rng(seed)
    bits, lowest, highest = FORMATS[kind]
    few = rng.integers(1, 1 << bits, count) >> rng.integers(0, bits, count)
    size = np.ldexp(few.astype(np.float64), rng.integers(lowest, highest - bits, count))
    near = rng.integers(1 << bits - 1, 1 << bits, count).astype(np.float64) * 2.0 ** (1 - bits)
    value = np.where(rng.random(count) < 0.5, near * 2.0 ** rng.integers(-3, 3, count), size)
    return (value * rng.choice([-1, 1], count)).reshape(1, -1)


def as_float(bits: np.ndarray, kind: str) -> np.ndarray:
    return H.widen(bits, kind).astype(np.float64)


def check(got: np.ndarray, want: list[float]) -> None:
    expected = np.array(want).reshape(got.shape)
    wrong = np.flatnonzero(got.astype(np.float64) != expected)
    assert not len(wrong), f"{len(wrong)} wrong, first: got {got.flat[wrong[0]]!r}, exactly {expected.flat[wrong[0]]!r}"


def ties(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Products that fall exactly between two float32 values, and an addend too small to show but for the tie."""
    rng = np.random.default_rng(11)
    a = (rng.integers(1 << 11, 1 << 12, count) * 2 + 1).astype(np.float32)
    b = (rng.integers(1 << 11, 1 << 12, count) * 2 + 1).astype(np.float32)
    c = (rng.choice([-1, 1], count) * 2.0 ** rng.integers(-140, -20, count)).astype(np.float32)
    return a.reshape(1, -1), b.reshape(1, -1), c.reshape(1, -1)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("values", ["mixed", "ties"])
def test_fused_multiply_add_rounds_once(mode: str, values: str) -> None:
    a, b, c = ties(1500) if values == "ties" else (hard_values(s, 1500).astype(np.float32) for s in (1, 2, 3))
    want = [exactly(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), "f32", mode)
            for x, y, z in zip(a[0], b[0], c[0], strict=True)]
    d = np.zeros_like(a)
    with np.errstate(all="ignore"):
        if mode == "rn":
            A.fma_slow(a, b, c, d)
            check(d, want)
            if A.FUSED:
                torch.addcmul(torch.from_numpy(c), torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(d))
        else:
            A.fma_directed(a, b, c, mode, d)
    check(d, want)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_addition_multiplication_division(mode: str) -> None:
    a, b = hard_values(4, 1500).astype(np.float32), hard_values(5, 1500).astype(np.float32)
    b[b == 0] = 3      # a value too small for float32
    exact = {"add_directed": lambda x, y: x + y, "mul_directed": lambda x, y: x * y, "div_directed": lambda x, y: x / y}
    with np.errstate(all="ignore"):
        for name, operation in exact.items():
            d = np.zeros_like(a)
            getattr(A, name)(a, b, mode, d)
            check(d, [exactly(operation(Fraction(float(x)), Fraction(float(y))), "f32", mode) for x, y in zip(a[0], b[0], strict=True)])


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_addition_of_float64_brackets_the_exact_sum(mode: str) -> None:
    rng = np.random.default_rng(21)
    a, b = (rng.standard_normal((1, 1000)) * 2.0 ** rng.integers(-60, 60, 1000) for _ in range(2))
    d = np.zeros_like(a)
    A.add64_directed(a, b, mode, d)
    for x, y, got in zip(a[0], b[0], d[0], strict=True):
        exact, found = Fraction(x) + Fraction(y), Fraction(got)
        below = mode == "rm" or mode == "rz" and exact > 0
        assert found <= exact if below else found >= exact
        beyond = Fraction(float(np.nextafter(got, np.inf if below else -np.inf)))
        assert found == exact or (beyond > exact if below else beyond < exact)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_arithmetic_rounds_once(kind: str) -> None:
    values = [hard_values(s, 4000, kind).astype(np.float32) for s in (6, 7, 8)]
    with np.errstate(all="ignore"):
        patterns = [H.narrow(v, kind) for v in values]
        x, y, z = ([Fraction(float(v)) for v in row[0]] for row in values)
        for name, want in (("add", [p + q for p, q in zip(x, y, strict=True)]), ("sub", [p - q for p, q in zip(x, y, strict=True)]),
                           ("mul", [p * q for p, q in zip(x, y, strict=True)]),
                           ("fma", [p * q + r for p, q, r in zip(x, y, z, strict=True)])):
            d = np.zeros(patterns[0].shape, np.uint16)
            H.half_operation(name, kind, tuple(patterns[:3 if name == "fma" else 2]), d)
            check(as_float(d, kind), [exactly(v, kind) for v in want])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_conversion_to_half(kind: str, mode: str) -> None:
    value = np.concatenate([hard_values(9, 1500), hard_values(10, 2000, kind) * (1 + 2.0 ** -FORMATS[kind][0])], axis=1).astype(np.float32)
    with np.errstate(all="ignore"):
        got = H.narrow(value, kind) if mode == "rn" else H.round_half(value.astype(np.float64), kind, mode)
        check(as_float(got, kind), [exactly(Fraction(float(v)), kind, mode) for v in value[0]])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_float64_to_half_rounds_once(kind: str) -> None:
    value = hard_values(12, 1500, kind) * (1 + 2.0 ** -FORMATS[kind][0]) * (1 + np.random.default_rng(1).choice([-1, 0, 1], 1500) * 2.0**-50)
    with np.errstate(all="ignore"):
        check(as_float(H.narrow_wide(value, kind), kind), [exactly(Fraction(float(v)), kind) for v in value[0]])


def test_every_half_widens_exactly() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16).reshape(1, -1)
    np.testing.assert_array_equal(H.widen(patterns, "f16"), patterns.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(H.widen(patterns, "bf16").view(np.uint32), patterns.astype(np.uint32) << 16)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_integer_to_float(mode: str, dtype: type) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(13)
    a = rng.integers(limits.min, limits.max, 2000, dtype=dtype, endpoint=True) >> rng.integers(0, 30, 2000).astype(dtype)
    a = np.concatenate([a, np.array([limits.min, limits.max, limits.max - 1, 0, 1], dtype)]).reshape(1, -1)
    d = np.zeros(a.shape, np.float32)
    with np.errstate(all="ignore"):
        A.integer_to_float(a, mode, d)
    check(d, [exactly(Fraction(int(v)), "f32", mode) for v in a[0]])


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_float_to_integer_clamps(mode: str, dtype: type) -> None:
    limits = np.iinfo(dtype)
    plain = np.array([[0.5, 1.5, -0.5, -1.5, 2.5, 1e9, -1e9, 3e9, -3e9, 1e19, -1e19, 2.0**63, 2.0**31, 2.0**32, INF, -INF, -0.0, 4194304.5]],
                     np.float32)
    d = np.zeros(plain.shape, dtype)
    A.to_integer(plain, mode, False, d)
    rounded = A.ROUND[mode](plain.astype(np.float64))[0]
    want = [limits.max if v == INF else limits.min if v == -INF else min(max(int(v), limits.min), limits.max) for v in rounded]
    assert [int(v) for v in d[0]] == want
    nan = np.array([[np.nan]], np.float32)
    for wide, expected in ((False, 0), (True, limits.min if limits.min else 1 << (limits.bits - 1))):
        result = np.zeros((1, 1), dtype)
        A.to_integer(nan, mode, wide, result)
        assert int(result[0, 0]) == expected


def test_division_as_the_hardware_does() -> None:
    a = np.array([[7, -7, 7, -7, 5, 0, -2**31, 2**31 - 1]], np.int32)
    b = np.array([[2, 2, -2, -2, 0, 0, 3, -1]], np.int32)
    q, r = np.zeros_like(a), np.zeros_like(a)
    with np.errstate(all="ignore"):
        I.divide(a, b, q)
        I.remainder(a, b, r)
    assert q[0].tolist() == [3, -3, -3, 3, -1, -1, -715827882, -(2**31) + 1] and r[0].tolist() == [1, -1, 1, -1, 5, 0, -2, 0]
    unsigned = np.array([[5, 0]], np.uint32)
    with np.errstate(all="ignore"):
        I.divide(unsigned, np.zeros_like(unsigned), unsigned)
    assert unsigned[0].tolist() == [2**32 - 1] * 2


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_high_half_of_products(dtype: type) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(14)
    edge = np.array([limits.min, limits.max, 0, 1], dtype)
    a, b = (np.concatenate([rng.integers(limits.min, limits.max, 500, dtype=dtype, endpoint=True), np.roll(edge, k)]).reshape(1, -1) for k in (0, 1))
    d = np.zeros_like(a)
    with np.errstate(all="ignore"):
        I.mul_high(a, b, d)
    assert [int(v) for v in d[0]] == [int(x) * int(y) >> limits.bits for x, y in zip(a[0], b[0], strict=True)]


def test_bit_fields_against_big_integers() -> None:
    rng = np.random.default_rng(15)
    for bits in (32, 64):
        unsigned, signed = np.dtype(f"u{bits // 8}"), np.dtype(f"i{bits // 8}")
        a, b = (rng.integers(0, np.iinfo(unsigned).max, (1, 800), dtype=unsigned, endpoint=True) for _ in range(2))
        start, length = (rng.integers(0, 2 * bits, (1, 800)).astype(np.uint32) % 256 for _ in range(2))
        insert, plain, extended = np.zeros_like(a), np.zeros_like(a), np.zeros(a.shape, signed)
        I.bit_insert(a, b, start, length, insert)
        I.bit_extract(a, start, length, plain)
        I.bit_extract(a.view(signed), start, length, extended)
        for k in range(800):
            x, y, p, n = int(a[0, k]), int(b[0, k]), int(start[0, k]), int(length[0, k])
            field = ((1 << n) - 1) << p & ((1 << bits) - 1)
            assert int(insert[0, k]) == (y & ~field | x << p & field) if p < bits else y
            got = x >> p & ((1 << n) - 1)
            assert int(plain[0, k]) == got
            top = min(p + n - 1, bits - 1)
            seen = max(0, min(n, bits - p))
            want = got - (1 << seen) if n and x >> top & 1 else got
            assert int(extended[0, k]) == want, (bits, x, p, n)


def test_shifts_past_the_width_and_counting() -> None:
    a = np.array([[0x80000001, 1, 0, 0xFFFFFFFF]], np.uint32)
    d = np.zeros_like(a)
    I.shift("shl", a, np.array([[32, 31, 5, 4]], np.uint32), d)
    assert d[0].tolist() == [0, 2**31, 0, 0xFFFFFFF0]
    signed = np.zeros(a.shape, np.int32)
    I.shift("shr", a.view(np.int32), np.array([[40, 1, 1, 33]], np.uint32), signed)
    assert signed[0].tolist() == [-1, 0, 0, -1]
    assert I.count_leading(a)[0].tolist() == [0, 31, 32, 0]
    wide = np.array([[0, 1, 2**63, 2**53 + 1, 2**32 - 1]], np.uint64)
    assert I.count_leading(wide)[0].tolist() == [64, 63, 0, 10, 32]
    I.reverse_bits(a, d)
    assert d[0].tolist() == [0x80000001, 0x80000000, 0, 0xFFFFFFFF]


def test_comparisons_with_nan() -> None:
    a, b = np.array([[1, np.nan, 2, 2]], np.float32), np.array([[1, 1, np.nan, 1]], np.float32)
    table = {"eq": [1, 0, 0, 0], "ne": [0, 0, 0, 1], "lt": [0, 0, 0, 0], "ge": [1, 0, 0, 1], "equ": [1, 1, 1, 0], "neu": [0, 1, 1, 1],
             "ltu": [0, 1, 1, 0], "geu": [1, 1, 1, 1], "gtu": [0, 1, 1, 1], "leu": [1, 1, 1, 0], "num": [1, 0, 0, 1], "nan": [0, 1, 1, 0]}
    for name, want in table.items():
        assert A.compare(name, a, b)[0].tolist() == [bool(v) for v in want], name


def test_half_extremes_order_zeros_and_prefer_numbers() -> None:
    def pattern(*values: float) -> np.ndarray:
        return np.array([values], np.float16).view(np.uint16)

    a, b = pattern(1, np.nan, -0.0, 0.0, np.nan), pattern(2, 3, 0.0, -0.0, np.nan)
    d = np.zeros_like(a)
    H.half_operation("max", "f16", (a, b), d)
    assert d[0, :2].view(np.float16).tolist() == [2, 3] and d[0, 2:].tolist() == [0, 0, 0x7FFF]
    H.half_operation("min", "f16", (a, b), d)
    assert d[0, 2:].tolist() == [0x8000, 0x8000, 0x7FFF]
    H.half_operation("max", "f16", (a, b), d, ("NaN",))
    assert d[0, 1] == 0x7FFF


def test_bfloat16_products_and_sums_near_the_end_of_float32_round_once() -> None:
    rng = np.random.default_rng(4)
    a = (rng.integers(0, 2 ** 7, 3000) | rng.integers(30, 75, 3000) << 7).astype(np.uint16)
    b = (rng.integers(0, 2 ** 7, 3000) | rng.integers(0, 75, 3000) << 7).astype(np.uint16)
    values = [H.widen(x, "bf16").astype(np.float64) for x in (a, b)]
    for name, operation in (("mul", lambda x, y: x * y), ("add", lambda x, y: x + y), ("sub", lambda x, y: x - y)):
        got = np.zeros_like(a)
        H.half_operation(name, "bf16", (a, b), got)
        want = [exactly(operation(Fraction(float(x)), Fraction(float(y))), "bf16") for x, y in zip(*values, strict=True)]
        np.testing.assert_array_equal(H.widen(got, "bf16").astype(np.float64), want)
