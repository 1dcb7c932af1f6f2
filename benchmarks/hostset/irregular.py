"""Scans, sorts, selections, histograms and other kernels whose accesses follow the data."""

from __future__ import annotations

import torch

from benchmarks.hostset.record import Kernel, Tensors, blank, launch, normal, whole
from forge_tui.cuda.program import Workspace

SCAN_BLOCK = """extern "C" __global__ void k(const float* x, float* out, int cols) {
  __shared__ float s[8]; int t = threadIdx.x; float carry = 0;
  for (int c = t; c - t < cols; c += 256) { float v = c < cols ? x[blockIdx.x * cols + c] : 0.f;
    for (int o = 1; o < 32; o <<= 1) { float u = __shfl_up_sync(~0u, v, o); if (t % 32 >= o) v += u; }
    if (t % 32 == 31) s[t / 32] = v; __syncthreads(); float before = carry; for (int w = 0; w < t / 32; w++) before += s[w];
    for (int w = 0; w < 8; w++) carry += s[w]; if (c < cols) out[blockIdx.x * cols + c] = v + before; __syncthreads(); } }"""

SCAN_BLELLOCH = """extern "C" __global__ void k(const int* x, int* out) { __shared__ int s[512]; int t = threadIdx.x, at = blockIdx.x * 512; s[2 * t] = x[at + 2 * t]; s[2 * t + 1] = x[at + 2 * t + 1];
  int o = 1; for (int d = 256; d; d >>= 1) { __syncthreads(); if (t < d) s[o * (2 * t + 2) - 1] += s[o * (2 * t + 1) - 1]; o *= 2; }
  if (t == 0) s[511] = 0; for (int d = 1; d < 512; d *= 2) { o >>= 1; __syncthreads(); if (t < d) { int a = o * (2 * t + 1) - 1, b = o * (2 * t + 2) - 1, v = s[a]; s[a] = s[b]; s[b] += v; } }
  __syncthreads(); out[at + 2 * t] = s[2 * t]; out[at + 2 * t + 1] = s[2 * t + 1]; }"""

SCAN_LOOKBACK = """extern "C" __global__ void k(const int* x, int* out, unsigned* ticket, volatile int* state, volatile int* total, int n) {
  // One pass over the whole vector: a tile waits for the prefix of the one before (decoupled look-back).
  __shared__ int s[4], tile, before; int t = threadIdx.x; if (t == 0) tile = atomicAdd(ticket, 1u); __syncthreads();
  int i = tile * 128 + t, v = i < n ? x[i] : 0; for (int o = 1; o < 32; o <<= 1) { int u = __shfl_up_sync(~0u, v, o); if (t % 32 >= o) v += u; }
  if (t % 32 == 31) s[t / 32] = v; __syncthreads(); for (int w = 0; w < t / 32; w++) v += s[w];
  if (t == 0) { int all = s[0] + s[1] + s[2] + s[3], sum = 0; if (tile) { while (state[tile - 1] == 0) { } __threadfence(); sum = total[tile - 1]; }
    total[tile] = sum + all; __threadfence(); state[tile] = 1; before = sum; }
  __syncthreads(); if (i < n) out[i] = v + before; }"""

SCAN_THREE = """extern "C" __global__ void sums(const float* x, float* part, int n) { __shared__ float s[256]; int t = threadIdx.x, i = blockIdx.x * 256 + t; s[t] = i < n ? x[i] : 0.f; __syncthreads();
  for (int o = 128; o; o >>= 1) { if (t < o) s[t] += s[t + o]; __syncthreads(); } if (t == 0) part[blockIdx.x] = s[0]; }
extern "C" __global__ void prefix(float* part, int n) { float v = 0; for (int i = 0; i < n; i++) { float u = part[i]; part[i] = v; v += u; } }
extern "C" __global__ void spread(const float* x, const float* part, float* out, int n) { __shared__ float s[2][256]; int t = threadIdx.x, i = blockIdx.x * 256 + t, b = 0; s[0][t] = i < n ? x[i] : 0.f; __syncthreads();
  for (int o = 1; o < 256; o <<= 1) { s[b ^ 1][t] = s[b][t] + (t >= o ? s[b][t - o] : 0.f); b ^= 1; __syncthreads(); } if (i < n) out[i] = s[b][t] + part[blockIdx.x]; }"""

