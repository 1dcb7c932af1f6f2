"""Matrix products, convolutions and attention, as language models write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.hostset.record import Kernel, blank, launch, normal, whole
from forge_tui.cuda.program import Workspace

GEMM_NAIVE = """extern "C" __global__ void k(const float* a, const float* b, float* out, int m, int n, int p) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y; if (r >= m || c >= n) return;
  float s = 0; for (int j = 0; j < p; j++) s += a[r * p + j] * b[j * n + c]; out[r * n + c] = s; }"""

GEMM_TILED = """extern "C" __global__ void k(const float* a, const float* b, float* out, int m, int n, int p) {
  __shared__ float s[16][17], t[16][17]; int x = threadIdx.x, y = threadIdx.y, r = blockIdx.y * 16 + y, c = blockIdx.x * 16 + x; float v = 0;
  for (int j = 0; j < p; j += 16) {
    s[y][x] = r < m && j + x < p ? a[r * p + j + x] : 0.f; t[y][x] = c < n && j + y < p ? b[(j + y) * n + c] : 0.f; __syncthreads();
    for (int q = 0; q < 16; q++) v += s[y][q] * t[q][x];
    __syncthreads(); }
  if (r < m && c < n) out[r * n + c] = v; }"""

GEMM_REGISTERS = """extern "C" __global__ void __launch_bounds__(256) k(const float* a, const float* b, float* out, int n, int p) {
  __shared__ float s[8][64], t[8][64]; int i = threadIdx.x, tx = i % 16, ty = i / 16, r0 = blockIdx.y * 64, c0 = blockIdx.x * 64; float v[4][4] = {};
  for (int j = 0; j < p; j += 8) {
    for (int q = i; q < 512; q += 256) { s[q % 8][q / 8] = a[(r0 + q / 8) * p + j + q % 8]; t[q / 64][q % 64] = b[(j + q / 64) * n + c0 + q % 64]; }
    __syncthreads();
    #pragma unroll
    for (int q = 0; q < 8; q++) { float4 x = *(float4*)&s[q][ty * 4], y = *(float4*)&t[q][tx * 4]; float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
      #pragma unroll
      for (int e = 0; e < 4; e++) for (int f = 0; f < 4; f++) v[e][f] = fmaf(xs[e], ys[f], v[e][f]); }
    __syncthreads(); }
  for (int e = 0; e < 4; e++) *(float4*)&out[(r0 + ty * 4 + e) * n + c0 + tx * 4] = make_float4(v[e][0], v[e][1], v[e][2], v[e][3]); }"""

GEMM_ASYNC = """#include <cuda_pipeline.h>
extern "C" __global__ void k(const float* a, const float* b, float* out, int n, int p) {
  __shared__ __align__(16) float s[2][16][16], t[2][16][16]; int x = threadIdx.x, y = threadIdx.y, i = y * 16 + x, r0 = blockIdx.y * 16, c0 = blockIdx.x * 16; float v = 0;
  auto fetch = [&](int step, int at) { if (i < 64) { int row = i / 4, col = i % 4 * 4;
    __pipeline_memcpy_async(&s[at][row][col], &a[(r0 + row) * p + step * 16 + col], 16);
    __pipeline_memcpy_async(&t[at][row][col], &b[(step * 16 + row) * n + c0 + col], 16); } __pipeline_commit(); };
  fetch(0, 0);
  for (int step = 0; step < p / 16; step++) {
    if (step + 1 < p / 16) { fetch(step + 1, (step + 1) & 1); __pipeline_wait_prior(1); } else __pipeline_wait_prior(0);
    __syncthreads();
    for (int q = 0; q < 16; q++) v += s[step & 1][y][q] * t[step & 1][q][x];
    __syncthreads(); }
  out[(r0 + y) * n + c0 + x] = v; }"""

GEMM_WMMA = """#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
extern "C" __global__ void k(const __half* a, const __half* b, float* out, int n, int p) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> x; wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> v; wmma::fill_fragment(v, 0.f); int r = blockIdx.y * 16, c = blockIdx.x * 16;
  for (int j = 0; j < p; j += 16) { wmma::load_matrix_sync(x, a + r * p + j, p); wmma::load_matrix_sync(y, b + j * n + c, n); wmma::mma_sync(v, x, y, v); }
  wmma::store_matrix_sync(out + r * n + c, v, n, wmma::mem_row_major); }"""

GEMM_MMA = """#include <cuda_bf16.h>
extern "C" __global__ void k(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out, int n, int p) {
  // b is transposed: (n, p). One warp, 16 x 8 results.
  __shared__ __align__(16) __nv_bfloat16 s[16][24]; int l = threadIdx.x, r0 = blockIdx.y * 16, c0 = blockIdx.x * 8, g = l / 4, q = l % 4 * 2; float d[4] = {};
  for (int j = 0; j < p; j += 16) {
    for (int e = l; e < 256; e += 32) s[e / 16][e % 16] = a[(r0 + e / 16) * p + j + e % 16];
    __syncwarp();
    unsigned x[4]; unsigned at = (unsigned)__cvta_generic_to_shared(&s[l % 16][l / 16 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at));
    unsigned y0 = *(const unsigned*)&b[(c0 + g) * p + j + q], y1 = *(const unsigned*)&b[(c0 + g) * p + j + q + 8];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1));
    __syncwarp(); }
  out[(r0 + g) * n + c0 + q] = d[0]; out[(r0 + g) * n + c0 + q + 1] = d[1]; out[(r0 + g + 8) * n + c0 + q] = d[2]; out[(r0 + g + 8) * n + c0 + q + 1] = d[3]; }"""

GEMM_INT8 = """extern "C" __global__ void k(const int* a, const int* b, int* out, int n, int p4) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y; int s = 0;
  for (int j = 0; j < p4; j++) s = __dp4a(a[r * p4 + j], b[c * p4 + j], s); out[r * n + c] = s; }"""

GEMV = """#include <cuda_bf16.h>
extern "C" __global__ void k(const __nv_bfloat162* w, const __nv_bfloat162* x, float* out, int rows, int pairs) {
  int r = blockIdx.x * 4 + threadIdx.x / 32, l = threadIdx.x % 32; if (r >= rows) return; float s = 0;
  for (int j = l; j < pairs; j += 32) { float2 u = __bfloat1622float2(w[r * pairs + j]), v = __bfloat1622float2(x[j]); s += u.x * v.x + u.y * v.y; }
  for (int o = 16; o; o >>= 1) s += __shfl_down_sync(~0u, s, o); if (l == 0) out[r] = s; }"""

SPLIT_K = """extern "C" __global__ void k(const float* a, const float* b, float* part, int m, int n, int p, int each) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y, z = blockIdx.z; float s = 0;
  for (int j = z * each; j < min(p, (z + 1) * each); j++) s += a[r * p + j] * b[j * n + c]; part[(z * m + r) * n + c] = s; }
