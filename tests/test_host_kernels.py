"""Real kernels, compiled by NVRTC and run by the host target, against torch and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hostkit import fault, launch, line_of, needs_nvrtc, run

from forge_tui.cuda.program import Argument, Workspace

pytestmark = needs_nvrtc


def fresh(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An output that shows when it was not written."""
    return torch.full(shape, float("nan"), dtype=dtype) if dtype.is_floating_point else torch.full(shape, -77, dtype=dtype)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("grid", "block"), [(4, 256), (21, 48), (1000, 1), (31, 33)])
def test_elementwise_with_guard_and_odd_blocks(grid: int, block: int) -> None:
    source = """extern "C" __global__ void k(const float* input, float* out, int n, float a) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      out[i] = input[i] * a + 1.0f; }"""
    x, out = torch.randn(1000), fresh(1000)
    run(source, {"input": x, "out": out}, launch("k", grid, block, "input", "out", 1000, 2.5))
    assert torch.equal(out, (x.double() * 2.5 + 1).float())


def test_grid_stride_loop_with_vector_accesses() -> None:
    source = """extern "C" __global__ void k(const float4* __restrict__ input, float4* out, int n) {
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float4 v = __ldcs(input + i); v.x = v.x / (1.f + expf(-v.x)); v.y = v.y / (1.f + expf(-v.y));
        v.z = v.z / (1.f + expf(-v.z)); v.w = v.w / (1.f + expf(-v.w)); __stcs(out + i, v); } }"""
    x, out = torch.randn(40_000), fresh(40_000)
    report = run(source, {"input": x, "out": out}, launch("k", 9, 128, "input", "out", 10_000))
    close(out, torch.nn.functional.silu(x))
    (counts,) = report.counts
    assert counts.global_bytes == pytest.approx(2 * x.nbytes, rel=0.1)


SOFTMAX = """
__device__ float block_reduce(float v, float* s, bool is_max) {
  for (int o = 16; o; o >>= 1) { float w = __shfl_xor_sync(~0u, v, o); v = is_max ? fmaxf(v, w) : v + w; }
  if ((threadIdx.x & 31) == 0) s[threadIdx.x >> 5] = v;
  __syncthreads();
  v = s[0]; for (int w = 1; w < blockDim.x / 32; w++) v = is_max ? fmaxf(v, s[w]) : v + s[w];
  __syncthreads();
  return v; }
extern "C" __global__ void k(const float* __restrict__ input, float* __restrict__ out, int cols) {
  __shared__ float s[32];
  const float* x = input + (long long)blockIdx.x * cols; float* y = out + (long long)blockIdx.x * cols;
  float m = -INFINITY, t = 0;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) m = fmaxf(m, x[c]);
  m = block_reduce(m, s, true);
  for (int c = threadIdx.x; c < cols; c += blockDim.x) t += __expf(x[c] - m);
  t = block_reduce(t, s, false);
  for (int c = threadIdx.x; c < cols; c += blockDim.x) y[c] = __expf(x[c] - m) / t; }"""


@pytest.mark.parametrize("cols", [1, 31, 1024, 1777])
def test_softmax(cols: int) -> None:
    x, out = torch.randn(70, cols) * 4, fresh(70, cols)
    run(SOFTMAX, {"input": x, "out": out}, launch("k", 70, 128, "input", "out", cols))
    close(out, x.softmax(1))


def test_layer_norm_in_bfloat16_with_16_byte_loads() -> None:
    source = """#include <cuda_bf16.h>
    extern "C" __global__ void k(const __nv_bfloat16* input, const __nv_bfloat16* weight, __nv_bfloat16* out, int cols, float eps) {
      extern __shared__ float red[];
      const uint4* x = (const uint4*)(input + blockIdx.x * cols); uint4* y = (uint4*)(out + blockIdx.x * cols);
      float sum = 0, square = 0;
      for (int c = threadIdx.x; c < cols / 8; c += blockDim.x) {
        uint4 v = x[c]; const __nv_bfloat162* p = (const __nv_bfloat162*)&v;
        for (int j = 0; j < 4; j++) { float2 f = __bfloat1622float2(p[j]); sum += f.x + f.y; square += f.x * f.x + f.y * f.y; } }
      for (int o = 16; o; o >>= 1) { sum += __shfl_down_sync(~0u, sum, o); square += __shfl_down_sync(~0u, square, o); }
      if (threadIdx.x % 32 == 0) { red[threadIdx.x / 32] = sum; red[32 + threadIdx.x / 32] = square; }
      __syncthreads();
      sum = 0; square = 0;
      for (int w = 0; w < blockDim.x / 32; w++) { sum += red[w]; square += red[32 + w]; }
      float mean = sum / cols, rstd = rsqrtf(square / cols - mean * mean + eps);
      for (int c = threadIdx.x; c < cols / 8; c += blockDim.x) {
        uint4 v = x[c]; __nv_bfloat162* p = (__nv_bfloat162*)&v;
        for (int j = 0; j < 4; j++) { float2 f = __bfloat1622float2(p[j]);
          f.x = (f.x - mean) * rstd * __bfloat162float(weight[c * 8 + 2 * j]);
          f.y = (f.y - mean) * rstd * __bfloat162float(weight[c * 8 + 2 * j + 1]);
          p[j] = __float22bfloat162_rn(f); }
        y[c] = v; } }"""
    x, w, out = torch.randn(33, 768).bfloat16(), torch.randn(768).bfloat16(), fresh(33, 768, dtype=torch.bfloat16)
    run(source, {"input": x, "weight": w, "out": out}, launch("k", 33, 96, "input", "weight", "out", 768, 1e-5, shared=256))
    want = torch.nn.functional.layer_norm(x.double(), (768,), w.double())
    close(out, want, 8e-3)