SORT_BITONIC = """extern "C" __global__ void k(const float* x, float* out, int* place, int n) { __shared__ float s[256]; __shared__ int p[256]; int t = threadIdx.x;
  s[t] = t < n ? x[blockIdx.x * n + t] : INFINITY; p[t] = t; __syncthreads();
  for (int size = 2; size <= 256; size *= 2) for (int o = size / 2; o; o >>= 1) { int u = t ^ o; if (u > t) { bool up = (t & size) == 0, more = s[t] > s[u] || s[t] == s[u] && p[t] > p[u];
    if (more == up) { float v = s[t]; s[t] = s[u]; s[u] = v; int q = p[t]; p[t] = p[u]; p[u] = q; } } __syncthreads(); }
  if (t < n) { out[blockIdx.x * n + t] = s[t]; place[blockIdx.x * n + t] = p[t]; } }"""

SORT_RADIX = """extern "C" __global__ void k(const unsigned* x, unsigned* out) {
  // 256 keys a block, eight passes of four bits; ranks by match and ballots, so that equal digits stay in order.
  __shared__ unsigned s[256]; __shared__ int count[8][16], start[8][16]; int t = threadIdx.x, w = t / 32, l = t % 32; s[t] = x[blockIdx.x * 256 + t];
  for (int bit = 0; bit < 32; bit += 4) { __syncthreads(); unsigned key = s[t]; int d = key >> bit & 15; if (l < 16) count[w][l] = 0; __syncwarp();
    unsigned same = __match_any_sync(~0u, d); int rank = __popc(same & ((1u << l) - 1)); if (rank == 0) count[w][d] = __popc(same); __syncthreads();
    if (t < 128) { int ww = t / 16, dd = t % 16, before = 0; for (int e = 0; e < dd; e++) for (int v = 0; v < 8; v++) before += count[v][e]; for (int v = 0; v < ww; v++) before += count[v][dd]; start[ww][dd] = before; }
    __syncthreads(); s[start[w][d] + rank] = key; }
  __syncthreads(); out[blockIdx.x * 256 + t] = s[t]; }"""

HISTOGRAM = """extern "C" __global__ void k(const int* x, int* out, int n, int bins) { extern __shared__ int h[]; for (int b = threadIdx.x; b < bins; b += blockDim.x) h[b] = 0; __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[x[i]], 1); __syncthreads();
  for (int b = threadIdx.x; b < bins; b += blockDim.x) if (h[b]) atomicAdd(&out[b], h[b]); }"""

HISTOGRAM_WARPS = """extern "C" __global__ void k(const float* x, int* out, int n) { __shared__ int h[4][64]; int w = threadIdx.x / 32; for (int b = threadIdx.x; b < 256; b += 128) (&h[0][0])[b] = 0; __syncthreads();
  for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) { int b = min(63, max(0, (int)floorf((x[i] + 4.f) * 8.f))); atomicAdd(&h[w][b], 1); } __syncthreads();
  if (threadIdx.x < 64) atomicAdd(&out[threadIdx.x], h[0][threadIdx.x] + h[1][threadIdx.x] + h[2][threadIdx.x] + h[3][threadIdx.x]); }"""

TOPK = """extern "C" __global__ void k(const float* x, float* out, int* place, int cols, int many) {
  // A warp a row: the best of what is left, again and again.
  __shared__ bool gone[4][256]; int w = threadIdx.x / 32, l = threadIdx.x % 32, r = blockIdx.x * 4 + w; for (int c = l; c < cols; c += 32) gone[w][c] = false; __syncwarp();
  for (int j = 0; j < many; j++) { float best = -INFINITY; int at = cols; for (int c = l; c < cols; c += 32) if (!gone[w][c] && x[r * cols + c] > best) { best = x[r * cols + c]; at = c; }
    for (int o = 16; o; o >>= 1) { float v = __shfl_xor_sync(~0u, best, o); int c = __shfl_xor_sync(~0u, at, o); if (v > best || v == best && c < at) { best = v; at = c; } }
    if (l == 0) { gone[w][at] = true; out[r * many + j] = best; place[r * many + j] = at; } __syncwarp(); } }"""