extern "C" __global__ void add(const float* part, float* out, int count, int parts) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= count) return;
  float s = 0; for (int z = 0; z < parts; z++) s += part[z * count + i]; out[i] = s; }"""

FLASH = """extern "C" __global__ void __launch_bounds__(64) k(const float* query, const float* key, const float* value, float* out, int length, int causal, float scale) {
  // A thread a query; keys and values pass through shared memory in tiles of 32.
  __shared__ float ks[32][33], vs[32][33]; int head = blockIdx.y, i = blockIdx.x * 64 + threadIdx.x; float q[32], o[32], m = -INFINITY, sum = 0;
  for (int d = 0; d < 32; d++) { q[d] = i < length ? query[(head * length + i) * 32 + d] * scale : 0.f; o[d] = 0; }
  for (int j = 0; j < length; j += 32) {
    for (int e = threadIdx.x; e < 1024; e += 64) { int at = (head * length + j + e / 32) * 32 + e % 32; bool in = j + e / 32 < length; ks[e / 32][e % 32] = in ? key[at] : 0.f; vs[e / 32][e % 32] = in ? value[at] : 0.f; }
    __syncthreads();
    for (int t = 0; t < 32 && j + t < length; t++) { if (causal && j + t > i) break;
      float s = 0; for (int d = 0; d < 32; d++) s += q[d] * ks[t][d];
      float top = fmaxf(m, s), keep = __expf(m - top), w = __expf(s - top); sum = sum * keep + w; m = top;
      for (int d = 0; d < 32; d++) o[d] = o[d] * keep + w * vs[t][d]; }
    __syncthreads(); }
  if (i < length) for (int d = 0; d < 32; d++) out[(head * length + i) * 32 + d] = o[d] / sum; }"""

DECODE = """extern "C" __global__ void k(const float* query, const float* key, const float* value, float* part, int length, int each, float scale) {
  __shared__ float w[64], red[2]; int head = blockIdx.x, z = blockIdx.y, t = threadIdx.x, j = z * each + t; float s = -INFINITY;
  if (t < each && j < length) { s = 0; for (int d = 0; d < 64; d++) s += query[head * 64 + d] * key[(head * length + j) * 64 + d]; s *= scale; }
  float m = s; for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o)); if (t % 32 == 0) red[t / 32] = m; __syncthreads(); m = fmaxf(red[0], red[1]);
  w[t] = __expf(s - m); __syncthreads(); float sum = 0, o = 0;
  for (int i = 0; i < each && z * each + i < length; i++) { sum += w[i]; o += w[i] * value[(head * length + z * each + i) * 64 + t]; }
  float* p = part + (head * gridDim.y + z) * 66; p[t] = o; if (t == 0) { p[64] = m; p[65] = sum; } }
