"""Instructions that real kernels use and few tests reach: carry chains, byte permutations, dot products, fp8, collectives."""

from __future__ import annotations

import pytest
import torch
from hostkit import fault, launch, line_of, needs_nvrtc, run

pytestmark = needs_nvrtc

WORDS = torch.randint(-(2**31), 2**31, (256, 8), generator=torch.Generator().manual_seed(2), dtype=torch.int64)
WORDS[:16] = torch.tensor([0, -1, 1, 2**31 - 1])[torch.arange(16)[:, None] * 7 % 4]


def words(count: int) -> torch.Tensor:
    return WORDS[:, :count].to(torch.int32).contiguous()


def unsigned(x: torch.Tensor) -> list[list[int]]:
    return [[int(v) & 0xFFFFFFFF for v in row] for row in x]


def signed32(values: list[list[int]]) -> torch.Tensor:
    return torch.tensor([[(v & 0xFFFFFFFF) - (1 << 32 if v >> 31 & 1 else 0) for v in row] for row in values], dtype=torch.int32)


def each(body: str, inputs: torch.Tensor, outputs: int) -> torch.Tensor:
    """Run `body` for every row of words: `x[k]` are its inputs, `y[k]` its outputs."""
    source = """#include <cuda_fp8.h>
    extern "C" __global__ void k(const unsigned* input, unsigned* out, int n, int m) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x; const unsigned* x = input + i * n; unsigned* y = out + i * m;
      """ + body + "}"
    out = torch.zeros(len(inputs), outputs, dtype=torch.int32)
    run(source, {"input": inputs, "out": out}, launch("k", len(inputs) // 64, 64, "input", "out", inputs.shape[1], outputs))
    return out


def test_addition_and_subtraction_with_carry() -> None:
    got = each("""asm volatile("add.cc.u32 %0, %4, %8; addc.cc.u32 %1, %5, %9; addc.cc.u32 %2, %6, %10; addc.u32 %3, %7, %11;"
      : "=&r"(y[0]), "=&r"(y[1]), "=&r"(y[2]), "=&r"(y[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]));
      asm volatile("sub.cc.u32 %0, %4, %8; subc.cc.u32 %1, %5, %9; subc.cc.u32 %2, %6, %10; subc.u32 %3, %7, %11;"
      : "=&r"(y[4]), "=&r"(y[5]), "=&r"(y[6]), "=&r"(y[7]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]));""",
               words(8), 8)
    expected = []
    for row in unsigned(words(8)):
        a, b = (sum(v << 32 * k for k, v in enumerate(row[s:s + 4])) for s in (0, 4))
        expected.append([(a + b) >> 32 * k & 0xFFFFFFFF for k in range(4)] + [(a - b) >> 32 * k & 0xFFFFFFFF for k in range(4)])
    assert torch.equal(got, signed32(expected))


def test_multiplication_with_carry() -> None:
    """64 x 64 to 128 bits, as big-number code writes it."""
    got = each("""asm volatile("mul.lo.u32 %0, %4, %6; mul.hi.u32 %1, %4, %6; mad.lo.cc.u32 %1, %5, %6, %1; madc.hi.u32 %2, %5, %6, 0;"
      "mad.lo.cc.u32 %1, %4, %7, %1; madc.hi.cc.u32 %2, %4, %7, %2; addc.u32 %3, 0, 0; mad.lo.cc.u32 %2, %5, %7, %2; madc.hi.u32 %3, %5, %7, %3;"
      : "=&r"(y[0]), "=&r"(y[1]), "=&r"(y[2]), "=&r"(y[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]));
      unsigned long long a = (unsigned long long)x[1] << 32 | x[0], b = (unsigned long long)x[3] << 32 | x[2], lo, hi;
      asm volatile("add.cc.u64 %0, %2, %3; addc.u64 %1, %2, %3;" : "=&l"(lo), "=l"(hi) : "l"(a), "l"(b));
      y[4] = lo; y[5] = lo >> 32; y[6] = hi; y[7] = hi >> 32;""", words(4), 8)
    expected = []
    for row in unsigned(words(4)):
        a, b = row[0] | row[1] << 32, row[2] | row[3] << 32
        low, high = (a + b) % 2**64, (a + b + (a + b >> 64)) % 2**64
        expected.append([a * b >> 32 * k & 0xFFFFFFFF for k in range(4)] + [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32])
    assert torch.equal(got, signed32(expected))


def test_carry_of_lanes_that_part_stays_theirs() -> None:
    got = each("""if (threadIdx.x % 3) asm volatile("add.cc.u32 %0, %2, %3; addc.u32 %1, 0, 0;" : "=&r"(y[0]), "=r"(y[1]) : "r"(x[0]), "r"(x[1]));
      else y[0] = y[1] = 7;""", words(2), 2)
    expected = [[(a + b) & 0xFFFFFFFF, a + b >> 32] if i % 64 % 3 else [7, 7] for i, (a, b) in enumerate(unsigned(words(2)))]
    assert torch.equal(got, signed32(expected))


MODES = {"f4e": lambda s: [s, s + 1, s + 2, s + 3], "b4e": lambda s: [(s - k) % 8 for k in range(4)], "rc8": lambda s: [s] * 4,
         "ecl": lambda s: [max(s, k) for k in range(4)], "ecr": lambda s: [min(s, k) for k in range(4)],
         "rc16": lambda s: [s % 2 * 2, s % 2 * 2 + 1] * 2}
"""Bytes that each mode of `prmt` selects, from the lowest on: the PTX ISA's table, said as formulas."""


def test_byte_permutations() -> None:
    modes = "".join(f'asm volatile("prmt.b32.{m} %0, %1, %2, %3;" : "=r"(y[{k}]) : "r"(x[0]), "r"(x[1]), "r"(x[2] & 3));'
                    for k, m in enumerate(MODES))
    got = each(modes + "y[6] = __byte_perm(x[0], x[1], x[2]);", words(3), 7)
    expected = []
    for a, b, c in unsigned(words(3)):
        raw = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
        row = [int.from_bytes(bytes(raw[p] for p in pick(c & 3)), "little") for pick in MODES.values()]
        expected.append([*row, int.from_bytes(bytes(raw[c >> 4 * k & 7] for k in range(4)), "little")])
    assert torch.equal(got, signed32(expected))


def test_dot_products_of_bytes() -> None:
    got = each("""y[0] = __dp4a((int)x[0], (int)x[1], (int)x[2]); y[1] = __dp4a(x[0], x[1], x[2]);
      y[2] = __dp2a_lo((int)x[0], (int)x[1], (int)x[2]); y[3] = __dp2a_hi(x[0], x[1], x[2]);
      asm volatile("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(y[4]) : "r"(x[0]), "r"(x[1]), "r"(x[2]));""", words(3), 5)
    expected = []
    for a, b, c in unsigned(words(3)):
        ua, ub = a.to_bytes(4, "little"), b.to_bytes(4, "little")
        sa, sb = ([v - 256 * (v > 127) for v in x] for x in (ua, ub))
        halves = [(a & 0xFFFF), a >> 16]
        low = [h - 65536 * (h > 32767) for h in halves]
        expected.append([c + sum(p * q for p, q in zip(sa, sb, strict=True)), c + sum(p * q for p, q in zip(ua, ub, strict=True)),
                         c + sum(p * q for p, q in zip(low, sb[:2], strict=True)), c + sum(p * q for p, q in zip(halves, ub[2:], strict=True)),
                         c + sum(p * q for p, q in zip(ua, sb, strict=True))])
    assert torch.equal(got, signed32(expected))


def test_packed_and_saturated_integers() -> None:
    x = torch.randint(-400, 400, (128, 3), generator=torch.Generator().manual_seed(3)).int()
    got = each("""asm volatile("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(y[0]) : "r"(x[0]), "r"(x[1]), "r"(x[2]));
      asm volatile("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(y[1]) : "r"(x[0]), "r"(x[1]));
      asm volatile("cvt.pack.sat.s16.s32 %0, %1, %2;" : "=r"(y[2]) : "r"(x[0] * 1000), "r"(x[1] * 1000));""", x, 3)
    expected = []
    for a, b, c in x.tolist():
        def clamp(v: int, low: int, high: int) -> int:
            return min(max(v, low), high) & (high - low)
        expected.append([clamp(b, 0, 255) | clamp(a, 0, 255) << 8 | (c & 0xFFFF) << 16, clamp(b, -128, 127) | clamp(a, -128, 127) << 8,
                         clamp(b * 1000, -32768, 32767) | clamp(a * 1000, -32768, 32767) << 16])
    assert torch.equal(got, signed32(expected))


def test_differences_and_clamped_extremes() -> None:
    got = each("""const int a = x[0], b = x[1], c = x[2]; y[0] = __sad(a, b, c); y[1] = __usad(x[0], x[1], x[2]); y[2] = __vabsdiffu4(x[0], x[1]);
      y[3] = __vsadu4(x[0], x[1]); y[4] = __vimax_s32_relu(a, b); y[5] = __vimin_s16x2_relu(x[0], x[1]);""", words(3), 6)
    expected = []
    for a, b, c in unsigned(words(3)):
        sa, sb = (v - (1 << 32) * (v >> 31) for v in (a, b))
        apart = [abs(p - q) for p, q in zip(a.to_bytes(4, "little"), b.to_bytes(4, "little"), strict=True)]
        halves = [[(v >> s & 0xFFFF) - (v >> s & 0x8000) * 2 for s in (0, 16)] for v in (a, b)]
        low, high = (max(0, min(p, q)) for p, q in zip(*halves, strict=True))
        expected.append([abs(sa - sb) + c, abs(a - b) + c, int.from_bytes(bytes(apart), "little"), sum(apart), max(sa, sb, 0), low | high << 16])
    assert torch.equal(got, signed32(expected))


def test_square_roots_rounded_toward_a_side() -> None:
    x = torch.cat([torch.rand(1000, generator=torch.Generator().manual_seed(3)) * 100, torch.arange(24).float() ** 2]).view(-1, 1)[:1024]
    got = each("""y[0] = __float_as_uint(__fsqrt_rz(__uint_as_float(x[0]))); y[1] = __float_as_uint(__fsqrt_ru(__uint_as_float(x[0])));""",
               x.clone().view(torch.int32), 2).view(torch.float32).double()
    below, above, exact = got[:, 0] ** 2, got[:, 1] ** 2, x[:, 0].double()
    assert (below <= exact).all() and (above >= exact).all()
    assert (torch.nextafter(got[:, 0].float(), torch.tensor(1e9)).double() ** 2 > exact).all()
    assert (torch.nextafter(got[:, 1].float(), torch.tensor(-1.0)).double() ** 2 < exact).logical_or(exact == 0).all()


def test_atomics_of_vectors() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out) {
      const int i = blockIdx.x * 64 + threadIdx.x; float4 v = ((const float4*)input)[i];
      atomicAdd((float4*)out + i % 3, v); float2 w = atomicAdd((float2*)(out + @), make_float2(1, 2)); if (w.x < 0) out[0] = 7; }"""
    x = torch.randint(-9, 9, (128, 4)).float()
    out = torch.zeros(16)
    run(source.replace("@", "12"), {"input": x, "out": out}, launch("k", 2, 64, "input", "out"), aliases={"out": "out"})
    sums = torch.stack([x[k::3].sum(0) for k in range(3)])
    assert torch.equal(out, torch.cat([sums.view(-1), torch.tensor([128.0, 256.0, 0, 0])]))
    wrong = fault(source.replace("@", "13"), {"input": x, "out": out}, launch("k", 2, 64, "input", "out"), aliases={"out": "out"})
    assert wrong.kind == "misaligned" and wrong.line == 3


# 8-bit floats ----------------------------------------------------------------------------------------------------

FLOATS = torch.cat([torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 448.0, 449.0, 464.0, 480.0, 57344.0, 61440.0, 1e9]),
                    torch.randn(2000, generator=torch.Generator().manual_seed(1)) * 2.0 ** torch.randint(-20, 18, (2000,)),
                    torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float(),
                    torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).float()])
FLOATS = torch.cat([FLOATS, torch.nextafter(FLOATS, torch.tensor(1e9)), (FLOATS[:-1] + FLOATS[1:]) / 2])
FLOATS = FLOATS[:len(FLOATS) // 128 * 128]


def saturated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The patterns that `.satfinite` conversions give, NaN as 0x7F."""
    most = torch.finfo(dtype).max
    bits = x.clamp(-most, most).to(dtype).view(torch.uint8)
    return torch.where(x.isnan(), torch.tensor(0x7F, dtype=torch.uint8), bits)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_fp8_conversions(name: str) -> None:
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[name]
    kind = f"__NV_{name.upper()}"
    x = FLOATS.view(-1, 2)
    got = each(f"""float2 v = make_float2(__uint_as_float(x[0]), __uint_as_float(x[1]));
      __nv_fp8x2_storage_t p = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, {kind});
      __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(p, {kind});
      y[0] = p; y[1] = h.x | (unsigned)h.y << 16; y[2] = __nv_cvt_halfraw2_to_fp8x2(h, __NV_SATFINITE, {kind});
      y[3] = __nv_{"fp8_e4m3" if name == "e4m3" else "fp8_e5m2"}(v.x).__x;""", x.clone().view(torch.int32), 4)
    bits = saturated(x, dtype)
    assert torch.equal(got[:, 0].contiguous().view(-1, 1).view(torch.uint8)[:, :2], bits)
    wide = bits.view(dtype).half()
    assert torch.equal(torch.nan_to_num(got[:, 1].contiguous().view(torch.half).view(-1, 2), 7.0), torch.nan_to_num(wide, 7.0))
    again = torch.where(wide.isnan(), torch.tensor(0x7F, dtype=torch.uint8), bits)
    assert torch.equal(got[:, 2].contiguous().view(-1, 1).view(torch.uint8)[:, :2], again)
    assert torch.equal(got[:, 3].int(), bits[:, 0].int())


def test_rounding_to_tf32() -> None:
    x = FLOATS[torch.isfinite(FLOATS)][:2048].view(-1, 1)
    got = each('asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[0]) : "f"(__uint_as_float(x[0])));', x.clone().view(torch.int32), 1)
    scale = 2.0 ** (torch.floor(torch.log2(x.abs().double().clamp(min=2.0**-126))) - 10)
    nearest = torch.sign(x).double() * torch.floor(x.abs().double() / scale + 0.5) * scale
    assert torch.equal(got.view(torch.float32).double(), nearest)


# Collectives -----------------------------------------------------------------------------------------------------


def test_reductions_and_matches_of_a_warp() -> None:
    got = each("""const unsigned all = ~0u; y[0] = __reduce_add_sync(all, x[0]); y[1] = __reduce_min_sync(all, (int)x[0]);
      y[2] = __reduce_max_sync(all, x[0]); y[3] = __reduce_and_sync(all, x[0] | 0xff); y[4] = __reduce_or_sync(all, x[0] & 0xf0f0);
      y[5] = __reduce_xor_sync(all, x[0]); y[6] = __match_any_sync(all, x[1] & 7); int same; y[7] = __match_all_sync(all, x[0] & 1 | 1, &same);
      y[7] ^= same; if (threadIdx.x % 2) y[0] ^= __reduce_add_sync(0xaaaaaaaa, x[0]);
      y[8] = __match_any_sync(all, (unsigned long long)(x[1] & 3) << 40);""", words(2), 9)
    expected = []
    rows = unsigned(words(2))
    for start in range(0, len(rows), 32):
        first = [r[0] for r in rows[start:start + 32]]
        sign = [v - (1 << 32) * (v >> 31) for v in first]
        conjunction, disjunction, parity = 0xFFFFFFFF, 0, 0
        for v in first:
            conjunction, disjunction, parity = conjunction & (v | 0xFF), disjunction | v & 0xF0F0, parity ^ v
        for i, row in enumerate(rows[start:start + 32]):
            alike = [sum(1 << k for k in range(32) if rows[start + k][1] & m == row[1] & m) for m in (7, 3)]
            odd = sum(first[1::2]) & 0xFFFFFFFF if i % 2 else 0
            expected.append([sum(first) & 0xFFFFFFFF ^ odd, min(sign), max(first), conjunction, disjunction, parity, alike[0],
                             0xFFFFFFFF ^ 1, alike[1]])
    assert torch.equal(got, signed32(expected))


def test_named_barriers_between_producers_and_consumers() -> None:
    """Two warps write, announce themselves (`bar.arrive`) and go on; two others wait for them (`bar.sync`), each pair its own barrier."""
    source = """extern "C" __global__ void k(const float* input, float* out) {
      __shared__ float s[2][32]; const int t = threadIdx.x, warp = t / 32, lane = t % 32;
      for (int step = 0; step < 3; ++step) {
        if (warp < 2) {
          s[warp][lane] = input[blockIdx.x * 64 + t] + step;
          asm volatile("barrier.arrive %0, 64;" ::"r"(1 + warp) : "memory");
          asm volatile("barrier.sync %0, 64;" ::"r"(3 + warp) : "memory");
        } else {
          asm volatile("barrier.sync %0, 64;" ::"r"(warp - 1) : "memory");
          out[(blockIdx.x * 3 + step) * 64 + t - 64] = s[warp - 2][31 - lane];
          asm volatile("barrier.arrive %0, 64;" ::"r"(warp + 1) : "memory");
        } } }"""
    x = torch.randint(-9, 9, (4, 2, 32)).float()
    out = torch.zeros(4, 3, 2, 32)
    run(source, {"input": x, "out": out}, launch("k", 4, 128, "input", "out"))
    assert torch.equal(out, x.flip(-1)[:, None] + torch.arange(3).float()[None, :, None, None])


def test_what_is_not_known_is_said_with_its_line() -> None:
    source = """extern "C" __global__ void k(float* out) {
      unsigned r;
      asm volatile("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0, %0, %0, %0}, {%0, %0}, {%0}, {%0, %0, %0, %0};" : "=r"(r));  // here
      out[threadIdx.x] = r; }"""
    found = fault(source, {"out": torch.zeros(32)}, launch("k", 1, 32, "out"))
    assert found.kind == "not_interpretable" and found.line == line_of(source, "// here")
    assert "mma.sync.aligned.m16n8k128" in found.message and "k.cu:3" in found.message


def test_a_clock_is_said_by_its_name_and_line() -> None:
    source = """extern "C" __global__ void k(long long* out) {
      if (threadIdx.x == 40)
        out[0] = clock64();  // here
      out[threadIdx.x] = 1; }"""
    found = fault(source, {"out": torch.zeros(64, dtype=torch.int64)}, launch("k", 1, 64, "out"))
    assert found.message == "not interpretable: special register %clock64 at k.cu:3" and found.thread == 40
    run(source, {"out": torch.zeros(32, dtype=torch.int64)}, launch("k", 1, 32, "out"))        # nobody gets there