GATE = """extern "C" __global__ void k(const float* x, float* weight, int* expert, int experts) {
  // A token a warp: softmax over 32 experts, the best two, their weights made to sum to one.
  int r = blockIdx.x * 4 + threadIdx.x / 32, l = threadIdx.x % 32; float v = l < experts ? x[r * experts + l] : -INFINITY, top[2]; int at[2];
  for (int j = 0; j < 2; j++) { float b = v; int c = l; for (int o = 16; o; o >>= 1) { float u = __shfl_xor_sync(~0u, b, o); int d = __shfl_xor_sync(~0u, c, o); if (u > b || u == b && d < c) { b = u; c = d; } }
    top[j] = b; at[j] = c; if (l == c) v = -INFINITY; }
  float e = __expf(top[1] - top[0]); if (l < 2) { weight[r * 2 + l] = (l ? e : 1.f) / (1.f + e); expert[r * 2 + l] = at[l]; } }"""

ARGMAX = """extern "C" __global__ void k(const float* x, unsigned long long* best, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; unsigned b = __float_as_uint(x[i]); b = b >> 31 ? ~b : b | 0x80000000u;
  atomicMax(best, (unsigned long long)b << 32 | (0xFFFFFFFFu - i)); }
extern "C" __global__ void unpack(const unsigned long long* best, int* out) { out[0] = 0xFFFFFFFFu - (unsigned)*best; }"""

LAST_BLOCK = """extern "C" __global__ void k(const float* x, float* part, unsigned* count, float* out, int n) { __shared__ float s[8]; __shared__ bool last; float v = 0; int t = threadIdx.x;
  for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) v += x[i]; for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o); if (t % 32 == 0) s[t / 32] = v; __syncthreads();
  if (t == 0) { v = 0; for (int w = 0; w < 8; w++) v += s[w]; part[blockIdx.x] = v; __threadfence(); last = atomicAdd(count, 1u) == gridDim.x - 1; } __syncthreads();
  if (last && t < 32) { v = 0; for (int b = t; b < gridDim.x; b += 32) v += ((volatile float*)part)[b]; for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o); if (t == 0) out[0] = v; } }"""

GATHER = """extern "C" __global__ void k(const long long* ids, const float4* table, float4* out, int quads) { long long r = ids[blockIdx.x]; for (int c = threadIdx.x; c < quads; c += blockDim.x) out[blockIdx.x * quads + c] = table[r * quads + c]; }"""

SCATTER = """extern "C" __global__ void k(const long long* ids, const float* x, float* out, int cols, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) atomicAdd(&out[ids[i / cols] * cols + i % cols], x[i]); }"""

SPMV = """extern "C" __global__ void k(const int* starts, const int* cols, const float* vals, const float* x, float* out, int rows) { int r = blockIdx.x * 4 + threadIdx.x / 32, l = threadIdx.x % 32; if (r >= rows) return; float v = 0;
  for (int j = starts[r] + l; j < starts[r + 1]; j += 32) v += vals[j] * x[cols[j]]; for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o); if (l == 0) out[r] = v; }"""

MAXPOOL = """extern "C" __global__ void k(const float* x, float* out, long long* place, int h, int w, int oh, int ow, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; int q = i % ow, r = i / ow % oh, p = i / (ow * oh);
  float best = -INFINITY; int at = 0; for (int u = 0; u < 3; u++) for (int v = 0; v < 3; v++) { int y = r * 2 + u - 1, z = q * 2 + v - 1; if (y >= 0 && y < h && z >= 0 && z < w && x[(p * h + y) * w + z] > best) { best = x[(p * h + y) * w + z]; at = y * w + z; } }
  out[i] = best; place[i] = at; }"""

COMPACT = """extern "C" __global__ void k(const float* x, float* out, int* kept, int cols) {
  // A row a warp: what is positive, moved to the front in order.
  int r = blockIdx.x, l = threadIdx.x, at = 0; for (int c = l; c - l < cols; c += 32) { float v = c < cols ? x[r * cols + c] : 0.f; unsigned yes = __ballot_sync(~0u, v > 0);
    if (v > 0) out[r * cols + at + __popc(yes & ((1u << l) - 1))] = v; at += __popc(yes); } if (l == 0) kept[r] = at; for (int c = at + l; c < cols; c += 32) out[r * cols + c] = 0; }"""

PHILOX = """extern "C" __global__ void k(unsigned* out, int n, int key) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; unsigned a = i, b = 0, c = 0, d = 0, x = key, y = 7;
  for (int j = 0; j < 10; j++) { unsigned p = __umulhi(0xD2511F53u, a), q = 0xD2511F53u * a, r = __umulhi(0xCD9E8D57u, c), s = 0xCD9E8D57u * c; a = r ^ b ^ x; b = s; c = p ^ d ^ y; d = q; x += 0x9E3779B9u; y += 0xBB67AE85u; }
  out[i] = a ^ b ^ c ^ d; }"""