extern "C" __global__ void merge(const float* part, float* out, int parts) { int head = blockIdx.x, t = threadIdx.x; float m = -INFINITY, sum = 0, o = 0;
  for (int z = 0; z < parts; z++) m = fmaxf(m, part[(head * parts + z) * 66 + 64]);
  for (int z = 0; z < parts; z++) { const float* p = part + (head * parts + z) * 66; float w = __expf(p[64] - m); sum += w * p[65]; o += w * p[t]; }
  out[head * 64 + t] = o / sum; }"""

CONV_DIRECT = """extern "C" __global__ void k(const float* x, const float* w, const float* bias, float* out, int c, int h, int wd, int oc) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, o = blockIdx.y, b = blockIdx.z; if (i >= h * wd) return; int r = i / wd, q = i % wd; float s = bias[o];
  for (int e = 0; e < c; e++) for (int u = 0; u < 3; u++) for (int v = 0; v < 3; v++) { int y = r + u - 1, z = q + v - 1;
    if (y >= 0 && y < h && z >= 0 && z < wd) s += x[((b * c + e) * h + y) * wd + z] * w[((o * c + e) * 3 + u) * 3 + v]; }
  out[((b * oc + o) * h + r) * wd + q] = s; }"""

CONV_DEPTHWISE = """extern "C" __global__ void k(const float* x, const float* w, float* out, int h, int wd) {
  __shared__ float s[18][19]; int ch = blockIdx.z, r0 = blockIdx.y * 16, c0 = blockIdx.x * 16, t = threadIdx.y * 16 + threadIdx.x;
  for (int e = t; e < 324; e += 256) { int y = r0 + e / 18 - 1, z = c0 + e % 18 - 1; s[e / 18][e % 18] = y >= 0 && y < h && z >= 0 && z < wd ? x[(ch * h + y) * wd + z] : 0.f; }
  __syncthreads(); int y = r0 + threadIdx.y, z = c0 + threadIdx.x; if (y >= h || z >= wd) return; float v = 0;
  for (int e = 0; e < 9; e++) v += s[threadIdx.y + e / 3][threadIdx.x + e % 3] * w[ch * 9 + e]; out[(ch * h + y) * wd + z] = v; }"""

CONV_1D = """extern "C" __global__ void k(const float* x, const float* w, float* out, int c, int n, int oc, int on) {
  extern __shared__ float s[]; int o = blockIdx.y; for (int e = threadIdx.x; e < c * 5; e += blockDim.x) s[e] = w[o * c * 5 + e]; __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= on) return; float v = 0; for (int e = 0; e < c; e++) for (int u = 0; u < 5; u++) v += x[e * n + i * 2 + u] * s[e * 5 + u]; out[o * on + i] = v; }"""


def _product(m: int, n: int, p: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {"a": normal(m, p, dtype=dtype), "b": normal(p, n, dtype=dtype, seed=1), "out": blank(m, n)}


def _multiplied(t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"out": t["a"].double() @ t["b"].double()}


def _heads(length: int, width: int, heads: int = 3) -> dict[str, torch.Tensor]:
    return {**{name: normal(heads, length, width, seed=seed) for seed, name in enumerate(("query", "key", "value"))}, "out": blank(heads, length, width)}


def _attended(causal: bool):
    return lambda t: {"out": F.scaled_dot_product_attention(*(t[name].double() for name in ("query", "key", "value")), is_causal=causal)}


KERNELS = [
    Kernel("gemm naive", "gemm", GEMM_NAIVE, (launch("k", (5, 5), (16, 16), "a", "b", "out", 70, 75, 50),), lambda: _product(70, 75, 50), _multiplied),
    Kernel("gemm shared tiles", "gemm", GEMM_TILED, (launch("k", (5, 5), (16, 16), "a", "b", "out", 70, 75, 50),), lambda: _product(70, 75, 50), _multiplied),
    Kernel("gemm register tiles", "gemm", GEMM_REGISTERS, (launch("k", (2, 2), 256, "a", "b", "out", 128, 64),), lambda: _product(128, 128, 64), _multiplied),
    Kernel("gemm cp.async", "gemm", GEMM_ASYNC, (launch("k", (4, 4), (16, 16), "a", "b", "out", 64, 96),), lambda: _product(64, 64, 96), _multiplied),
    Kernel("gemm wmma", "tensor-core gemm", GEMM_WMMA, (launch("k", (4, 3), 32, "a", "b", "out", 64, 80),),
           lambda: _product(48, 64, 80, torch.float16), _multiplied),
    Kernel("gemm mma ldmatrix", "tensor-core gemm", GEMM_MMA, (launch("k", (8, 3), 32, "a", "b", "out", 64, 80),),
           lambda: {"a": normal(48, 80, dtype=torch.bfloat16), "b": normal(64, 80, dtype=torch.bfloat16, seed=1), "out": blank(48, 64)},
           lambda t: {"out": t["a"].double() @ t["b"].double().t()}),
    Kernel("gemm int8 dp4a", "gemm", GEMM_INT8, (launch("k", (2, 24), 32, "a", "b", "out", 64, 20),),
           lambda: {"a": whole(128, 24, 80, dtype=torch.int8, low=-128), "b": whole(128, 64, 80, dtype=torch.int8, low=-128, seed=1), "out": blank(24, 64, dtype=torch.int32)},
           lambda t: {"out": t["a"].long() @ t["b"].long().t()}, 0.0),
    Kernel("gemv bf16", "gemm", GEMV, (launch("k", 13, 128, "w", "x", "out", 50, 128),),
           lambda: {"w": normal(50, 256, dtype=torch.bfloat16), "x": normal(256, dtype=torch.bfloat16, seed=1), "out": blank(50)},
           lambda t: {"out": t["w"].double() @ t["x"].double()}),
    Kernel("gemm split k", "gemm", SPLIT_K, (launch("k", (2, 20, 4), 32, "a", "b", "part", 20, 64, 150, 38), launch("add", 5, 256, "part", "out", 1280, 4)),
           lambda: _product(20, 64, 150), _multiplied, workspaces=(Workspace("part", "float32", (4, 20, 64)),)),
    Kernel("flash attention", "attention", FLASH, (launch("k", (2, 3), 64, "query", "key", "value", "out", 100, 0, 32 ** -0.5),), lambda: _heads(100, 32), _attended(False)),
    Kernel("flash attention causal", "attention", FLASH, (launch("k", (2, 3), 64, "query", "key", "value", "out", 96, 1, 32 ** -0.5),), lambda: _heads(96, 32), _attended(True)),
    Kernel("attention decode split", "attention", DECODE, (launch("k", (3, 4), 64, "query", "key", "value", "part", 150, 40, 0.125), launch("merge", 3, 64, "part", "out", 4)),
           lambda: {**_heads(150, 64), "query": normal(3, 1, 64), "out": blank(3, 1, 64)}, _attended(False), workspaces=(Workspace("part", "float32", (3, 4, 66)),)),
    Kernel("conv2d direct", "convolution", CONV_DIRECT, (launch("k", (3, 6, 2), 64, "x", "w", "bias", "out", 5, 13, 11, 6),),
           lambda: {"x": normal(2, 5, 13, 11), "w": normal(6, 5, 3, 3, seed=1), "bias": normal(6, seed=2), "out": blank(2, 6, 13, 11)},
           lambda t: {"out": F.conv2d(t["x"].double(), t["w"].double(), t["bias"].double(), padding=1)}),
    Kernel("conv2d depthwise", "convolution", CONV_DEPTHWISE, (launch("k", (2, 2, 6), (16, 16), "x", "w", "out", 30, 27),),
           lambda: {"x": normal(1, 6, 30, 27), "w": normal(6, 1, 3, 3, seed=1), "out": blank(1, 6, 30, 27)},
           lambda t: {"out": F.conv2d(t["x"].double(), t["w"].double(), padding=1, groups=6)}),
    Kernel("conv1d strided", "convolution", CONV_1D, (launch("k", (2, 8), 64, "x", "w", "out", 4, 200, 8, 98, shared=80),),
           lambda: {"x": normal(4, 200), "w": normal(8, 4, 5, seed=1), "out": blank(8, 98)},
           lambda t: {"out": F.conv1d(t["x"].double()[None], t["w"].double(), stride=2)[0]}),
]
