/*forge
format = 1
operator = "@OPERATOR@"

# One cooperative launch, one read and one write of every byte, groups of any size up to what the chip's shared memory
# holds. The tensor is a list of tiles (WARPS * CHUNK elements), dealt to the blocks in turn, one block per multiprocessor.
# Every warp streams its own CHUNK of each tile through a private ring of SLOTS buffers, filled by bulk copies:
#   step s:  take the moments of tile s;  normalize and write tile s - HOLD, whose buffer is then refilled.
# The HOLD tiles in between wait in shared memory for the other blocks' moments, so nobody idles at a grid barrier.
# A tile's (mean, M2) is one 64-bit word of the workspace; zero, which the grid writes first, means "not there yet", so no
# counter and no fence is needed. WATCH extra warps collect a group's words and hand (mean, rstd) to the other warps.
# No deadlock: a warp that waits for group g has HOLD tiles of moments behind it, and [require] makes HOLD at least the
# number of turns that a group's tiles span, so all of g's moments are already out or on their way.

[let]
channels = "input.shape[1]"
groups = "input.shape[0] * num_groups"
group = "input.numel // max(groups, 1)" # elements of a group: contiguous
plane = "input.numel // max(input.shape[0] * channels, 1)"
pack = "16 // input.itemsize"           # elements of one access

[tune]
WARPS = [8, 16]
CHUNK = [2048, 1024]                    # elements of a warp's piece of a tile
SLOTS = [6, 4, 12, 3, 13]
HOLD = [4, 1, 2, 10, 8]
WATCH = [2]
STREAM = [1, 0, 2]                      # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@, "cc >= 90", "input.align >= 16", "out.itemsize == input.itemsize", "channels % num_groups == 0"]
whole = "group % (WARPS * CHUNK) == 0"
one_channel = "plane % CHUNK == 0"      # a warp's chunk lies inside one channel
no_deadlock = "HOLD >= ceil_div(group // (WARPS * CHUNK) - 1, min(sm_count, input.numel // (WARPS * CHUNK))) and SLOTS >= HOLD + 2"
deep = "HOLD <= 4 or group // (WARPS * CHUNK) > 4 * sm_count"       # long holds are for groups of many turns
words = "group // (WARPS * CHUNK) <= 1024 and groups <= 1024"
fits = "SLOTS * WARPS * CHUNK * input.itemsize + channels * 8 + WARPS * SLOTS * 8 + groups * 16 + (HOLD + 2) * (WARPS * 8 + 8) <= max_shared"
worth = "SLOTS * WARPS * CHUNK * input.itemsize * 3 >= max_shared"

[define]
CHANNELS = "channels"
GROUPS = "groups"
PLANE = "plane"
PACK = "pack"
TILES = "input.numel // (WARPS * CHUNK)"
PER_GROUP = "group // (WARPS * CHUNK)"
BLOCKS = "min(sm_count, input.numel // (WARPS * CHUNK))"

[[workspace]]
name = "partial"
dtype = "int64"
shape = ["TILES"]

[[launch]]
kernel = "group_stream"
cooperative = true
grid = ["BLOCKS"]
block = ["(WARPS + WATCH) * 32"]
shared = "SLOTS * WARPS * CHUNK * input.itemsize + channels * 8 + WARPS * SLOTS * 8 + groups * 16 + (HOLD + 2) * (WARPS * 8 + 8)"
args = ["input", "partial", "out"@ARGS@]
*/
#include <forge.cuh>

typedef unsigned long long u64;
constexpr forge::cache KEEP = forge::store_hint(STREAM);
constexpr int THREADS = (WARPS + WATCH) * 32, TILE = WARPS * CHUNK;
constexpr int VECS = CHUNK / (32 * PACK), N = VECS * PACK;  // accesses and elements of a lane in a chunk
constexpr int NOTES = HOLD + 2;                             // tiles whose warp moments can be pending in a block

