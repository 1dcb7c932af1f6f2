/*forge
format = 1
operator = "torch.nn.functional.group_norm"

# Two launches. gn_stats cuts each group into SPLIT slices, one block each, and leaves (mean, M2) of every slice in the
# workspace; gn_apply merges the slices of its group and writes the result. With REVERSE the second launch walks the
# tensor backwards, so that it starts on what the first one left in the L2.
# Moments: two passes over registers, then Chan's merge, so that a large mean costs no digits.

[let]
channels = "input.shape[1]"
groups = "input.shape[0] * num_groups"
group = "input.numel // groups"         # elements of a group: contiguous
hw = "input.numel // (input.shape[0] * channels)"

[tune]
BLOCK = [256, 512]
SPLIT = [16, 32, 64, 128, 256]          # slices of a group
UNROLL = [2, 4]                         # 16-byte vectors of a thread in flight
REVERSE = [0, 1]

[require]
call = ["input.dtype == 'bfloat16'", "input.contiguous", "input.align >= 16", "present(weight) and present(bias)"]
affine = ["weight.dtype == 'bfloat16'", "bias.dtype == 'bfloat16'", "weight.contiguous and bias.contiguous"]
whole = "channels % num_groups == 0 and group % SPLIT == 0 and SLICE % (BLOCK * 8 * UNROLL) == 0"
one_channel = "hw % SLICE == 0"         # a slice lies inside one channel
power_of_two = "BLOCK >= 32 and BLOCK // 32 <= 32"

[define]
CHANNELS = "channels"
HW = "hw"
SLICE = "group // SPLIT"

[[workspace]]
name = "partial"
dtype = "float32"
shape = ["groups * SPLIT", "2"]

[[launch]]
kernel = "gn_stats"
grid = ["groups * SPLIT"]
block = ["BLOCK"]
args = ["input", "partial"]

[[launch]]
kernel = "gn_apply"
grid = ["groups * SPLIT"]
block = ["BLOCK"]
args = ["input", "weight", "bias", "partial", "out", { float = "eps" }]
*/
#include <cuda_bf16.h>

constexpr int WARPS = BLOCK / 32;
constexpr unsigned ALL = 0xffffffffu;
constexpr int STEPS = SLICE / (BLOCK * 8 * UNROLL);

