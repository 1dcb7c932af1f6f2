"""Tensor-core instructions against torch: `mma.sync` of every type, `ldmatrix`, `stmatrix`, `movmatrix`, `wmma`, a whole GEMM."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hostkit import fault, launch, line_of, needs_nvrtc, run

pytestmark = needs_nvrtc


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Mma:
    """One form of `mma.sync`; registers and elements as the PTX ISA draws its fragments."""

    shape: str
    types: str
    element: torch.dtype
    result: torch.dtype
    a: int
    b: int
    c: int
    """Registers."""
    per: int
    """Elements in a register of A."""
    rows: int = 16
    other: torch.dtype | None = None
    """Element type of B, where it is not A's."""

    @property
    def k(self) -> int:
        return int(self.shape.split("k")[1])


FORMS = [
    Mma("m16n8k16", "f32.f16.f16.f32", torch.float16, torch.float32, 4, 2, 4, 2),
    Mma("m16n8k8", "f32.f16.f16.f32", torch.float16, torch.float32, 2, 1, 4, 2),
    Mma("m16n8k16", "f16.f16.f16.f16", torch.float16, torch.float16, 4, 2, 2, 2),
    Mma("m16n8k16", "f32.bf16.bf16.f32", torch.bfloat16, torch.float32, 4, 2, 4, 2),
    Mma("m16n8k8", "f32.bf16.bf16.f32", torch.bfloat16, torch.float32, 2, 1, 4, 2),
    Mma("m16n8k8", "f32.tf32.tf32.f32", torch.float32, torch.float32, 4, 2, 4, 1),
    Mma("m16n8k4", "f32.tf32.tf32.f32", torch.float32, torch.float32, 2, 1, 4, 1),
    Mma("m16n8k32", "s32.s8.s8.s32", torch.int8, torch.int32, 4, 2, 4, 4),
    Mma("m16n8k16", "s32.s8.u8.s32", torch.int8, torch.int32, 2, 1, 4, 4, other=torch.uint8),
    Mma("m16n8k32", "f32.e4m3.e5m2.f32", torch.float8_e4m3fn, torch.float32, 4, 2, 4, 4, other=torch.float8_e5m2),
    Mma("m8n8k16", "s32.s8.s8.s32", torch.int8, torch.int32, 1, 1, 2, 4, rows=8),
    Mma("m8n8k4", "f64.f64.f64.f64", torch.float64, torch.float64, 1, 1, 2, 1, rows=8),
]


def mma_source(form: Mma) -> str:
    """Loads A by rows and B by columns as fragments, multiplies, stores C by rows: index formulas of the PTX ISA's figures."""
    wide = form.element == torch.float64
    word, letter = ("double", "d") if wide else ("unsigned", "r")
    accumulator = {"f32": ("float", "f"), "s32": ("int", "r"), "f16": ("unsigned", "r"), "f64": ("double", "d")}[form.types.split(".")[0]]
    tall = form.rows // 8

    def operands(count: int, first: int, reg: str) -> str:
        return "{" + ",".join(f"%{first + k}" for k in range(count)) + "}"

    d, a, b = form.c, form.a, form.b
    text = f"mma.sync.aligned.{form.shape}.row.col.{form.types} {operands(d, 0, 'd')}, {operands(a, d, 'a')}, {operands(b, d + a, 'b')}, " \
           f"{operands(d, 0, 'd')};"
    outs = ", ".join(f'"+{accumulator[1]}"(c[{k}])' for k in range(d))
    ins = ", ".join([f'"{letter}"(a[{k}])' for k in range(a)] + [f'"{letter}"(b[{k}])' for k in range(b)])
    per_word = form.per
    half = form.types.startswith("f16")
    return f"""extern "C" __global__ void k(const {word}* A, const {word}* B, {accumulator[0]}* C) {{
      const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, w = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
      constexpr int WORDS = {form.k} / {per_word};
      const {word}* pa = A + w * {form.rows} * WORDS; const {word}* pb = B + w * 8 * WORDS;
      {accumulator[0]}* pc = C + w * {form.rows} * 8 / {2 if half else 1};
      {word} a[{a}], b[{b}]; {accumulator[0]} c[{d}];
      for (int r = 0; r < {a}; ++r) a[r] = pa[(g + 8 * (r % {tall})) * WORDS + t + 4 * (r / {tall})];
      for (int r = 0; r < {b}; ++r) b[r] = pb[g * WORDS + t + 4 * r];
      for (int r = 0; r < {d}; ++r) c[r] = {"pc[(g + 8 * r) * 4 + t]" if half else "pc[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2]"};
      asm volatile("{text}" : {outs} : {ins});
      for (int r = 0; r < {d}; ++r) {"pc[(g + 8 * r) * 4 + t]" if half else "pc[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2]"} = c[r];
    }}"""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.shape}.{form.types}")