def test_gelu_with_erff_and_tanhf() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out, float* out1, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; float x = input[i];
      out[i] = 0.5f * x * (1.f + erff(x * 0.70710678f));
      out1[i] = 0.5f * x * (1.f + tanhf(0.79788456f * (x + 0.044715f * x * x * x))); }"""
    x = torch.linspace(-9, 9, 5000)
    out, out1 = fresh(5000), fresh(5000)
    run(source, {"input": x, "out": out, "out1": out1}, launch("k", 20, 256, "input", "out", "out1", 5000), outputs=("out", "out1"))
    close(out, torch.nn.functional.gelu(x.double()), 1e-6)
    close(out1, torch.nn.functional.gelu(x.double(), approximate="tanh"), 1e-6)


@pytest.mark.parametrize("function", ["expf", "logf", "log1pf", "sinf", "cosf", "sqrtf", "rsqrtf", "expm1f", "cbrtf", "exp2f", "log2f"])
def test_math_library(function: str) -> None:
    source = f"""extern "C" __global__ void k(const float* input, float* out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = {function}(input[i]); }}"""
    x = torch.cat([torch.linspace(0.001, 30, 3000), torch.tensor([0.0, 1e-30, 1e30, float("inf"), float("nan"), 1e-41, 60000.0])])
    out = fresh(len(x))
    run(source, {"input": x, "out": out}, launch("k", 12, 256, "input", "out", len(x)))
    want = {"cbrtf": np.cbrt, "rsqrtf": lambda v: 1 / np.sqrt(v)}.get(function, getattr(np, function[:-1], None))
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(want(x.double().numpy())).float()      # type: ignore[misc]
    torch.testing.assert_close(out, expected, rtol=4e-6, atol=1e-6 if function in ("sinf", "cosf") else 1e-38, equal_nan=True)


def test_double_precision_and_its_slow_paths() -> None:
    source = """extern "C" __global__ void k(const double* input, double* out, int n) {
      int i = threadIdx.x; if (i < n) out[i] = exp(input[i]) / (1.0 + log(2.0 + input[i])) + sqrt(input[i]) + 1.0 / (input[i] + 3.0); }"""
    x, out = torch.linspace(0, 9, 100, dtype=torch.float64), fresh(100, dtype=torch.float64)
    run(source, {"input": x, "out": out}, launch("k", 1, 128, "input", "out", 100))
    torch.testing.assert_close(out, x.exp() / (1 + (2 + x).log()) + x.sqrt() + 1 / (x + 3), rtol=1e-14, atol=0)


def test_divergent_loops_with_break_continue_and_return() -> None:
    source = """extern "C" __global__ void k(const int* input, int* out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; int v = input[i], steps = 0;
      while (v != 1) {
        if (steps > 100) { out[i] = -1; return; }
        steps++;
        if (v & 1) { v = 3 * v + 1; if (steps % 7 == 3) continue; v += 0; } else v >>= 1;
        if (v == 5) break; }
      for (int j = 0; j < (i & 7); j++) for (int l = j; l < 5; l++) { if (l == (i & 3)) break; steps += l; }
      out[i] = steps * 1000 + v % 1000; }"""

    def reference(i: int, v: int) -> int:
        steps = 0
        while v != 1:
            if steps > 100:
                return -1
            steps += 1
            if v & 1:
                v = 3 * v + 1
                if steps % 7 == 3:
                    continue
            else:
                v >>= 1
            if v == 5:
                break
        for j in range(i & 7):
            for m in range(j, 5):
                if m == (i & 3):
                    break
                steps += m
        return steps * 1000 + v % 1000

    x, out = torch.arange(1, 513, dtype=torch.int32), fresh(512, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 8, 64, "input", "out", 512))
    assert out.tolist() == [reference(i, i + 1) for i in range(512)]


def test_divergent_loop_around_a_warp_shuffle() -> None:
    """Whole warps leave a loop at different times; a uniform counter must not run ahead."""
    source = """extern "C" __global__ void k(const float* input, float* out, int n) {
      int warp = threadIdx.x / 32, lane = threadIdx.x % 32; float total = 0;
      for (int j = 0; j < 3 + warp; j++) {
        float v = input[(blockIdx.x * 8 + j) * 32 + lane];
        for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
        if (warp == 2 && j == 1) continue;
        total += v * (j + 1); }
      if (lane == 0) out[blockIdx.x * 4 + warp] = total; }"""
    x, out = torch.randint(-9, 9, (5 * 8 * 32,)).float(), fresh(20)
    run(source, {"input": x, "out": out}, launch("k", 5, 128, "input", "out", 0))
    sums = x.reshape(5, 8, 32).sum(2)
    want = torch.stack([torch.stack([sum(sums[b, j] * (j + 1) for j in range(3 + w) if not (w == 2 and j == 1)) for w in range(4)])
                        for b in range(5)])
    assert torch.equal(out.reshape(5, 4), want)


def test_switch_and_jump_table() -> None:
    source = """extern "C" __global__ void k(const int* input, int* out) {
      int i = blockIdx.x * blockDim.x + threadIdx.x, v = input[i], r = 0;
      switch (v) { case 0: r = v + 5; break; case 1: r = 17; case 2: r += 3; break; case 3: r = v * v * v; break;
        case 4: r = -v; break; case 5: r = v << 3; break; case 6: r = 1; break; case 7: r = ~v; break; default: r = 1000; }
      out[i] = r; }"""
    x, out = torch.arange(256, dtype=torch.int32) % 11, fresh(256, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 4, 64, "input", "out"))
    table = {0: 5, 1: 20, 2: 3, 3: 27, 4: -4, 5: 40, 6: 1, 7: ~7}
    assert out.tolist() == [table.get(v, 1000) for v in x.tolist()]


def test_matmul_with_shared_tiles_and_ragged_edges() -> None:
    source = """extern "C" __global__ void k(const float* input, const float* other, float* out, int m, int n, int kk) {
      __shared__ float a[16][16], b[16][17]; int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x; float s = 0;
      for (int t = 0; t < kk; t += 16) {
        a[threadIdx.y][threadIdx.x] = r < m && t + threadIdx.x < kk ? input[r * kk + t + threadIdx.x] : 0.f;
        b[threadIdx.y][threadIdx.x] = t + threadIdx.y < kk && c < n ? other[(t + threadIdx.y) * n + c] : 0.f;
        __syncthreads();
        for (int j = 0; j < 16; j++) s += a[threadIdx.y][j] * b[j][threadIdx.x];
        __syncthreads(); }
      if (r < m && c < n) out[r * n + c] = s; }"""
    a, b = torch.randn(50, 70), torch.randn(70, 41)
    out = fresh(50, 41)
    run(source, {"input": a, "other": b, "out": out}, launch("k", (3, 4), (16, 16), "input", "other", "out", 50, 41, 70))
    close(out, a @ b)


def test_histogram_with_shared_and_global_atomics() -> None:
    source = """extern "C" __global__ void k(const unsigned char* input, int* out, int n) {
      __shared__ int h[256]; for (int i = threadIdx.x; i < 256; i += blockDim.x) h[i] = 0;
      __syncthreads();
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[input[i]], 1);
      __syncthreads();
      for (int i = threadIdx.x; i < 256; i += blockDim.x) if (h[i]) atomicAdd(out + i, h[i]); }"""
    x, out = torch.randint(0, 256, (20_000,), dtype=torch.uint8), torch.zeros(256, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 6, 128, "input", "out", 20_000), aliases={"out": "out"})
    assert torch.equal(out.long(), torch.bincount(x.long(), minlength=256))


def test_atomics_that_return_what_was_there() -> None:
    source = """extern "C" __global__ void k(int* out, unsigned* out1, float* out2, unsigned long long* out3) {
      __shared__ int n; if (threadIdx.x == 0) n = 0; __syncthreads();
      int slot = atomicAdd(&n, 1); out[blockIdx.x * blockDim.x + slot] = threadIdx.x;
      atomicInc(out1, 9); atomicMax(out1 + 1, threadIdx.x * 3); atomicMin((int*)out1 + 2, -(int)threadIdx.x); atomicOr(out1 + 3, 1u << (threadIdx.x & 31));
      unsigned seen = *(volatile unsigned*)(out1 + 4), old;
      do { old = seen; seen = atomicCAS(out1 + 4, old, old + 2); } while (seen != old);
      atomicAdd(out2, 0.5f); atomicAdd(out3, 1ull << 33); atomicExch(out1 + 5, 7u); atomicXor(out1 + 6, 0xffu); }"""
    out, out1 = fresh(3 * 96, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    out2, out3 = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    tensors = {"out": out, "out1": out1, "out2": out2, "out3": out3}
    run(source, tensors, launch("k", 3, 96, *tensors), outputs=tuple(tensors), aliases={n: n for n in tensors})
    assert out.reshape(3, 96).sort(1).values.tolist() == [list(range(96))] * 3
    assert out1.tolist() == [288 % 10, 285, -95, -1, 576, 7, 0, 0]
    assert out2.item() == 144 and out3.item() == 288 << 33


def test_spin_lock_and_waiting_for_another_thread() -> None:
    source = """extern "C" __global__ void k(int* out, int* lock) {
      if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) { }
        int v = *(volatile int*)out; *(volatile int*)out = v + blockIdx.x + 1; __threadfence(); atomicExch(lock, 0); }
      __shared__ volatile int flag; if (threadIdx.x == 64) flag = 0; __syncthreads();
      if (threadIdx.x < 32) { while (flag == 0) { } } else if (threadIdx.x == 64) { flag = 1; }
      __syncthreads(); }"""
    out, lock = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    run(source, {"out": out, "lock": lock}, launch("k", 7, 96, "out", "lock", cooperative=True), outputs=("out", "lock"),
        aliases={"out": "out", "lock": "lock"})
    assert out.item() == 28


def test_inclusive_scan_of_a_block() -> None:
    source = """extern "C" __global__ void k(const int* input, int* out, int n) {
      __shared__ int s[256]; int t = threadIdx.x; s[t] = input[blockIdx.x * 256 + t]; __syncthreads();
      for (int o = 1; o < 256; o <<= 1) { int v = t >= o ? s[t - o] : 0; __syncthreads(); s[t] += v; __syncthreads(); }
      out[blockIdx.x * 256 + t] = s[t]; }"""
    x, out = torch.randint(-50, 50, (5, 256), dtype=torch.int32), fresh(5, 256, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 5, 256, "input", "out", 0))
    assert torch.equal(out.long(), x.long().cumsum(1))


def test_warp_scan_and_collectives() -> None:
    source = """extern "C" __global__ void k(const int* input, int* out) {
      int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, v = input[i], s = v;
      for (int o = 1; o < 32; o <<= 1) { int w = __shfl_up_sync(~0u, s, o); if (lane >= o) s += w; }
      unsigned even = __ballot_sync(~0u, v % 2 == 0), same = __match_any_sync(~0u, v & 3);
      int* o = out + i * 8;
      o[0] = s; o[1] = __popc(even); o[2] = __popc(same); o[3] = __any_sync(~0u, v == 3) * 2 + __all_sync(~0u, v > -100);
      o[4] = __reduce_add_sync(~0u, v); o[5] = __reduce_max_sync(~0u, v); o[6] = __shfl_sync(~0u, v, lane / 8, 8);
      o[7] = lane < 16 ? __popc(__ballot_sync(0xffffu, v > 0)) : __ffs(__activemask()); }"""
    x, out = torch.randint(-20, 20, (4, 3, 32), dtype=torch.int32), fresh(4, 3, 32, 8, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 4, 96, "input", "out"))
    x = x.long()
    same = ((x & 3)[..., None] == (x & 3)[..., None, :]).sum(-1)
    lane = torch.arange(32)
    want = [x.cumsum(-1), (x % 2 == 0).sum(-1, keepdim=True).expand_as(x), same,
            ((x == 3).any(-1, keepdim=True) * 2 + 1).expand_as(x), x.sum(-1, keepdim=True).expand_as(x),
            x.amax(-1, keepdim=True).expand_as(x), x[..., (lane // 8 * 8) + lane // 8],
            torch.where(lane < 16, (x[..., :16] > 0).sum(-1, keepdim=True), 17)]
    assert torch.equal(out.long(), torch.stack(want, -1))


def test_three_dimensional_grid_and_block() -> None:
    source = """extern "C" __global__ void k(int* out) {
      int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      out[b * blockDim.x * blockDim.y * blockDim.z + t] = blockIdx.z * 10000 + blockIdx.y * 1000 + threadIdx.z * 100 + threadIdx.y * 10 + threadIdx.x; }"""
    out = fresh(2, 3, 4, 3, 5, 7, dtype=torch.int32)
    run(source, {"out": out}, launch("k", (4, 3, 2), (7, 5, 3), "out"))
    z, y, _, c, b, a = torch.meshgrid(*(torch.arange(n) for n in out.shape), indexing="ij")
    assert torch.equal(out.long(), z * 10000 + y * 1000 + c * 100 + b * 10 + a)


@pytest.mark.parametrize(("dtype", "ctype", "header"), [(torch.float16, "__half2", "cuda_fp16.h"),
                                                        (torch.bfloat16, "__nv_bfloat162", "cuda_bf16.h")])
def test_packed_half_arithmetic(dtype: torch.dtype, ctype: str, header: str) -> None:
    source = f"""#include <{header}>
    extern "C" __global__ void k(const {ctype}* a, const {ctype}* b, {ctype}* out, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      {ctype} x = a[i], y = b[i];
      out[i] = __hadd2(x, y); out[n + i] = __hmul2(x, y); out[2 * n + i] = __hfma2(x, y, x); out[3 * n + i] = __hmax2(x, y);
      out[4 * n + i] = __hmin2(x, __hneg2(y)); out[5 * n + i] = __hsub2(__habs2(x), y); }}"""
    n = 1000
    a, b = torch.randn(2 * n).to(dtype), torch.randn(2 * n).to(dtype)
    out = fresh(6, 2 * n, dtype=dtype)
    run(source, {"a": a, "b": b, "out": out}, launch("k", 8, 128, "a", "b", "out", n))
    x, y = a.double(), b.double()
    want = torch.stack([x + y, x * y, x * y + x, torch.maximum(x, y), torch.minimum(x, -y), x.abs() - y])
    bits = want.to(torch.float32)
    assert torch.equal(out, bits.to(dtype)) or (out != bits.to(dtype)).sum() <= 2      # float64 -> float32 -> half rounds twice


def test_scalar_half_arithmetic_and_conversions() -> None:
    source = """#include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void k(const __half* input, __nv_bfloat16* out, int* out1, int n) {
      int i = threadIdx.x; if (i >= n) return; __half h = input[i];
      out[i] = __float2bfloat16(__half2float(__hadd(h, __float2half(0.5f)))); out1[i] = __half2int_rz(h) * 1000 + __half2int_rn(h); }"""
    x = (torch.randn(100) * 30).half()
    out, out1 = fresh(100, dtype=torch.bfloat16), fresh(100, dtype=torch.int32)
    run(source, {"input": x, "out": out, "out1": out1}, launch("k", 1, 128, "input", "out", "out1", 100), outputs=("out", "out1"))
    assert torch.equal(out, (x + 0.5).float().bfloat16())
    assert torch.equal(out1, (x.float().trunc() * 1000 + x.float().round()).int())


def test_local_array_with_dynamic_index() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out, const int* where, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; float v[16]; 
      for (int j = 0; j < 16; j++) v[j] = input[i * 16 + j];
      for (int j = 0; j < 20; j++) { int p = (where[i] + j * 5) & 15, q = (p * 3 + 1) & 15; float t = v[p]; v[p] = v[q] + 1; v[q] = t; }
      float s = 0; for (int j = 0; j < 16; j++) s += v[j] * j;
      out[i] = s; }"""
    x, where, out = torch.randint(0, 9, (128, 16)).float(), torch.randint(0, 16, (128,), dtype=torch.int32), fresh(128)
    run(source, {"input": x, "out": out, "where": where}, launch("k", 4, 32, "input", "out", "where", 128))
    want = []
    for row, start in zip(x.tolist(), where.tolist(), strict=True):
        for j in range(20):
            p = (start + j * 5) & 15
            q = (p * 3 + 1) & 15
            t = row[p]
            row[p] = row[q] + 1
            row[q] = t
        want.append(sum(v * j for j, v in enumerate(row)))
    assert out.tolist() == want


