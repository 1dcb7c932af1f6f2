"""Row by row and element by element: norms, softmax, losses, quantization, rotary embeddings, layouts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.hostset.record import Kernel, Tensors, blank, launch, normal, whole

WARP_SUM = "__device__ float warp_sum(float v) { for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o); return v; }\n"

LAYER_NORM = """struct W { float n, mean, m2; };
__device__ W merge(W a, W b) { float n = a.n + b.n; if (n == 0) return a; float d = b.mean - a.mean; return {n, a.mean + d * b.n / n, a.m2 + b.m2 + d * d * a.n * b.n / n}; }
extern "C" __global__ void k(const float* x, const float* w, const float* b, float* out, int cols, float eps) {
  __shared__ W s[4]; W v = {0, 0, 0}; const float* row = x + blockIdx.x * cols;
  for (int c = threadIdx.x; c < cols; c += 128) { float y = row[c]; v.n += 1; float d = y - v.mean; v.mean += d / v.n; v.m2 += d * (y - v.mean); }
  for (int o = 16; o; o >>= 1) v = merge(v, W{__shfl_xor_sync(~0u, v.n, o), __shfl_xor_sync(~0u, v.mean, o), __shfl_xor_sync(~0u, v.m2, o)});
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v; __syncthreads(); v = merge(merge(s[0], s[1]), merge(s[2], s[3]));
  float r = rsqrtf(v.m2 / cols + eps); for (int c = threadIdx.x; c < cols; c += 128) out[blockIdx.x * cols + c] = (row[c] - v.mean) * r * w[c] + b[c]; }"""

ADD_RMS = WARP_SUM + """#include <cuda_bf16.h>
extern "C" __global__ void k(const __nv_bfloat16* x, const __nv_bfloat16* residual, const __nv_bfloat16* w, float* sum, float* out, int cols) {
  __shared__ float s[8]; float t = 0; int at = blockIdx.x * cols;
  for (int c = threadIdx.x; c < cols; c += 256) { float y = __bfloat162float(x[at + c]) + __bfloat162float(residual[at + c]); sum[at + c] = y; t += y * y; }
  t = warp_sum(t); if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = t; __syncthreads(); t = 0; for (int j = 0; j < 8; j++) t += s[j];
  float r = rsqrtf(t / cols + 1e-6f); for (int c = threadIdx.x; c < cols; c += 256) out[at + c] = sum[at + c] * r * __bfloat162float(w[c]); }"""

SWIGLU = """#include <cuda_fp16.h>
extern "C" __global__ void k(const __half2* gate, const __half2* up, __half2* out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { float2 g = __half22float2(gate[i]), u = __half22float2(up[i]);
    out[i] = __floats2half2_rn(g.x / (1 + __expf(-g.x)) * u.x, g.y / (1 + __expf(-g.y)) * u.y); } }"""

CROSS_ENTROPY = WARP_SUM + """extern "C" __global__ void k(const float* x, const long long* target, float* out, int cols) {
  int r = blockIdx.x, l = threadIdx.x; float m = -INFINITY, s = 0;
  for (int c = l; c < cols; c += 32) { float v = x[r * cols + c], top = fmaxf(m, v); s = s * __expf(m - top) + __expf(v - top); m = top; }
  float top = m; for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  s = warp_sum(m == -INFINITY ? 0.f : s * __expf(m - top)); if (l == 0) out[r] = logf(s) + top - x[r * cols + target[r]]; }"""

QUANTIZE = """extern "C" __global__ void k(const float* x, signed char* out, float* scale, int cols) {
  __shared__ float s[4]; float m = 0; int at = blockIdx.x * cols; for (int c = threadIdx.x; c < cols; c += 128) m = fmaxf(m, fabsf(x[at + c]));
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o)); if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = m; __syncthreads();
  m = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3])); float q = m / 127.f; if (threadIdx.x == 0) scale[blockIdx.x] = q;
  for (int c = threadIdx.x; c < cols; c += 128) out[at + c] = (signed char)max(-127, min(127, __float2int_rn(x[at + c] / q))); }"""

UNPACK4 = """extern "C" __global__ void k(const unsigned* packed, const float* scale, float* out, int words, int group) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= words) return; unsigned w = packed[i];
  #pragma unroll
  for (int j = 0; j < 8; j++) out[i * 8 + j] = ((int)(w >> 4 * j & 15) - 8) * scale[(i * 8 + j) / group]; }"""

FP8 = """#include <cuda_fp8.h>
extern "C" __global__ void k(const float* x, __nv_fp8_e4m3* q, float* out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
  __nv_fp8_e4m3 v(x[i]); q[i] = v; out[i] = float(v); }"""

ROTARY = """extern "C" __global__ void k(const float* x, float* out, int heads, int half, float base) {
  int t = blockIdx.x, h = blockIdx.y, j = threadIdx.x; float f = t * powf(base, -(float)j / half), s, c; sincosf(f, &s, &c);
  const float* p = x + (t * heads + h) * 2 * half; float* o = out + (t * heads + h) * 2 * half; float a = p[j], b = p[j + half];
  o[j] = a * c - b * s; o[j + half] = b * c + a * s; }"""

ROTARY_PAIRS = """#include <cuda_bf16.h>
extern "C" __global__ void k(const __nv_bfloat162* x, const float2* table, __nv_bfloat162* out, int half, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; float2 v = __bfloat1622float2(x[i]), r = table[i % half];
  out[i] = __floats2bfloat162_rn(v.x * r.x - v.y * r.y, v.x * r.y + v.y * r.x); }"""

TRANSPOSE = """extern "C" __global__ void k(const float* x, float* out, int rows, int cols) { __shared__ float s[32][33]; int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32;
  for (int j = threadIdx.y; j < 32; j += 8) if (r + j < rows && c < cols) s[j][threadIdx.x] = x[(r + j) * cols + c];
  __syncthreads(); int q = blockIdx.x * 32; for (int j = threadIdx.y; j < 32; j += 8) if (q + j < cols && r + threadIdx.x < rows) out[(q + j) * rows + r + threadIdx.x] = s[threadIdx.x][j]; }"""

GELU_HALF2 = """#include <cuda_fp16.h>
extern "C" __global__ void k(const __half2* x, __half2* out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; __half2 v = x[i];
  __half2 u = __hmul2(__float2half2_rn(0.79788456f), __hfma2(__hmul2(__hmul2(v, v), v), __float2half2_rn(0.044715f), v)); float2 f = __half22float2(u);
  out[i] = __hmul2(__hmul2(v, __float2half2_rn(0.5f)), __floats2half2_rn(1.f + tanhf(f.x), 1.f + tanhf(f.y))); }"""

UPSAMPLE = """extern "C" __global__ void k(const float* x, float* out, int h, int w, int oh, int ow) {
  int q = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y, p = blockIdx.z; if (q >= ow) return;
  float y = fmaxf(0.f, (r + 0.5f) * h / oh - 0.5f), z = fmaxf(0.f, (q + 0.5f) * w / ow - 0.5f); int y0 = (int)y, z0 = (int)z, y1 = min(h - 1, y0 + 1), z1 = min(w - 1, z0 + 1);
  float a = y - y0, b = z - z0; const float* s = x + p * h * w;
  out[(p * oh + r) * ow + q] = (1 - a) * ((1 - b) * s[y0 * w + z0] + b * s[y0 * w + z1]) + a * ((1 - b) * s[y1 * w + z0] + b * s[y1 * w + z1]); }"""

BATCH_STATS = """#include <cooperative_groups.h>
extern "C" __global__ void k(const float* x, float* sums, float* out, int n, int c, int hw) {
  // A block a channel and image; moments meet in global memory between two grid barriers.
  __shared__ float s[2][4]; int ch = blockIdx.x, im = blockIdx.y, t = threadIdx.x; const float* p = x + (im * c + ch) * hw; float a = 0, b = 0;
  for (int i = t; i < hw; i += 128) { a += p[i]; b += p[i] * p[i]; }
  for (int o = 16; o; o >>= 1) { a += __shfl_xor_sync(~0u, a, o); b += __shfl_xor_sync(~0u, b, o); } if (t % 32 == 0) { s[0][t / 32] = a; s[1][t / 32] = b; } __syncthreads();
  if (t == 0) { atomicAdd(&sums[ch], s[0][0] + s[0][1] + s[0][2] + s[0][3]); atomicAdd(&sums[c + ch], s[1][0] + s[1][1] + s[1][2] + s[1][3]); }
  cooperative_groups::this_grid().sync();
  float m = sums[ch] / (n * hw), r = rsqrtf(sums[c + ch] / (n * hw) - m * m + 1e-5f); for (int i = t; i < hw; i += 128) out[(im * c + ch) * hw + i] = (p[i] - m) * r; }"""

SCAN_STATE = """extern "C" __global__ void k(const float* x, const float* decay, const float* in, const float* outw, float* out, int steps, int width) {
  // A selective scan: 16 states a channel, one lane each, summed over half a warp.
  int lane = threadIdx.x % 16, ch = blockIdx.x * 8 + threadIdx.x / 16; float h = 0;
  for (int t = 0; t < steps; t++) { h = h * __expf(-decay[t * width + ch] * (lane + 1)) + x[t * width + ch] * in[t * 16 + lane]; float y = h * outw[t * 16 + lane];
    for (int o = 8; o; o >>= 1) y += __shfl_xor_sync(~0u, y, o, 16); if (lane == 0) out[t * width + ch] = y; } }"""


def _rotated(t: Tensors) -> Tensors:
    x = t["x"].double()
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[0]).double()[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return {"out": torch.cat([a * c - b * s, b * c + a * s], -1)}


def _paired(t: Tensors) -> Tensors:
    x, r = t["x"].double().unflatten(-1, (-1, 2)), t["table"].double()
    return {"out": torch.stack([x[..., 0] * r[:, 0] - x[..., 1] * r[:, 1], x[..., 0] * r[:, 1] + x[..., 1] * r[:, 0]], -1).flatten(-2)}


def _quantized(t: Tensors) -> Tensors:
    scale = t["x"].abs().amax(1) / 127
    return {"out": (t["x"] / scale[:, None]).round().clamp(-127, 127), "scale": scale}


def _unpacked(t: Tensors) -> Tensors:
    words = t["packed"].long() & 0xFFFFFFFF
    values = torch.stack([(words >> 4 * j & 15) - 8 for j in range(8)], -1).flatten()
    return {"out": values.double() * t["scale"].double().repeat_interleave(64)}


def _fp8(t: Tensors) -> Tensors:
    q = t["x"].clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"q": q.view(torch.uint8), "out": q.float()}


def _selective(t: Tensors) -> Tensors:
    x, decay, into, out = (t[name].double() for name in ("x", "decay", "in", "outw"))
    h, found = torch.zeros(x.shape[1], 16, dtype=torch.float64), []
    for step in range(x.shape[0]):
        h = h * torch.exp(-decay[step][:, None] * torch.arange(1, 17)) + x[step][:, None] * into[step]
        found.append((h * out[step]).sum(1))
    return {"out": torch.stack(found)}


KERNELS = [
    Kernel("layer norm welford", "norm", LAYER_NORM, (launch("k", 20, 128, "x", "w", "b", "out", 300, 1e-5),),
           lambda: {"x": normal(20, 300) + 3, "w": normal(300, seed=1), "b": normal(300, seed=2), "out": blank(20, 300)},
           lambda t: {"out": F.layer_norm(t["x"].double(), (300,), t["w"].double(), t["b"].double())}),
    Kernel("add and rms norm", "norm", ADD_RMS, (launch("k", 12, 256, "x", "residual", "w", "sum", "out", 500),),
           lambda: {**{name: normal(12, 500, dtype=torch.bfloat16, seed=seed) for seed, name in enumerate(("x", "residual"))},
                    "w": normal(500, dtype=torch.bfloat16, seed=2), "sum": blank(12, 500), "out": blank(12, 500)},
           lambda t: {"sum": t["x"].double() + t["residual"].double(),
                      "out": F.rms_norm(t["x"].double() + t["residual"].double(), (500,), t["w"].double(), 1e-6)}),
    Kernel("batch norm cooperative", "norm", BATCH_STATS, (launch("k", (6, 4), 128, "x", "sums", "out", 4, 6, 150, cooperative=True),),
           lambda: {"x": normal(4, 6, 150), "sums": torch.zeros(12), "out": blank(4, 6, 150)},
           lambda t: {"sums": torch.cat([t["x"].double().sum((0, 2)), t["x"].double().square().sum((0, 2))]),
                      "out": F.batch_norm(t["x"].double(), None, None, training=True)}, aliases={"sums": "sums"}),
    Kernel("swiglu half2", "element by element", SWIGLU, (launch("k", 5, 128, "gate", "up", "out", 2000),),
           lambda: {"gate": normal(4000, dtype=torch.float16), "up": normal(4000, dtype=torch.float16, seed=1), "out": blank(4000, dtype=torch.float16)},
           lambda t: {"out": F.silu(t["gate"].double()) * t["up"].double()}, 6e-4),
    Kernel("gelu half2", "element by element", GELU_HALF2, (launch("k", 8, 128, "x", "out", 1000),),
           lambda: {"x": normal(2000, dtype=torch.float16), "out": blank(2000, dtype=torch.float16)}, lambda t: {"out": F.gelu(t["x"].double(), approximate="tanh")}, 2e-3),
    Kernel("cross entropy online", "softmax", CROSS_ENTROPY, (launch("k", 30, 32, "x", "target", "out", 777),),
           lambda: {"x": normal(30, 777) * 3, "target": whole(777, 30, dtype=torch.int64, seed=1), "out": blank(30)},
           lambda t: {"out": F.cross_entropy(t["x"].double(), t["target"], reduction="none")}),
    Kernel("quantize int8 rows", "quantization", QUANTIZE, (launch("k", 16, 128, "x", "out", "scale", 600),),
           lambda: {"x": normal(16, 600), "out": blank(16, 600, dtype=torch.int8), "scale": blank(16)}, _quantized, 1e-6),
    Kernel("unpack int4", "quantization", UNPACK4, (launch("k", 4, 128, "packed", "scale", "out", 400, 64),),
           lambda: {"packed": whole(2**31, 400, low=-2**31), "scale": normal(50, seed=1), "out": blank(3200)}, _unpacked),
    Kernel("quantize fp8 e4m3", "quantization", FP8, (launch("k", 8, 128, "x", "q", "out", 1000),),
           lambda: {"x": torch.cat([normal(900) * 50, normal(100, seed=1) * 1e-3]), "q": blank(1000, dtype=torch.uint8), "out": blank(1000)}, _fp8, 0.0),
    Kernel("rotary halves", "rotary", ROTARY, (launch("k", (40, 3), 32, "x", "out", 3, 32, 10000.0),),
           lambda: {"x": normal(40, 3, 64), "out": blank(40, 3, 64)}, _rotated, 1e-5),
    Kernel("rotary pairs bf16", "rotary", ROTARY_PAIRS, (launch("k", 20, 64, "x", "table", "out", 32, 1280),),
           lambda: {"x": normal(40, 64, dtype=torch.bfloat16), "table": normal(32, 2, seed=1), "out": blank(40, 64, dtype=torch.bfloat16)}, _paired, 4e-3),
    Kernel("transpose tiles", "layout", TRANSPOSE, (launch("k", (4, 3), (32, 8), "x", "out", 75, 100),),
           lambda: {"x": normal(75, 100), "out": blank(100, 75)}, lambda t: {"out": t["x"].t()}, 0.0),
    Kernel("upsample bilinear", "layout", UPSAMPLE, (launch("k", (1, 23, 4), 64, "x", "out", 10, 12, 23, 30),),
           lambda: {"x": normal(1, 4, 10, 12), "out": blank(1, 4, 23, 30)}, lambda t: {"out": F.interpolate(t["x"].double(), (23, 30), mode="bilinear")}, 1e-5),
    Kernel("selective scan", "scan", SCAN_STATE, (launch("k", 4, 128, "x", "decay", "in", "outw", "out", 50, 32),),
           lambda: {"x": normal(50, 32), "decay": normal(50, 32, seed=1).abs(), "in": normal(50, 16, seed=2), "outw": normal(50, 16, seed=3), "out": blank(50, 32)}, _selective),
]
