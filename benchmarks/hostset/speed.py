"""How fast the host target interprets: nanoseconds a thread-instruction with all checks on, on sizes of real use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.hostset.record import Tensors, blank, launch, normal
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import Launch, Program

REPEATS = 9
"""The fastest counts: the others were disturbed."""

SOFTMAX = """extern "C" __global__ void __launch_bounds__(256) k(const float* __restrict__ input, float* __restrict__ out) {
  __shared__ float part[8]; const float* p = input + blockIdx.x * 4096; float v[16]; float m = -3.4e38f; int t = threadIdx.x;
  for (int j = 0; j < 16; j++) { v[j] = p[j * 256 + t]; m = fmaxf(m, v[j]); }
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  if (t % 32 == 0) part[t / 32] = m; __syncthreads();
  m = part[0]; for (int j = 1; j < 8; j++) m = fmaxf(m, part[j]); __syncthreads();
  float s = 0; for (int j = 0; j < 16; j++) { v[j] = __expf(v[j] - m); s += v[j]; }
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (t % 32 == 0) part[t / 32] = s; __syncthreads();
  s = 0; for (int j = 0; j < 8; j++) s += part[j];
  for (int j = 0; j < 16; j++) out[blockIdx.x * 4096 + j * 256 + t] = v[j] / s; }"""

SOFTMAX_LOOP = """__device__ float all(float v, float* s, bool most) { for (int o = 16; o; o >>= 1) { float w = __shfl_xor_sync(~0u, v, o); v = most ? fmaxf(v, w) : v + w; }
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v; __syncthreads(); v = s[0]; for (int w = 1; w < blockDim.x / 32; w++) v = most ? fmaxf(v, s[w]) : v + s[w]; __syncthreads(); return v; }
extern "C" __global__ void k(const float* __restrict__ input, float* __restrict__ out, int cols) {
  __shared__ float s[32]; const float* x = input + (long long)blockIdx.x * cols; float* y = out + (long long)blockIdx.x * cols; float m = -INFINITY, t = 0;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) m = fmaxf(m, x[c]); m = all(m, s, true);
  for (int c = threadIdx.x; c < cols; c += blockDim.x) t += __expf(x[c] - m); t = all(t, s, false);
  for (int c = threadIdx.x; c < cols; c += blockDim.x) y[c] = __expf(x[c] - m) / t; }"""

SILU = """extern "C" __global__ void k(const float4* input, float4* out) { int i = blockIdx.x * blockDim.x + threadIdx.x; float4 v = input[i];
  v.x /= 1 + __expf(-v.x); v.y /= 1 + __expf(-v.y); v.z /= 1 + __expf(-v.z); v.w /= 1 + __expf(-v.w); out[i] = v; }"""

ADD_BF16 = """#include <cuda_bf16.h>
extern "C" __global__ void k(const __nv_bfloat162* input, const __nv_bfloat162* other, __nv_bfloat162* out) { int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = __hadd2(input[i], other[i]); }"""

SUM = """extern "C" __global__ void k(const float* input, float* out) { __shared__ float s[8]; float v = 0; const float* p = input + blockIdx.x * 4096; for (int i = threadIdx.x; i < 4096; i += 256) v += p[i];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o); if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v; __syncthreads(); if (threadIdx.x == 0) { v = 0; for (int j = 0; j < 8; j++) v += s[j]; out[blockIdx.x] = v; } }"""

MATMUL = """extern "C" __global__ void k(const float* input, const float* other, float* out, int n) { __shared__ float s[16][16], t[16][16]; int x = threadIdx.x, y = threadIdx.y, r = blockIdx.y * 16 + y, c = blockIdx.x * 16 + x; float v = 0;
  for (int k = 0; k < n; k += 16) { s[y][x] = input[r * n + k + x]; t[y][x] = other[(k + y) * n + c]; __syncthreads(); for (int j = 0; j < 16; j++) v += s[y][j] * t[j][x]; __syncthreads(); } out[r * n + c] = v; }"""

CASES: dict[str, tuple[str, tuple[Launch, ...], Callable[[], Tensors]]] = {
    "softmax (1024, 4096) float32, in registers": (SOFTMAX, (launch("k", 1024, 256, "input", "out"),), lambda: {"input": normal(1024, 4096), "out": blank(1024, 4096)}),
    "softmax (1024, 4096) float32, in loops": (SOFTMAX_LOOP, (launch("k", 1024, 256, "input", "out", 4096),), lambda: {"input": normal(1024, 4096), "out": blank(1024, 4096)}),
    "sum of rows (1024, 4096) float32": (SUM, (launch("k", 1024, 256, "input", "out"),), lambda: {"input": normal(1024, 4096), "out": blank(1024)}),
    "silu 4 M float32": (SILU, (launch("k", 4096, 256, "input", "out"),), lambda: {"input": normal(1 << 22), "out": blank(1 << 22)}),
    "add 4 M bfloat16": (ADD_BF16, (launch("k", 8192, 256, "input", "other", "out"),),
                         lambda: {"input": normal(1 << 22, dtype=torch.bfloat16), "other": normal(1 << 22, dtype=torch.bfloat16, seed=1), "out": blank(1 << 22, dtype=torch.bfloat16)}),
    "matmul 256^3 float32": (MATMUL, (launch("k", (16, 16), (16, 16), "input", "other", "out", 256),), lambda: {"input": normal(256, 256), "other": normal(256, 256, seed=1), "out": blank(256, 256)}),
}


def measure() -> list[dict[str, Any]]:
    """Processor time of this process (one thread) for one run of each case, checks on, translation not counted."""
    found = []
    for name, (source, launches, make) in CASES.items():
        tensors = make()
        program = Program("k.cu", source, (), launches, (), tuple(key for key in tensors if key != "out"), ("out",))
        target = HostTarget()
        image = target.build(program)
        times, instructions = [], 0
        for _ in range(REPEATS + 1):
            begun = time.process_time()
            report = target.run(program, image, dict(tensors))
            times.append(time.process_time() - begun)
            instructions = sum(c.thread_instructions for c in report.counts)
        best = min(times[1:])
        found.append({"case": name, "seconds": round(best, 4), "thread_instructions": instructions, "ns": round(best / instructions * 1e9, 3)})
    return found
