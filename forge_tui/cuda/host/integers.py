"""Integer arithmetic and bit operations as PTX defines them. Results are written into `d`, which may be an operand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[np.generic]


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


def dot2(a: Lanes, b: Lanes, c: Lanes, signs: tuple[str, str], high: bool, d: Lanes) -> None:
    """`dp2a`: two products of 16-bit halves of a with bytes of b (the upper two, if `high`) added to c."""
    total = c.astype(np.int64)
    for index in range(2):
        x = np.right_shift(a, a.dtype.type(16 * index)).astype(np.uint16).view(np.int16 if signs[0] == "s32" else np.uint16)
        y = np.right_shift(b, b.dtype.type(8 * index + 16 * high)).astype(np.uint8).view(np.int8 if signs[1] == "s32" else np.uint8)
        total = total + x.astype(np.int64) * y.astype(np.int64)
    np.copyto(d, total.astype(np.uint64).astype(np.uint32).view(d.dtype))


PERMUTATIONS = {"f4e": (0x3210, 0x4321, 0x5432, 0x6543), "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
                "rc8": (0x0000, 0x1111, 0x2222, 0x3333), "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
                "ecr": (0x0000, 0x1110, 0x2210, 0x3210), "rc16": (0x1010, 0x3232, 0x1010, 0x3232)}
"""Selectors that the modes of `prmt` stand for, by the two low bits of its third operand (PTX ISA, "prmt")."""


def permutation(mode: str, selector: Lanes) -> Lanes:
    return np.array(PERMUTATIONS[mode], np.uint32)[(selector & np.uint32(3)).astype(np.int64)]


def product(a: Lanes, b: Lanes, high: bool) -> Lanes:
    """One half of a product, as unsigned."""
    if not high:
        return np.multiply(a, b)
    d = np.empty(np.broadcast_shapes(a.shape, b.shape), a.dtype)
    mul_high(a, b, d)
    return d.view(f"u{d.itemsize}")


def add_carry(a: Lanes, b: Lanes, carry: Lanes | None, d: Lanes, out: Lanes | None) -> None:
    """a + b + carry, and whether that did not fit."""
    total = a + b
    over = total < a
    if carry is not None:
        total = total + carry.astype(total.dtype)
        over = over | carry & (total == 0)
    np.copyto(d, total)
    if out is not None:
        np.copyto(out, over)


def subtract_borrow(a: Lanes, b: Lanes, borrow: Lanes | None, d: Lanes, out: Lanes | None) -> None:
    """a - b - borrow, and whether that went below zero."""
    rest, under = a - b, a < b
    if borrow is not None:
        under = under | borrow & (rest == 0)
        rest = rest - borrow.astype(rest.dtype)
    np.copyto(d, rest)
    if out is not None:
        np.copyto(out, under)


def pack_saturated(a: Lanes, b: Lanes, c: Lanes | None, kind: str, d: Lanes) -> None:
    """`cvt.pack.sat`: b below a, each clamped to `kind`; c's low bits above them."""
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    below, above = (np.clip(x, low, high).astype(np.int64) & (1 << bits) - 1 for x in (b, a))
    word = below | above << bits
    if c is not None:
        word = word | c.astype(np.int64) << 2 * bits
    np.copyto(d, (word & 0xFFFFFFFF).astype(np.uint32))


def byte_differences(a: Lanes, b: Lanes, c: Lanes, summed: bool, d: Lanes) -> None:
    """`vabsdiff4`: |a - b| of every byte, or their sum added to c."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    x, y = (np.ascontiguousarray(np.broadcast_to(w, shape)).view(np.uint8).reshape(*shape, 4).astype(np.int16) for w in (a, b))
    apart = np.abs(x - y)
    if summed:
        np.copyto(d, c + apart.sum(axis=-1).astype(np.uint32))
    else:
        np.copyto(d, np.ascontiguousarray(apart.astype(np.uint8)).view(np.uint32)[..., 0])
