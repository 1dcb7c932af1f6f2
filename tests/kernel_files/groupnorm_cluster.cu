/*forge
format = 1
operator = "torch.nn.functional.group_norm"

# One launch, one read, one write: a thread-block cluster holds a whole group in shared memory, brought there by bulk
# copies (no registers, everything in flight at once). The moments of a piece are taken as soon as the piece is there.
# The blocks exchange (mean, M2) by asynchronous remote stores that complete on the receiver's barrier: no cluster-wide
# barrier and no memory fence between the last load and the first store.
# CLUSTER = 16 needs the launcher to allow a non-portable cluster size.

[let]
channels = "input.shape[1]"
groups = "input.shape[0] * num_groups"
group = "input.numel // groups"         # elements of a group: contiguous
hw = "input.numel // (input.shape[0] * channels)"

[tune]
BLOCK = [256, 512, 1024]
CLUSTER = [4, 8, 16]                    # blocks of a cluster = of a group
PIECES = [2, 4]                         # bulk copies of a block
STREAM = [0, 1]                         # 1: stores marked as not to be kept in the L2

[require]
clusters = "CLUSTER <= max_cluster"
call = ["input.dtype == 'bfloat16'", "input.contiguous", "input.align >= 16", "present(weight) and present(bias)"]
affine = ["weight.dtype == 'bfloat16'", "bias.dtype == 'bfloat16'", "weight.contiguous and bias.contiguous"]
whole = "channels % num_groups == 0 and group % (CLUSTER * PIECES * BLOCK * 8) == 0"
one_channel = "hw % (BLOCK * 8) == 0"   # a vector step of a block lies inside one channel
registers = "VECS >= 1 and VECS <= 8 and (VECS * 4 + 30) * BLOCK <= 65536"
shared = "BYTES <= max_shared - 2048"
streaming = "STREAM == 1 or input.numel <= 16777216"

[define]
CHANNELS = "channels"
HW = "hw"
BYTES = "group // CLUSTER * 2"            # of a block
VECS = "group // CLUSTER // (PIECES * BLOCK * 8)"
RESIDENT = "max(1, min(ceil_div(groups * CLUSTER, sm_count), 232448 // (BYTES + 3072), 2048 // BLOCK, 65536 // (BLOCK * (VECS * 4 + 30))))"

[[launch]]
kernel = "gn_cluster_shared"
grid = ["groups * CLUSTER"]
cluster = ["CLUSTER"]
block = ["BLOCK"]
shared = "BYTES"
args = ["input", "weight", "bias", "out", { float = "eps" }]
*/
#include <cuda_bf16.h>

typedef unsigned long long u64;
constexpr int WARPS = BLOCK / 32;
constexpr unsigned ALL = 0xffffffffu;
constexpr int PIECE = VECS * BLOCK * 8;                     // elements of one bulk copy
constexpr int PER_BLOCK = PIECES * PIECE;
// Channels that a block's span can touch.
constexpr int SPAN = (PER_BLOCK + HW - 1) / HW + (HW % PER_BLOCK == 0 || PER_BLOCK % HW == 0 ? 0 : 1);