def _sorted(t: Tensors) -> Tensors:
    found = t["x"].sort(dim=1, stable=True)
    return {"out": found.values, "place": found.indices}


def _best(t: Tensors) -> Tensors:
    found = t["x"].topk(8, dim=1)
    return {"out": found.values, "place": found.indices}


def _gated(t: Tensors) -> Tensors:
    found = t["x"].double().topk(2, dim=1)
    return {"weight": found.values.softmax(1), "expert": found.indices}


def _csr() -> Tensors:
    dense = normal(37, 90) * (normal(37, 90, seed=1) > 0.7)
    kept = dense != 0
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)])
    return {"starts": starts.int(), "cols": kept.nonzero()[:, 1].int(), "vals": dense[kept], "x": normal(90, seed=2), "out": blank(37)}


def _csr_product(t: Tensors) -> Tensors:
    rows = torch.repeat_interleave(torch.arange(37), t["starts"].diff())
    return {"out": torch.zeros(37, dtype=torch.float64).index_add(0, rows, t["vals"].double() * t["x"].double()[t["cols"].long()])}


def _pooled(t: Tensors) -> Tensors:
    out, place = torch.nn.functional.max_pool2d(t["x"], 3, 2, 1, return_indices=True)
    return {"out": out, "place": place}


def _compacted(t: Tensors) -> Tensors:
    rows = [row[row > 0] for row in t["x"]]
    return {"out": torch.stack([torch.cat([row, torch.zeros(t["x"].shape[1] - len(row))]) for row in rows]), "kept": torch.tensor([len(row) for row in rows])}


