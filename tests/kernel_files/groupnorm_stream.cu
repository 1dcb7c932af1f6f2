/*forge
format = 1
operator = "torch.nn.functional.group_norm"

# One cooperative launch, one read and one write of every byte, groups of any size up to what the chip's shared memory
# holds. The tensor is a list of tiles (WARPS * CHUNK elements), dealt to the blocks in turn, one block per SM. Every
# warp streams its own CHUNK of each tile through a private ring of SLOTS buffers, filled by bulk copies:
#   step s:  take the moments of tile s;  normalize and write tile s - HOLD, whose buffer is then refilled.
# The HOLD tiles in between wait in shared memory for the other blocks' moments, so nobody idles at a grid barrier.
# A tile's (mean, M2) is one 64-bit word of the workspace; zero means "not there yet", so no counter and no fence is
# needed. WATCH extra warps collect a group's words and hand (mean, rstd) to the other warps.
# No deadlock: a warp that waits for group g has HOLD tiles of moments behind it, and [require] makes HOLD at least the
# number of turns that a group's tiles span, so all of g's moments are already out or on their way.

[let]
channels = "input.shape[1]"
groups = "input.shape[0] * num_groups"
group = "input.numel // groups"         # elements of a group: contiguous
hw = "input.numel // (input.shape[0] * channels)"

[tune]
WARPS = [8, 16]
CHUNK = [1024, 2048]                    # elements of a warp's piece of a tile
SLOTS = [4, 6, 12]
HOLD = [1, 2, 4]
WATCH = [2]
STREAM = [1]                            # 1: stores marked as not to be kept in the L2

[require]
call = ["input.dtype == 'bfloat16'", "input.contiguous", "input.align >= 16", "present(weight) and present(bias)"]
affine = ["weight.dtype == 'bfloat16'", "bias.dtype == 'bfloat16'", "weight.contiguous and bias.contiguous"]
whole = "channels % num_groups == 0 and group % TILE == 0 and input.numel % TILE == 0"
one_channel = "hw % CHUNK == 0"         # a warp's chunk lies inside one channel
no_deadlock = "HOLD >= ceil_div(PER_GROUP - 1, BLOCKS) and SLOTS >= HOLD + 2"
words = "PER_GROUP <= 512 and groups <= 1024"
fits = "SHARED <= max_shared and RING * 3 >= max_shared"

[define]
CHANNELS = "channels"
GROUPS = "groups"
HW = "hw"
TILE = "WARPS * CHUNK"
TILES = "input.numel // TILE"
PER_GROUP = "group // TILE"
BLOCKS = "min(sm_count, TILES)"
RING = "SLOTS * TILE * 2"
SHARED = "RING + channels * 8 + WARPS * SLOTS * 8 + groups * 16 + (HOLD + 2) * (WARPS * 8 + 8)"

[[workspace]]
name = "partial"
dtype = "int32"
shape = ["TILES", "2"]
fill = 0

[[launch]]
kernel = "gn_stream"
cooperative = true
grid = ["BLOCKS"]
block = ["(WARPS + WATCH) * 32"]
shared = "SHARED"
args = ["input", "weight", "bias", "partial", "out", { float = "eps" }]
*/
#include <cuda_bf16.h>

typedef unsigned long long u64;
constexpr unsigned ALL = 0xffffffffu;
constexpr int VECS = CHUNK / 256;                           // 16-byte vectors of a lane in a chunk
constexpr int NOTES = HOLD + 2;                             // tiles whose warp moments can be pending in a block