__device__ __forceinline__ float lo(unsigned p) { return __uint_as_float(p << 16); }
__device__ __forceinline__ float hi(unsigned p) { return __uint_as_float(p & 0xffff0000u); }
__device__ __forceinline__ unsigned pack(float a, float b) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&h);
}
__device__ __forceinline__ void fold(float& s, const uint4& v) {
    s += ((lo(v.x) + hi(v.x)) + (lo(v.y) + hi(v.y))) + ((lo(v.z) + hi(v.z)) + (lo(v.w) + hi(v.w)));
}
__device__ __forceinline__ void spread(float& s, float x, float m) { const float d = x - m; s = fmaf(d, d, s); }
__device__ __forceinline__ void fold2(float& s, const uint4& v, float m) {
    spread(s, lo(v.x), m); spread(s, hi(v.x), m); spread(s, lo(v.y), m); spread(s, hi(v.y), m);
    spread(s, lo(v.z), m); spread(s, hi(v.z), m); spread(s, lo(v.w), m); spread(s, hi(v.w), m);
}
// (x - mean) * scale + bias, the subtraction first: a constant group comes out as exactly its bias.
__device__ __forceinline__ unsigned affine2(unsigned p, float mean, float scale, float bias) {
    return pack(fmaf(lo(p) - mean, scale, bias), fmaf(hi(p) - mean, scale, bias));
}
__device__ __forceinline__ uint4 affine8(const uint4& v, float mean, float scale, float bias) {
    return make_uint4(affine2(v.x, mean, scale, bias), affine2(v.y, mean, scale, bias),
                      affine2(v.z, mean, scale, bias), affine2(v.w, mean, scale, bias));
}
// Moments (mean, M2) of two sets of `n` elements each become those of their union.
__device__ __forceinline__ void merge_equal(float& mean, float& m2, float mean_b, float m2_b, float n) {
    const float d = mean_b - mean;
    mean = fmaf(0.5f, d, mean);
    m2 = m2 + m2_b + d * d * (0.5f * n);
}
// Moments over a block, each thread holding `n` elements; every thread gets the result.
__device__ __forceinline__ float2 block_moments(float mean, float m2, float n) {
    __shared__ float2 part[WARPS];
#pragma unroll
    for (int o = 1; o < 32; o <<= 1, n *= 2.f) {
        const float mb = __shfl_xor_sync(ALL, mean, o), qb = __shfl_xor_sync(ALL, m2, o);
        merge_equal(mean, m2, mb, qb, n);
    }
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = make_float2(mean, m2);
    __syncthreads();
    const float2 p = part[threadIdx.x & (WARPS - 1)];
    mean = p.x; m2 = p.y;
#pragma unroll
    for (int o = 1; o < WARPS; o <<= 1, n *= 2.f) {
        const float mb = __shfl_xor_sync(ALL, mean, o), qb = __shfl_xor_sync(ALL, m2, o);
        merge_equal(mean, m2, mb, qb, n);
    }
    return make_float2(mean, m2);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gn_stats(const uint4* __restrict__ input, float2* __restrict__ partial) {
    const uint4* x = input + (size_t)blockIdx.x * (SLICE / 8) + threadIdx.x;
    constexpr float N = 8.f * UNROLL;
    float mean = 0.f, m2 = 0.f;
    for (int s = 0; s < STEPS; ++s) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = __ldg(x + (s * UNROLL + u) * BLOCK);
        float sum = 0.f;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) fold(sum, v[u]);
        const float m = sum / N;
        float q = 0.f;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) fold2(q, v[u], m);
        const float d = m - mean;                           // Chan: s * N elements so far, N more
        const float f = __fdividef(1.f, (float)(s + 1));
        mean = fmaf(d, f, mean);
        m2 += fmaf(d * d, (float)s * N * f, q);
    }
    const float2 r = block_moments(mean, m2, N * STEPS);
    if (threadIdx.x == 0) partial[blockIdx.x] = r;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gn_apply(const uint4* __restrict__ input, const __nv_bfloat16* __restrict__ weight, const __nv_bfloat16* __restrict__ bias,
         const float2* __restrict__ partial, uint4* __restrict__ out, float eps) {
    const int slice = REVERSE ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int group = slice / SPLIT;
    const size_t at = (size_t)slice * (SLICE / 8) + threadIdx.x;
    const int c = (int)((size_t)slice * SLICE / HW % CHANNELS);
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) v[u] = __ldcs(input + at + u * BLOCK);     // in flight while the moments are merged
    const float w = __bfloat162float(weight[c]), b = __bfloat162float(bias[c]);

    // SPLIT moments of SLICE elements: every warp merges them all by itself, two passes over registers.
    constexpr int K = (SPLIT + 31) / 32;
    float2 p[K];
    const int lane = threadIdx.x & 31;
    float mean = 0.f, m2 = 0.f;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        p[k] = k * 32 + lane < SPLIT ? __ldg(partial + group * SPLIT + k * 32 + lane) : make_float2(0.f, 0.f);
        mean += p[k].x;
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) mean += __shfl_xor_sync(ALL, mean, o);
    mean /= SPLIT;
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (k * 32 + lane < SPLIT) { const float d = p[k].x - mean; m2 += fmaf(d * d, (float)SLICE, p[k].y); }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) m2 += __shfl_xor_sync(ALL, m2, o);
    const float scale = w * rsqrtf(m2 * (1.f / SPLIT / SLICE) + eps);

#pragma unroll 1
    for (int s = 0;;) {
        uint4 next[UNROLL];
        const bool more = s + 1 < STEPS;
        if (more) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) next[u] = __ldcs(input + at + ((s + 1) * UNROLL + u) * BLOCK);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) __stcs(out + at + (s * UNROLL + u) * BLOCK, affine8(v[u], mean, scale, b));
        if (!more) break;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = next[u];
        ++s;
    }
}