// -- ptx
__device__ __forceinline__ unsigned saddr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void mbar_init(u64* b, unsigned n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(saddr(b)), "r"(n) : "memory");
}
// Initialized barriers become visible to the cluster and to the copy engine.
__device__ __forceinline__ void mbar_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void mbar_expect(u64* b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(saddr(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool mbar_test(u64* b, unsigned parity) {
    unsigned ok;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ok) : "r"(saddr(b)), "r"(parity) : "memory");
    return ok != 0;
}
__device__ __forceinline__ void mbar_wait(u64* b, unsigned parity) { while (!mbar_test(b, parity)) {} }
__device__ __forceinline__ void bulk_load(void* dst, const void* src, unsigned bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(saddr(dst)), "l"(src), "r"(bytes), "r"(saddr(b)) : "memory");
}
__device__ __forceinline__ int cluster_rank() { unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return (int)r; }
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Send 8 bytes to `p` in the shared memory of the block with that rank; they count on that block's barrier `b`.
__device__ __forceinline__ void cluster_send(u64* p, u64* b, int rank, u64 v) {
    asm volatile("{\n.reg .b32 d, m;\nmapa.shared::cluster.u32 d, %0, %2;\nmapa.shared::cluster.u32 m, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [d], %3, [m];\n}"
                 ::"r"(saddr(p)), "r"(saddr(b)), "r"(rank), "l"(v) : "memory");
}
// -- end

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

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
gn_cluster_shared(const uint4* __restrict__ input, const __nv_bfloat16* __restrict__ weight,
                  const __nv_bfloat16* __restrict__ bias, uint4* __restrict__ out, float eps) {
    extern __shared__ __align__(128) uint4 data[];          // [PER_BLOCK / 8]
    __shared__ u64 full[PIECES], mail, box[CLUSTER];
    __shared__ float2 warp_part[WARPS];
    __shared__ float2 gain[SPAN];                           // (weight, bias) of the channels this block touches
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const size_t first = (size_t)blockIdx.x * PER_BLOCK;    // a cluster's blocks are neighbours: rank order = memory order
    if (tid == 0) {
        for (int p = 0; p < PIECES; ++p) mbar_init(&full[p], 1);
        mbar_init(&mail, 1);
        mbar_init_fence();
        for (int p = 0; p < PIECES; ++p) {
            mbar_expect(&full[p], PIECE * 2);
            bulk_load(data + p * (PIECE / 8), input + first / 8 + p * (PIECE / 8), PIECE * 2, &full[p]);
        }
        mbar_expect(&mail, CLUSTER * 8);
    }
    if (tid < SPAN) {
        const int c = (int)(first / HW + tid) % CHANNELS;
        gain[tid] = make_float2(__bfloat162float(weight[c]), __bfloat162float(bias[c]));
    }
    __syncthreads();
    cluster_arrive_relaxed();                               // "my barriers are there": waited for before the first message

    constexpr float N = 8.f * VECS;
    float mean = 0.f, m2 = 0.f;
#pragma unroll 1
    for (int p = 0; p < PIECES; ++p) {
        mbar_wait(&full[p], 0);
        const uint4* x = data + p * (PIECE / 8) + tid;
        uint4 v[VECS];
#pragma unroll
        for (int i = 0; i < VECS; ++i) v[i] = x[i * BLOCK];
        float m = 0.f, q = 0.f;
#pragma unroll
        for (int i = 0; i < VECS; ++i) fold(m, v[i]);
        m /= 8 * VECS;
#pragma unroll
        for (int i = 0; i < VECS; ++i) fold2(q, v[i], m);
        const float d = m - mean, f = __fdividef(1.f, (float)(p + 1));      // Chan: p * N elements so far, N more
        mean = fmaf(d, f, mean);
        m2 += fmaf(d * d, (float)p * N * f, q);
    }
    float n = N * PIECES;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1, n *= 2.f) {
        const float mb = __shfl_xor_sync(ALL, mean, o), qb = __shfl_xor_sync(ALL, m2, o);
        merge_equal(mean, m2, mb, qb, n);
    }
    if (lane == 0) warp_part[warp] = make_float2(mean, m2);
    __syncthreads();
    cluster_wait();
    if (warp == 0) {
        const float2 p = warp_part[lane & (WARPS - 1)];
        mean = p.x; m2 = p.y;
#pragma unroll
        for (int o = 1; o < WARPS; o <<= 1, n *= 2.f) {
            const float mb = __shfl_xor_sync(ALL, mean, o), qb = __shfl_xor_sync(ALL, m2, o);
            merge_equal(mean, m2, mb, qb, n);
        }
        if (lane < CLUSTER)
            cluster_send(&box[cluster_rank()], &mail, lane, (u64)__float_as_uint(m2) << 32 | __float_as_uint(mean));
    }
    mbar_wait(&mail, 0);                                    // every block's moments are here; nobody writes here any more
    n = (float)PER_BLOCK;
    const u64 word = box[lane & (CLUSTER - 1)];
    mean = __uint_as_float((unsigned)word); m2 = __uint_as_float((unsigned)(word >> 32));
#pragma unroll
    for (int o = 1; o < CLUSTER; o <<= 1, n *= 2.f) {
        const float mb = __shfl_xor_sync(ALL, mean, o), qb = __shfl_xor_sync(ALL, m2, o);
        merge_equal(mean, m2, mb, qb, n);
    }
    const float rstd = rsqrtf(m2 * (1.f / CLUSTER / PER_BLOCK) + eps);
    uint4* y = out + first / 8 + tid;
    const int start = (int)(first % HW);                    // where in its first channel the block begins
#pragma unroll 4
    for (int i = 0; i < VECS * PIECES; ++i) {
        const float2 g = gain[HW % PER_BLOCK == 0 ? 0 : (start + i * BLOCK * 8) / HW];
        const uint4 r = affine8(data[i * BLOCK + tid], mean, rstd * g.x, g.y);
        if (STREAM) __stcs(y + i * BLOCK, r); else y[i * BLOCK] = r;
    }
}