__device__ __forceinline__ u64 word_load(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void word_store(u64* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// A tile's moments as one word. M2 is never negative: its sign bit is the "it is there" mark.
__device__ __forceinline__ u64 marked(float mean, float m2) {
    return forge::pack2(mean, __uint_as_float(__float_as_uint(m2) | 0x80000000u));
}
__device__ __forceinline__ float m2_of(u64 word) { return __uint_as_float((unsigned)(word >> 32) & 0x7fffffffu); }
__device__ __forceinline__ float mean_of(u64 word) { return __uint_as_float((unsigned)word); }
@AFTER@
extern "C" __global__ void __launch_bounds__(THREADS, 1)
group_stream(const DTYPE_input* __restrict__ input, u64* __restrict__ partial, DTYPE_out* __restrict__ out@PARAMETERS@) {
    extern __shared__ __align__(128) unsigned char smem[];
    DTYPE_input* ring = reinterpret_cast<DTYPE_input*>(smem);                  // [WARPS][SLOTS][CHUNK]
    float2* gain = reinterpret_cast<float2*>(ring + SLOTS * TILE);             // [CHANNELS] (weight, bias)
    forge::barrier* full = reinterpret_cast<forge::barrier*>(gain + CHANNELS); // [WARPS][SLOTS] a chunk has arrived
    forge::barrier* ready = full + WARPS * SLOTS;                              // [GROUPS] its moments are known
    float2* known = reinterpret_cast<float2*>(ready + GROUPS);                 // [GROUPS] (mean, rstd)
    float2* note = known + GROUPS;                                             // [NOTES][WARPS] moments of a tile's chunks
    unsigned* noted = reinterpret_cast<unsigned*>(note + NOTES * WARPS);       // [NOTES] how many of them are written

    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int step = gridDim.x, mine = (TILES - (int)blockIdx.x + step - 1) / step;

    // Each warp starts its own stream at once; everything else is set up while the first bytes are on their way.
    DTYPE_input* slots = ring + warp * (SLOTS * CHUNK);
    forge::barrier* arrived = full + warp * SLOTS;
    const DTYPE_input* source = input + (size_t)blockIdx.x * TILE + warp * CHUNK;
    const size_t stride = (size_t)step * TILE;
    constexpr unsigned BYTES = CHUNK * sizeof(DTYPE_input);
    if (warp < WARPS && lane == 0) {
        for (int k = 0; k < SLOTS; ++k) forge::barrier_init(arrived + k, 1);
        forge::barrier_init_fence();
        for (int k = 0; k < SLOTS && k < mine; ++k) {
            forge::barrier_expect(arrived + k, BYTES);
            forge::bulk_load(slots + k * CHUNK, source + k * stride, BYTES, arrived + k);
        }
    }
    for (int i = tid; i < GROUPS; i += THREADS) forge::barrier_init(ready + i, 1);
    for (int i = tid; i < NOTES; i += THREADS) noted[i] = 0;
    for (int i = tid; i < CHANNELS; i += THREADS) gain[i] = make_float2(@WEIGHT@, @BIAS@);
    for (int i = blockIdx.x * THREADS + tid; i < TILES; i += step * THREADS) partial[i] = 0;
    forge::grid_sync();                                     // hidden behind the first bytes; a memset ahead would not be

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
                for (int k = 0; k < K; ++k) {
                    w[k] = got[k];
                    missing |= k * 32 + lane < PER_GROUP && w[k] == 0;
                }
                if (!missing) break;
                __nanosleep(100);
            }
            __threadfence_block();
            __syncwarp();
            float mean = 0.f, m2 = 0.f;
#pragma unroll
            for (int k = 0; k < K; ++k) mean += mean_of(w[k]);
            mean = forge::warp_sum(mean) / PER_GROUP;
#pragma unroll
            for (int k = 0; k < K; ++k)
                if (k * 32 + lane < PER_GROUP) {
                    const float apart = mean_of(w[k]) - mean;
                    m2 += fmaf(apart * apart, (float)TILE, m2_of(w[k]));
                }
            m2 = forge::warp_sum(m2);
            if (lane == 0) {
                known[g] = make_float2(mean, rsqrtf(m2 * (1.f / PER_GROUP / TILE) + eps));
                forge::barrier_arrive(ready + g);           // releases the store above
            }
            __syncwarp();
        }
        return;
    }

    DTYPE_out* target = out + (size_t)blockIdx.x * TILE + warp * CHUNK + lane * PACK;
    int slot = 0, parity = 0, note_slot = 0, old_slot = 0, group = -1;
    float mean = 0.f, rstd = 0.f;
    for (int s = 0; s < mine + HOLD; ++s) {
        if (s < mine) {                                     // ---- moments of tile s
            forge::barrier_wait(arrived + slot, parity);
            float x[N];
#pragma unroll
            for (int i = 0; i < VECS; ++i) forge::load<PACK>(slots + slot * CHUNK + (i * 32 + lane) * PACK, x + i * PACK);
            const forge::moments own = forge::moments_of<N>(x);
            float m = own.mean, q = own.m2, n = N;
#pragma unroll
            for (int o = 1; o < 32; o <<= 1, n *= 2.f) {
                const float mb = __shfl_xor_sync(forge::all_lanes, m, o), qb = __shfl_xor_sync(forge::all_lanes, q, o);
                forge::merge_equal(m, q, mb, qb, n);
            }
            unsigned before = 0;
            if (lane == 0) {
                note[note_slot * WARPS + warp] = make_float2(m, q);
                __threadfence_block();
                before = atomicAdd(noted + note_slot, 1u);
            }
            before = __shfl_sync(forge::all_lanes, before, 0);
            if (before == WARPS - 1) {                      // the last warp of this tile publishes it
                __threadfence_block();
                const volatile float2* p = note + note_slot * WARPS + lane % WARPS;
                m = p->x;
                q = p->y;
#pragma unroll
                for (int o = 1; o < WARPS; o <<= 1, n *= 2.f) {
                    const float mb = __shfl_xor_sync(forge::all_lanes, m, o), qb = __shfl_xor_sync(forge::all_lanes, q, o);
                    forge::merge_equal(m, q, mb, qb, n);
                }
                if (lane == 0) {
                    noted[note_slot] = 0;
                    __threadfence_block();
                    word_store(partial + blockIdx.x + (size_t)s * step, marked(m, q));
                }
            }
            if (++slot == SLOTS) { slot = 0; parity ^= 1; }
            if (++note_slot == NOTES) note_slot = 0;
        }
        const int c = s - HOLD;
        if (c >= 0) {                                       // ---- result of tile c
            const int t = blockIdx.x + c * step, g = t / PER_GROUP;
            if (g != group) {
                forge::barrier_wait(ready + g, 0);
                mean = known[g].x;
                rstd = known[g].y;
                group = g;
            }
            const float2 wb = gain[(int)(((size_t)t * TILE + warp * CHUNK) / PLANE % CHANNELS)];
            const float scale = rstd * wb.x;
            float x[N];
#pragma unroll
            for (int i = 0; i < VECS; ++i) forge::load<PACK>(slots + old_slot * CHUNK + (i * 32 + lane) * PACK, x + i * PACK);
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = @RESULT@;
#pragma unroll
            for (int i = 0; i < VECS; ++i) forge::store<PACK, KEEP>(target + c * stride + i * 32 * PACK, x + i * PACK);
            __syncwarp();                                   // every lane has read the buffer
            if (lane == 0 && c + SLOTS < mine) {
                forge::barrier_expect(arrived + old_slot, BYTES);
                forge::bulk_load(slots + old_slot * CHUNK, source + (c + SLOTS) * stride, BYTES, arrived + old_slot);
            }
            if (++old_slot == SLOTS) old_slot = 0;
        }
    }
}