// -- ptx
__device__ __forceinline__ unsigned saddr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void mbar_init(u64* b, unsigned n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(saddr(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void mbar_init_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void mbar_expect(u64* b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(saddr(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(u64* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(saddr(b)) : "memory");
}
__device__ __forceinline__ bool mbar_test(u64* b, unsigned parity) {
    unsigned ok;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ok) : "r"(saddr(b)), "r"(parity) : "memory");
    return ok != 0;
}
__device__ __forceinline__ void mbar_wait(u64* b, unsigned parity) { while (!mbar_test(b, parity)) {} }
__device__ __forceinline__ void bulk_load(void* dst, const void* src, unsigned bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(saddr(dst)), "l"(src), "r"(bytes), "r"(saddr(b)) : "memory");
}
__device__ __forceinline__ u64 word_load(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void word_store(u64* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
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
// A tile's moments as one word. M2 is never negative: its sign bit is the "it is there" mark.
__device__ __forceinline__ u64 word(float mean, float m2) {
    return (u64)(__float_as_uint(m2) | 0x80000000u) << 32 | __float_as_uint(mean);
}

extern "C" __global__ void __launch_bounds__((WARPS + WATCH) * 32, 1)
gn_stream(const uint4* __restrict__ input, const __nv_bfloat16* __restrict__ weight,
          const __nv_bfloat16* __restrict__ bias, u64* __restrict__ partial, uint4* __restrict__ out, float eps) {
    extern __shared__ __align__(128) unsigned char smem[];
    uint4* ring = reinterpret_cast<uint4*>(smem);                               // [WARPS][SLOTS][CHUNK]
    float2* gain = reinterpret_cast<float2*>(smem + SLOTS * WARPS * CHUNK * 2); // [CHANNELS] (weight, bias)
    u64* full = reinterpret_cast<u64*>(gain + CHANNELS);                        // [WARPS][SLOTS] a chunk has arrived
    u64* ready = full + WARPS * SLOTS;                                          // [GROUPS] its moments are known
    float2* moments = reinterpret_cast<float2*>(ready + GROUPS);                // [GROUPS] (mean, rstd)
    float2* note = moments + GROUPS;                                            // [NOTES][WARPS] moments of a tile's chunks
    unsigned* noted = reinterpret_cast<unsigned*>(note + NOTES * WARPS);        // [NOTES] how many of them are written

    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int step = gridDim.x, mine = (TILES - (int)blockIdx.x + step - 1) / step;
    constexpr int TILE_VECS = WARPS * CHUNK / 8, CHUNK_VECS = CHUNK / 8;

    // Each warp starts its own stream at once; everything else is set up while the first bytes are on their way.
    uint4* slots = ring + warp * SLOTS * CHUNK_VECS;
    u64* arrived = full + warp * SLOTS;
    const uint4* source = input + (size_t)blockIdx.x * TILE_VECS + warp * CHUNK_VECS;
    const size_t stride = (size_t)step * TILE_VECS;
    if (warp < WARPS && lane == 0) {
        for (int k = 0; k < SLOTS; ++k) mbar_init(arrived + k, 1);
        mbar_init_fence();
        for (int k = 0; k < SLOTS && k < mine; ++k) {
            mbar_expect(arrived + k, CHUNK * 2);
            bulk_load(slots + k * CHUNK_VECS, source + k * stride, CHUNK * 2, arrived + k);
        }
    }
    for (int i = tid; i < GROUPS; i += (WARPS + WATCH) * 32) mbar_init(ready + i, 1);
    for (int i = tid; i < NOTES; i += (WARPS + WATCH) * 32) noted[i] = 0;
    for (int i = tid; i < CHANNELS; i += (WARPS + WATCH) * 32)
        gain[i] = make_float2(__bfloat162float(weight[i]), __bfloat162float(bias[i]));
    __syncthreads();

    if (warp >= WARPS) {                                    // ---- a watcher: every WATCH-th group of this block
        constexpr int K = (PER_GROUP + 31) / 32;
        int turn = WARPS, last = -1;
        for (int s = 0; s < mine; ++s) {
            const int g = (int)(blockIdx.x + s * step) / PER_GROUP;
            if (g == last) continue;
            last = g;
            const bool ours = turn == warp;
            turn = turn + 1 == WARPS + WATCH ? WARPS : turn + 1;
            if (!ours) continue;
            const u64* p = partial + (size_t)g * PER_GROUP + lane;
            u64 w[K];
#pragma unroll
            for (int k = 0; k < K; ++k) w[k] = 0;
            for (;;) {
                bool missing = false;
                u64 got[K];
#pragma unroll
                for (int k = 0; k < K; ++k) got[k] = k * 32 + lane < PER_GROUP && w[k] == 0 ? word_load(p + k * 32) : w[k];
#pragma unroll
                for (int k = 0; k < K; ++k) { w[k] = got[k]; missing |= k * 32 + lane < PER_GROUP && w[k] == 0; }
                if (!missing) break;
                __nanosleep(100);
            }
            __threadfence_block();
            __syncwarp();
            float mean = 0.f, m2 = 0.f;
#pragma unroll
            for (int k = 0; k < K; ++k) mean += __uint_as_float((unsigned)w[k]);
#pragma unroll
            for (int o = 16; o > 0; o >>= 1) mean += __shfl_xor_sync(ALL, mean, o);
            mean /= PER_GROUP;
#pragma unroll
            for (int k = 0; k < K; ++k)
                if (k * 32 + lane < PER_GROUP) {
                    const float d = __uint_as_float((unsigned)w[k]) - mean;
                    m2 += fmaf(d * d, (float)(WARPS * CHUNK), __uint_as_float((unsigned)(w[k] >> 32) & 0x7fffffffu));
                }
#pragma unroll
            for (int o = 16; o > 0; o >>= 1) m2 += __shfl_xor_sync(ALL, m2, o);
            if (lane == 0) {
                moments[g] = make_float2(mean, rsqrtf(m2 * (1.f / PER_GROUP / (WARPS * CHUNK)) + eps));
                mbar_arrive(ready + g);                     // releases the store above
            }
            __syncwarp();
        }
        return;
    }

    uint4* target = out + (size_t)blockIdx.x * TILE_VECS + warp * CHUNK_VECS + lane;
    int slot = 0, parity = 0, note_slot = 0, old_slot = 0, known = -1;
    float mean = 0.f, rstd = 0.f;
    for (int s = 0; s < mine + HOLD; ++s) {
        if (s < mine) {                                     // ---- moments of tile s
            mbar_wait(arrived + slot, parity);
            const uint4* x = slots + slot * CHUNK_VECS + lane;
            uint4 v[VECS];
#pragma unroll
            for (int i = 0; i < VECS; ++i) v[i] = x[i * 32];
            float m = 0.f, q = 0.f, n = 8.f * VECS;
#pragma unroll
            for (int i = 0; i < VECS; ++i) fold(m, v[i]);
            m /= 8 * VECS;
#pragma unroll
            for (int i = 0; i < VECS; ++i) fold2(q, v[i], m);
#pragma unroll
            for (int o = 1; o < 32; o <<= 1, n *= 2.f) {
                const float mb = __shfl_xor_sync(ALL, m, o), qb = __shfl_xor_sync(ALL, q, o);
                merge_equal(m, q, mb, qb, n);
            }
            unsigned before = 0;
            if (lane == 0) {
                note[note_slot * WARPS + warp] = make_float2(m, q);
                __threadfence_block();
                before = atomicAdd(noted + note_slot, 1u);
            }
            before = __shfl_sync(ALL, before, 0);
            if (before == WARPS - 1) {                      // the last warp of this tile publishes it
                __threadfence_block();
                const volatile float2* p = note + note_slot * WARPS + (lane & (WARPS - 1));
                m = p->x; q = p->y;
#pragma unroll
                for (int o = 1; o < WARPS; o <<= 1, n *= 2.f) {
                    const float mb = __shfl_xor_sync(ALL, m, o), qb = __shfl_xor_sync(ALL, q, o);
                    merge_equal(m, q, mb, qb, n);
                }
                if (lane == 0) {
                    noted[note_slot] = 0;
                    __threadfence_block();
                    word_store(partial + blockIdx.x + s * step, word(m, q));
                }
            }
            if (++slot == SLOTS) { slot = 0; parity ^= 1; }
            if (++note_slot == NOTES) note_slot = 0;
        }
        const int c = s - HOLD;
        if (c >= 0) {                                       // ---- result of tile c
            const int t = blockIdx.x + c * step, g = t / PER_GROUP;
            if (g != known) {
                mbar_wait(ready + g, 0);
                mean = moments[g].x; rstd = moments[g].y;
                known = g;
            }
            const float2 wb = gain[(int)(((size_t)t * (WARPS * CHUNK) + warp * CHUNK) / HW % CHANNELS)];
            const float scale = rstd * wb.x;
            const uint4* x = slots + old_slot * CHUNK_VECS + lane;
            uint4* y = target + c * stride;
            uint4 v[VECS];
#pragma unroll
            for (int i = 0; i < VECS; ++i) v[i] = x[i * 32];
#pragma unroll
            for (int i = 0; i < VECS; ++i) {
                const uint4 r = affine8(v[i], mean, scale, wb.y);
                if (STREAM) __stcs(y + i * 32, r); else y[i * 32] = r;
            }
            __syncwarp();                                   // every lane has read the buffer
            if (lane == 0 && c + SLOTS < mine) {
                mbar_expect(arrived + old_slot, CHUNK * 2);
                bulk_load(slots + old_slot * CHUNK_VECS, source + (c + SLOTS) * stride, CHUNK * 2, arrived + old_slot);
            }
            if (++old_slot == SLOTS) old_slot = 0;
        }
    }
}