def test_mma(form: Mma) -> None:
    def values(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
        if dtype in (torch.int8, torch.uint8):
            low, high = (-128, 128) if dtype == torch.int8 else (0, 256)
            return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        return draw(*shape, seed=seed).to(dtype)

    warps = 12
    a = values(warps, form.rows, form.k, seed=1, dtype=form.element)
    b = values(warps, 8, form.k, seed=2, dtype=form.other or form.element)
    c = values(warps, form.rows, 8, seed=3, dtype=form.result if form.result != torch.int32 else torch.int8).to(form.result)
    exact = torch.float64 if "tf32" not in form.types else None
    wide_a, wide_b = (x.double() if exact else _tf32(x).double() for x in (a, b))
    expected = (wide_a @ wide_b.transpose(1, 2) + c.double()).to(form.result)
    out = c.clone()
    run(mma_source(form), {"input": a, "other": b, "out": out}, launch("k", 3, 128, "input", "other", "out"), aliases={"out": "out"})
    assert torch.equal(out, expected)


def _tf32(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_integer_sums_saturate_where_asked() -> None:
    source = mma_source(FORMS[7]).replace(".s32.s8.s8.s32 {", ".satfinite.s32.s8.s8.s32 {").replace("row.col.satfinite", "row.col.satfinite")
    a, b = torch.full((4, 16, 32), 127, dtype=torch.int8), torch.full((4, 8, 32), 127, dtype=torch.int8)
    out = torch.full((4, 16, 8), 2**31 - 5, dtype=torch.int32)
    run(source, {"input": a, "other": b, "out": out}, launch("k", 1, 128, "input", "other", "out"), aliases={"out": "out"})
    assert (out == 2**31 - 1).all()


LDMATRIX = """extern "C" __global__ void k(const uint4* input, unsigned* out) {
  __shared__ alignas(16) unsigned short s[32][@PITCH@];
  const int t = threadIdx.x % 32, w = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (threadIdx.x < 32) *(uint4*)s[t] = input[blockIdx.x * 32 + t];
  __syncthreads();
  unsigned r[4] = {0, 0, 0, 0}; const unsigned a = (unsigned)__cvta_generic_to_shared(s[t]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x@N@@TRANS@.shared.b16 {@REGS@}, [%4];" : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]) : "r"(a));  // here
  for (int i = 0; i < 4; ++i) out[(w * 4 + i) * 32 + t] = r[i]; }"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix(count: int, trans: bool) -> None:
    source = LDMATRIX.replace("@N@", str(count)).replace("@TRANS@", ".trans" if trans else "").replace("@PITCH@", "24") \
        .replace("@REGS@", ", ".join(f"%{k}" for k in range(count)))
    x = torch.arange(3 * 32 * 8).short().view(3, 4, 8, 8)                     # block, matrix, row, column
    out = torch.zeros(3, 2, 4, 32, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 3, 64, "input", "out"))
    seen = x.transpose(-1, -2) if trans else x
    expected = seen.reshape(3, 4, 8, 4, 2).reshape(3, 1, 4, 32, 2).expand(3, 2, 4, 32, 2).contiguous().view(torch.int32)[..., 0].clone()
    expected[:, :, count:] = 0
    assert torch.equal(out, expected)


def test_ldmatrix_rows_must_be_aligned() -> None:
    source = LDMATRIX.replace("@N@", "4").replace("@TRANS@", "").replace("@REGS@", "%0, %1, %2, %3")
    tensors = {"input": torch.zeros(32 * 8, dtype=torch.int16), "out": torch.zeros(256, dtype=torch.int32)}
    wrong = source.replace("@PITCH@", "12").replace("*(uint4*)s[t] = input[blockIdx.x * 32 + t]", "for (int i = 0; i < 8; ++i) s[t][i] = 0")
    found = fault(wrong, tensors, launch("k", 1, 32, "input", "out"))
    assert found.kind == "misaligned" and found.line == line_of(wrong, "// here") and found.thread == 1


@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix_and_movmatrix(trans: bool) -> None:
    source = """extern "C" __global__ void k(const unsigned* input, uint4* out) {
      __shared__ alignas(16) uint4 s[32];
      const int t = threadIdx.x; unsigned r[4];
      for (int i = 0; i < 4; ++i) r[i] = input[(blockIdx.x * 4 + i) * 32 + t];
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r[3]));
      asm volatile("stmatrix.sync.aligned.m8n8.x4@.shared.b16 [%0], {%1, %2, %3, %4};"
                   ::"r"((unsigned)__cvta_generic_to_shared(s + t)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
      __syncwarp();
      out[blockIdx.x * 32 + t] = s[t]; }""".replace("@", ".trans" if trans else "")
    x = torch.arange(2 * 4 * 64).short().view(2, 4, 8, 8)
    out = torch.zeros(2, 4, 8, 8, dtype=torch.int16)
    run(source, {"input": x.clone().view(torch.int32), "out": out}, launch("k", 2, 32, "input", "out"))
    moved = torch.cat([x[:, :3], x[:, 3:].transpose(-1, -2)], 1)
    assert torch.equal(out, moved.transpose(-1, -2) if trans else moved)


def test_a_gemm_of_ldmatrix_and_mma_with_two_stages_of_async_copies() -> None:
    """64 x 64 tiles of 4 warps, K in steps of 32, as a person writes it: C = A B^T in bfloat16."""
    source = """#include <cuda_bf16.h>
    #include <forge.cuh>
    constexpr int T = 64, K = 32, P = K + 8;
    extern "C" __global__ void k(const __nv_bfloat16* A, const __nv_bfloat16* B, float* C, int n, int depth) {
      __shared__ alignas(16) __nv_bfloat16 sa[2][T][P], sb[2][T][P];
      const int t = threadIdx.x, lane = t % 32, warp = t / 32, row = warp / 2 * 32, col = warp % 2 * 32;
      const __nv_bfloat16 *a0 = A + blockIdx.y * T * depth, *b0 = B + blockIdx.x * T * depth;
      auto fetch = [&](int stage, int k0) {
        for (int i = t; i < T * K / 8; i += 128) {
          const int r = i / 4, c = i % 4 * 8;
          forge::copy_async<16>(&sa[stage][r][c], a0 + r * depth + k0 + c);
          forge::copy_async<16>(&sb[stage][r][c], b0 + r * depth + k0 + c); }
        forge::copy_async_commit(); };
      float acc[2][4][4] = {};
      fetch(0, 0);
      for (int k0 = 0, stage = 0; k0 < depth; k0 += K, stage ^= 1) {
        if (k0 + K < depth) { fetch(stage ^ 1, k0 + K); forge::copy_async_wait<1>(); } else forge::copy_async_wait<0>();
        __syncthreads();
        for (int kk = 0; kk < K; kk += 16) {
          unsigned a[2][4], b[2][4];
          for (int m = 0; m < 2; ++m)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
              : "=r"(a[m][0]), "=r"(a[m][1]), "=r"(a[m][2]), "=r"(a[m][3])
              : "r"(forge::shared_address(&sa[stage][row + m * 16 + lane % 16][kk + lane / 16 * 8])));
          for (int q = 0; q < 2; ++q)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
              : "=r"(b[q][0]), "=r"(b[q][1]), "=r"(b[q][2]), "=r"(b[q][3])
              : "r"(forge::shared_address(&sb[stage][col + q * 16 + lane % 8 + lane / 16 * 8][kk + lane / 8 % 2 * 8])));
          for (int m = 0; m < 2; ++m) for (int j = 0; j < 4; ++j)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
              : "+f"(acc[m][j][0]), "+f"(acc[m][j][1]), "+f"(acc[m][j][2]), "+f"(acc[m][j][3])
              : "r"(a[m][0]), "r"(a[m][1]), "r"(a[m][2]), "r"(a[m][3]), "r"(b[j / 2][j % 2 * 2]), "r"(b[j / 2][j % 2 * 2 + 1])); }
        __syncthreads(); }
      for (int m = 0; m < 2; ++m) for (int j = 0; j < 4; ++j) for (int e = 0; e < 4; ++e)
        C[(blockIdx.y * T + row + m * 16 + lane / 4 + e / 2 * 8) * n + blockIdx.x * T + col + j * 8 + lane % 4 * 2 + e % 2] = acc[m][j][e];
    }"""
    a, b = draw(128, 96, seed=4).bfloat16(), draw(192, 96, seed=5).bfloat16()
    out = torch.zeros(128, 192)
    run(source, {"input": a, "other": b, "out": out}, launch("k", (3, 2), 128, "input", "other", "out", 192, 96))
    assert torch.allclose(out, a.float() @ b.float().t(), rtol=1e-5, atol=1e-5)


WMMA = """#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
extern "C" __global__ void k(const @A@* a, const @A@* b, @C@* c, int n) {
  wmma::fragment<wmma::matrix_a, @SHAPE@, @FRAGMENT@, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, @SHAPE@, @FRAGMENT@, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, @SHAPE@, @C@> fc;
  const int tiles = n / 16, w = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, row = w / tiles * 16, col = w % tiles * 16;
  wmma::load_matrix_sync(fc, c + row * n + col, n, wmma::mem_row_major);
  for (int k = 0; k < n; k += @K@) {
    wmma::load_matrix_sync(fa, a + row * n + k, n);
    wmma::load_matrix_sync(fb, b + col * n + k, n);
    wmma::mma_sync(fc, fa, fb, fc); }
  for (int i = 0; i < fc.num_elements; ++i) fc.x[i] *= 2;
  wmma::store_matrix_sync(c + row * n + col, fc, n, wmma::mem_row_major); }"""


@pytest.mark.parametrize(("kind", "fragment", "dtype", "result", "depth"), [
    ("half", "half", torch.float16, torch.float32, 16), ("__nv_bfloat16", "__nv_bfloat16", torch.bfloat16, torch.float32, 16),
    ("float", "wmma::precision::tf32", torch.float32, torch.float32, 8), ("signed char", "signed char", torch.int8, torch.int32, 16)])
def test_wmma(kind: str, fragment: str, dtype: torch.dtype, result: torch.dtype, depth: int) -> None:
    source = WMMA
    for name, text in (("A", kind), ("FRAGMENT", fragment), ("C", "float" if result == torch.float32 else "int"),
                       ("SHAPE", f"16, 16, {depth}"), ("K", str(depth))):
        source = source.replace(f"@{name}@", text)
    n = 64
    a, b = ((draw(n, n, seed=s) * 8).round().to(dtype) for s in (1, 2))
    out = (draw(n, n, seed=3) * 8).round().to(result)
    expected = ((a.double() @ b.double().t() + out.double()) * 2).to(result)
    run(source, {"input": a, "other": b, "out": out}, launch("k", 4, 128, "input", "other", "out", n), aliases={"out": "out"})
    assert torch.equal(out, expected)


def test_a_torn_warp_is_said() -> None:
    source = mma_source(FORMS[0]).replace("asm volatile", "if (threadIdx.x % 32 < 16) asm volatile")
    tensors = {"input": torch.zeros(16 * 16).half(), "other": torch.zeros(8 * 16).half(), "out": torch.zeros(128)}
    found = fault(source, tensors, launch("k", 1, 32, "input", "other", "out"), aliases={"out": "out"})
    assert found.kind == "divergent_barrier" and "mma.sync" in found.message
    assert found.line == line_of(source, "asm volatile")