def test_integer_division_and_bits() -> None:
    source = """extern "C" __global__ void k(const int* a, const int* b, long long* out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; int x = a[i], y = b[i]; long long* o = out + i * 16;
      long long X = (long long)x * 1234567891011ll, Y = (long long)y * 777;
      o[0] = x / y; o[1] = x % y; o[2] = (unsigned)x / (unsigned)y; o[3] = X / Y; o[4] = X % Y; o[5] = __mulhi(x, y);
      o[6] = __mul64hi(X, Y); o[7] = __popc(x) * 100 + __clz(y); o[8] = __brev(x); o[9] = __funnelshift_l(x, y, y & 31);
      o[10] = __byte_perm(x, y, 0x5214); o[11] = x >> (y & 31); o[12] = (unsigned)x >> (y & 31); o[13] = __ffsll(X) * 100 + __clzll(Y);
      o[14] = __dp4a(x, y, 5); o[15] = X << (y & 63); }"""
    rng = np.random.default_rng(3)
    a = rng.integers(-2**31, 2**31, 500).astype(np.int32)
    b = rng.integers(-2000, 2000, 500).astype(np.int32)
    b[b == 0] = 7
    out = fresh(500, 16, dtype=torch.int64)
    run(source, {"a": torch.from_numpy(a), "b": torch.from_numpy(b), "out": out}, launch("k", 4, 128, "a", "b", "out", 500))

    def s64(v: int) -> int:
        return (v + 2**63) % 2**64 - 2**63

    def row(x: int, y: int) -> list[int]:
        ux, uy = x % 2**32, y % 2**32
        big, other = s64(x * 1234567891011), y * 777
        quotient = lambda p, q: abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)      # noqa: E731
        perm = [(ux | uy << 32) >> 8 * k & 255 for k in (4, 1, 2, 5)]
        products = sum(int(np.int8(ux >> 8 * k & 255 if (ux >> 8 * k & 255) < 128 else (ux >> 8 * k & 255) - 256)) *
                       ((uy >> 8 * k & 255) - (256 if uy >> 8 * k & 128 else 0)) for k in range(4))
        s32 = lambda v: (v + 2**31) % 2**32 - 2**31      # noqa: E731
        return [quotient(x, y), x - quotient(x, y) * y, ux // uy, quotient(big, other), big - quotient(big, other) * other, x * y >> 32,
                big * other >> 64, ux.bit_count() * 100 + 32 - uy.bit_length(), int(f"{ux:032b}"[::-1], 2),
                ((uy << 32 | ux) << (y & 31) >> 32) % 2**32, perm[0] | perm[1] << 8 | perm[2] << 16 | perm[3] << 24,
                x >> (y & 31), ux >> (y & 31), ((big & -big).bit_length()) * 100 + 64 - (other % 2**64).bit_length(),
                s32(products + 5), s64(big << (y & 63))]

    want = [row(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert out.tolist() == want


def test_int64_indices_and_embedding() -> None:
    source = """extern "C" __global__ void k(const long long* input, const float* weight, float* out, int dim) {
      const float* row = weight + input[blockIdx.x] * dim;
      for (int c = threadIdx.x; c < dim; c += blockDim.x) out[(long long)blockIdx.x * dim + c] = __ldg(row + c); }"""
    ids, w = torch.randint(0, 50, (77,)), torch.randn(50, 100)
    out = fresh(77, 100)
    run(source, {"input": ids, "weight": w, "out": out}, launch("k", 77, 64, "input", "weight", "out", 100))
    assert torch.equal(out, w[ids])


def test_pooling_with_integer_division() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out, int H, int W, int OH, int OW, int total) {
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int x = i % OW, y = i / OW % OH, p = i / (OW * OH), y0 = y * H / OH, y1 = ((y + 1) * H + OH - 1) / OH, x0 = x * W / OW, x1 = ((x + 1) * W + OW - 1) / OW;
        float s = 0; for (int r = y0; r < y1; r++) for (int c = x0; c < x1; c++) s += input[(p * H + r) * W + c];
        out[i] = s / ((y1 - y0) * (x1 - x0)); } }"""
    x, out = torch.randn(2, 3, 17, 23), fresh(2, 3, 5, 7)
    run(source, {"input": x, "out": out}, launch("k", 2, 96, "input", "out", 17, 23, 5, 7, out.numel()))
    close(out, torch.nn.functional.adaptive_avg_pool2d(x, (5, 7)))


def test_two_launches_with_a_workspace_and_welford() -> None:
    source = """extern "C" __global__ void part(const float* input, float2* partial, int cols, int parts) {
      __shared__ float s[64]; int row = blockIdx.y; float a = 0, b = 0;
      for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < cols; c += parts * blockDim.x) { float v = input[row * cols + c]; a += v; b += v * v; }
      s[threadIdx.x] = a; __syncthreads();
      for (int o = 32; o; o >>= 1) { if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o]; __syncthreads(); }
      a = s[0]; __syncthreads(); s[threadIdx.x] = b; __syncthreads();
      for (int o = 32; o; o >>= 1) { if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o]; __syncthreads(); }
      if (threadIdx.x == 0) partial[row * parts + blockIdx.x] = make_float2(a, s[0]); }
    extern "C" __global__ void done(const float* input, const float2* partial, float* out, int cols, int parts, float eps) {
      float a = 0, b = 0; for (int p = 0; p < parts; p++) { float2 v = partial[blockIdx.x * parts + p]; a += v.x; b += v.y; }
      float mean = a / cols, r = rsqrtf(b / cols - mean * mean + eps);
      for (int c = threadIdx.x; c < cols; c += blockDim.x) out[blockIdx.x * cols + c] = (input[blockIdx.x * cols + c] - mean) * r; }"""
    x, out = torch.randn(6, 3000), fresh(6, 3000)
    run(source, {"input": x, "out": out}, launch("part", (4, 6), 64, "input", "partial", 3000, 4),
        launch("done", 6, 128, "input", "partial", "out", 3000, 4, 1e-5), workspaces=(Workspace("partial", "float32", (6, 4, 2)),))
    close(out, torch.nn.functional.layer_norm(x, (3000,)))


def test_constant_table_device_function_and_by_value_loop() -> None:
    source = """__constant__ float table[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    __device__ __noinline__ float power(float x, int n) { float r = 1; while (n-- > 0) r *= x; return r; }
    extern "C" __global__ void k(const float* input, float* out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = table[i & 7] + power(input[i], i % 5) - power(0.5f, i & 1); }"""
    x, out = torch.randn(300), fresh(300)
    run(source, {"input": x, "out": out}, launch("k", 5, 64, "input", "out", 300))
    i = torch.arange(300)
    close(out, 2.0 ** (i & 7) + x.double() ** (i % 5) - 0.5 ** (i & 1), 1e-6)


def test_byte_and_half_word_accesses_to_shared_memory() -> None:
    source = """extern "C" __global__ void k(const unsigned char* input, const short* other, int* out) {
      __shared__ unsigned char b[64]; __shared__ short h[64]; __shared__ double d[64]; __shared__ float4 v[16]; int t = threadIdx.x;
      b[63 - t] = input[blockIdx.x * 64 + t]; h[t ^ 1] = other[blockIdx.x * 64 + t]; d[t] = t * 1.5; if (t < 16) v[t] = make_float4(t, t + 1, t + 2, t + 3);
      __syncthreads();
      out[blockIdx.x * 64 + t] = b[t] * 1000 + h[t] + (int)(d[63 - t] * 2) + (int)v[t >> 2].z; }"""
    x, y = torch.randint(0, 256, (3, 64), dtype=torch.uint8), torch.randint(-300, 300, (3, 64), dtype=torch.int16)
    out = fresh(3, 64, dtype=torch.int32)
    run(source, {"input": x, "other": y, "out": out}, launch("k", 3, 64, "input", "other", "out"))
    t = torch.arange(64)
    assert torch.equal(out.long(), x.long().flip(1) * 1000 + y.long()[:, t ^ 1] + (63 - t) * 3 + (t >> 2) + 2)


def test_generic_pointer_into_shared_or_global() -> None:
    source = """__device__ __noinline__ float sum(const float* p, int n) { float s = 0; for (int i = 0; i < n; i++) s += p[i]; return s; }
    extern "C" __global__ void k(const float* input, float* out) {
      __shared__ float s[32]; s[threadIdx.x] = input[threadIdx.x] * 2; __syncthreads();
      const float* p = threadIdx.x & 1 ? s : input; out[blockIdx.x * 32 + threadIdx.x] = sum(p + (threadIdx.x & 2), 8); }"""
    x, out = torch.randint(0, 50, (32,)).float(), fresh(2, 32)
    run(source, {"input": x, "out": out}, launch("k", 2, 32, "input", "out"))
    want = [x[t & 2:(t & 2) + 8].sum().item() * (2 if t & 1 else 1) for t in range(32)]
    assert out[0].tolist() == want and out[1].tolist() == want


def test_syncthreads_count_and_friends() -> None:
    source = """extern "C" __global__ void k(const int* input, int* out) {
      int v = input[blockIdx.x * 64 + threadIdx.x];
      int c = __syncthreads_count(v > 0), a = __syncthreads_and(v > -100), o = __syncthreads_or(v == 7);
      out[blockIdx.x * 64 + threadIdx.x] = c * 100 + (a != 0) * 10 + (o != 0); }"""
    x, out = torch.randint(-9, 9, (5, 64), dtype=torch.int32), fresh(5, 64, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 5, 64, "input", "out"))
    want = (x > 0).sum(1) * 100 + 10 + (x == 7).any(1)
    assert torch.equal(out.long(), want[:, None].expand(5, 64))


def test_strided_views_misaligned_starts_and_in_place() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out, int rows, int cols, int stride) {
      int r = blockIdx.x, c = threadIdx.x; if (c < cols) out[r * stride + c] += input[c * rows + r]; }"""
    storage = torch.randn(1000)
    x = storage[3:3 + 20 * 6].reshape(20, 6)                # starts 12 bytes into its storage
    y = torch.randn(6, 32)[:, 5:25]
    want = y + x.T
    run(source, {"input": x, "out": y}, launch("k", 6, 32, "input", "out", 6, 20, 32), aliases={"out": "out"})
    assert torch.equal(y, want)


def test_null_pointer_for_an_optional_tensor_and_scalar_kinds() -> None:
    source = """extern "C" __global__ void k(const float* input, const float* bias, float* out, long long n, double a) {
      int i = threadIdx.x; if (i < n) out[i] = (float)(input[i] * a) + (bias ? bias[i] : 0.f); }"""
    x, out = torch.randn(10), fresh(10)
    run(source, {"input": x, "out": out}, launch("k", 1, 32, "input", None, "out", Argument("int64", value=10), Argument("float64", value=3.0)))
    assert torch.equal(out, (x.double() * 3).float())


def test_blocks_in_several_chunks_and_an_uneven_last_one() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out, int cols) {
      __shared__ float s[4]; float v = 0; for (int c = threadIdx.x; c < cols; c += 128) v += input[blockIdx.x * cols + c];
      for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o); if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
      __syncthreads(); if (threadIdx.x == 0) out[blockIdx.x] = s[0] + s[1] + s[2] + s[3]; }"""
    x, out = torch.randint(-9, 9, (1301, 200)).float(), fresh(1301)
    report = run(source, {"input": x, "out": out}, launch("k", 1301, 128, "input", "out", 200))
    assert torch.equal(out, x.sum(1))
    assert report.counts[0].barriers == 1301 and report.counts[0].blocks == 1301


PIPELINE = """#include <cuda_pipeline.h>
extern "C" __global__ void k(const float* input, float* out, int tiles) {
  __shared__ float4 s[2][64]; int t = threadIdx.x; float total = 0;
  const float4* x = (const float4*)input + blockIdx.x * tiles * 64;
  __pipeline_memcpy_async(&s[0][t], x + t, 16); __pipeline_commit();
  for (int j = 0; j < tiles; j++) {
    if (j + 1 < tiles) __pipeline_memcpy_async(&s[(j + 1) & 1][t], x + (j + 1) * 64 + t, 16);
    __pipeline_commit();
    __pipeline_wait_prior(WAIT); __syncthreads();
    float4 v = s[j & 1][63 - t]; total += v.x + v.y * 2 + v.z * 3 + v.w * 4;  // here
    __syncthreads(); }
  out[blockIdx.x * 64 + t] = total; }"""


def test_double_buffered_asynchronous_copies() -> None:
    x, out = torch.randint(-9, 9, (3, 7, 64, 4)).float(), fresh(3, 64)
    run(PIPELINE.replace("WAIT", "1"), {"input": x, "out": out}, launch("k", 3, 64, "input", "out", 7))
    assert torch.equal(out, (x * torch.arange(1.0, 5)).sum((1, 3)).flip(1))


def test_a_missing_wait_is_found() -> None:
    x, out = torch.randn(3, 7, 64, 4), fresh(3, 64)
    found = fault(PIPELINE.replace("WAIT", "2"), {"input": x, "out": out}, launch("k", 3, 64, "input", "out", 7))
    assert (found.kind, found.line) == ("uninitialized", line_of(PIPELINE, "// here"))


@pytest.mark.parametrize(("dtype", "scalar", "pair", "header"), [
    (torch.float16, "__half", "__half2", "cuda_fp16.h"), (torch.bfloat16, "__nv_bfloat16", "__nv_bfloat162", "cuda_bf16.h")])
def test_half_atomics_through_generic_addresses(dtype: torch.dtype, scalar: str, pair: str, header: str) -> None:
    source = f"""#include <{header}>
    extern "C" __global__ void k(const {scalar}* input, {scalar}* out) {{
      __shared__ {pair} s[2]; if (threadIdx.x < 2) s[threadIdx.x] = (({pair}*)out)[0]; __syncthreads();
      atomicAdd(out + 2, input[threadIdx.x]); atomicAdd(({pair}*)out + 2, *(const {pair}*)input); atomicAdd(s + 1, *(const {pair}*)input);
      __syncthreads(); if (threadIdx.x == 0) (({pair}*)out)[3] = s[1]; }}"""
    out = torch.zeros(8, dtype=dtype)
    run(source, {"input": torch.ones(64, dtype=dtype), "out": out}, launch("k", 1, 64, "input", "out"), aliases={"out": "out"})
    assert out.tolist() == [0, 0, 64, 0, 64, 64, 64, 64]


def test_inline_assembly_with_registers_of_its_own() -> None:
    source = """extern "C" __global__ void k(const unsigned* input, unsigned* out) {
      unsigned r; asm("{\\n .reg .pred p; .reg.b16 low, high;\\n mov.b32 {low, high}, %1;\\n setp.eq.u16 p, low, high;\\n"
                      "@p add.u16 low, low, 7;\\n mov.b32 %0, {high, low};\\n}" : "=r"(r) : "r"(input[threadIdx.x]));
      out[threadIdx.x] = r + warpSize; }"""
    x = torch.tensor([0x00010002, 0x00050005, 0x70007000, 3], dtype=torch.int32).repeat(8)
    out = fresh(32, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 1, 32, "input", "out"))
    assert out[:4].tolist() == [0x00020001 + 32, 0x000C0005 + 32, 0x70077000 + 32, 0x00030000 + 32]