def _philox(t: Tensors) -> Tensors:
    m = 0xFFFFFFFF
    a = torch.arange(len(t["out"]))
    b, c, d, x, y = torch.zeros_like(a), torch.zeros_like(a), torch.zeros_like(a), 42, 7

    def product(constant: int, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = (v & 0xFFFF) * constant, (v >> 16) * constant
        return (high + (low >> 16)) >> 16 & m, (low + (high << 16)) & m

    for _ in range(10):
        (p, q), (r, s) = product(0xD2511F53, a), product(0xCD9E8D57, c)
        a, b, c, d = r ^ b ^ x, s, p ^ d ^ y, q
        x, y = x + 0x9E3779B9 & m, y + 0xBB67AE85 & m
    signed = a ^ b ^ c ^ d
    return {"out": torch.where(signed > 0x7FFFFFFF, signed - (1 << 32), signed)}


KERNELS = [
    Kernel("scan of rows", "scan", SCAN_BLOCK, (launch("k", 6, 256, "x", "out", 700),), lambda: {"x": normal(6, 700), "out": blank(6, 700)},
           lambda t: {"out": t["x"].double().cumsum(1)}),
    Kernel("scan blelloch", "scan", SCAN_BLELLOCH, (launch("k", 4, 256, "x", "out"),), lambda: {"x": whole(100, 4, 512), "out": blank(4, 512, dtype=torch.int32)},
           lambda t: {"out": t["x"].cumsum(1) - t["x"]}, 0.0),
    Kernel("scan decoupled look-back", "scan", SCAN_LOOKBACK, (launch("k", 20, 128, "x", "out", "ticket", "state", "total", 2500),),
           lambda: {"x": whole(50, 2500), "out": blank(2500, dtype=torch.int32)}, lambda t: {"out": t["x"].cumsum(0)}, 0.0,
           workspaces=(Workspace("ticket", "int32", (1,), 0), Workspace("state", "int32", (20,), 0), Workspace("total", "int32", (20,), 0))),
    Kernel("scan three launches", "scan", SCAN_THREE, (launch("sums", 8, 256, "x", "part", 2000), launch("prefix", 1, 1, "part", 8), launch("spread", 8, 256, "x", "part", "out", 2000)),
           lambda: {"x": normal(2000), "out": blank(2000)}, lambda t: {"out": t["x"].double().cumsum(0)}, workspaces=(Workspace("part", "float32", (8,)),)),
    Kernel("sort bitonic", "sort", SORT_BITONIC, (launch("k", 5, 256, "x", "out", "place", 200),), lambda: {"x": normal(5, 200).round(decimals=1), "out": blank(5, 200), "place": blank(5, 200, dtype=torch.int32)}, _sorted, 0.0),
    Kernel("sort radix", "sort", SORT_RADIX, (launch("k", 4, 256, "x", "out"),), lambda: {"x": whole(2**31, 4, 256), "out": blank(4, 256, dtype=torch.int32)},
           lambda t: {"out": t["x"].sort(dim=1).values}, 0.0),
    Kernel("histogram shared", "histogram", HISTOGRAM, (launch("k", 6, 128, "x", "out", 5000, 100, shared=400),), lambda: {"x": whole(100, 5000), "out": torch.zeros(100, dtype=torch.int32)},
           lambda t: {"out": torch.bincount(t["x"], minlength=100)}, 0.0, aliases={"out": "out"}),
    Kernel("histogram by warp", "histogram", HISTOGRAM_WARPS, (launch("k", 4, 128, "x", "out", 3000),), lambda: {"x": normal(3000), "out": torch.zeros(64, dtype=torch.int32)},
           lambda t: {"out": torch.bincount(((t["x"] + 4) * 8).floor().clamp(0, 63).int(), minlength=64)}, 0.0, aliases={"out": "out"}),
    Kernel("top-k by warp", "top-k", TOPK, (launch("k", 5, 128, "x", "out", "place", 200, 8),), lambda: {"x": normal(20, 200), "out": blank(20, 8), "place": blank(20, 8, dtype=torch.int32)}, _best, 0.0),
    Kernel("gate of experts", "top-k", GATE, (launch("k", 10, 128, "x", "weight", "expert", 24),), lambda: {"x": normal(40, 24), "weight": blank(40, 2), "expert": blank(40, 2, dtype=torch.int32)}, _gated),
    Kernel("argmax by atomics", "reduction", ARGMAX, (launch("k", 12, 256, "x", "best", 3000), launch("unpack", 1, 1, "best", "out")), lambda: {"x": normal(3000), "out": blank(1, dtype=torch.int32)},
           lambda t: {"out": t["x"].argmax()[None]}, 0.0, workspaces=(Workspace("best", "int64", (1,), 0),)),
    Kernel("sum by the last block", "reduction", LAST_BLOCK, (launch("k", 40, 256, "x", "part", "count", "out", 30000),), lambda: {"x": normal(30000).abs(), "out": blank(1)},
           lambda t: {"out": t["x"].double().sum()[None]}, workspaces=(Workspace("part", "float32", (40,)), Workspace("count", "int32", (1,), 0))),
    Kernel("embedding rows", "gather", GATHER, (launch("k", 50, 32, "ids", "table", "out", 24),), lambda: {"ids": whole(80, 50, dtype=torch.int64), "table": normal(80, 96), "out": blank(50, 96)},
           lambda t: {"out": t["table"][t["ids"]]}, 0.0),
    Kernel("scatter add", "gather", SCATTER, (launch("k", 10, 256, "ids", "x", "out", 40, 2400),), lambda: {"ids": whole(20, 60, dtype=torch.int64), "x": normal(60, 40), "out": torch.zeros(20, 40)},
           lambda t: {"out": torch.zeros(20, 40, dtype=torch.float64).index_add(0, t["ids"], t["x"].double())}, aliases={"out": "out"}),
    Kernel("sparse matrix by vector", "gather", SPMV, (launch("k", 10, 128, "starts", "cols", "vals", "x", "out", 37),), _csr, _csr_product),
    Kernel("max pool with places", "pooling", MAXPOOL, (launch("k", 3, 256, "x", "out", "place", 21, 17, 11, 9, 594),), lambda: {"x": normal(1, 6, 21, 17), "out": blank(1, 6, 11, 9), "place": blank(1, 6, 11, 9, dtype=torch.int64)}, _pooled, 0.0),
    Kernel("compaction by ballots", "selection", COMPACT, (launch("k", 12, 32, "x", "out", "kept", 150),), lambda: {"x": normal(12, 150), "out": blank(12, 150), "kept": blank(12, dtype=torch.int32)}, _compacted, 0.0),
    Kernel("philox", "random numbers", PHILOX, (launch("k", 8, 128, "out", 1000, 42),), lambda: {"out": blank(1000, dtype=torch.int32)}, _philox, 0.0),
]
