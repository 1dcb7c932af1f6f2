/*forge
format = 1
operator = "@OPERATOR@"

# One cooperative launch, one read and one write of every byte, groups of any size up to what the chip's shared memory and
# registers hold. The tensor is a list of tiles (WARPS * CHUNK elements), dealt to the blocks in turn, one block per
# multiprocessor. Every warp moves its own CHUNK of each tile through a private relay:
#   step s:  take the moments of tile s, in the ring of SLOTS buffers that bulk copies fill;
#            normalize and write tile s - RING - KEPT, which is in registers;
#            take tile s - RING from its buffer into those registers, and have the buffer refilled.
# So SLOTS - RING tiles are under way and RING + KEPT wait for the other blocks' moments. Time that waiting tiles can cover:
# (RING + KEPT) tiles less what a block holds of one group. Measured for (1, 256, 1024, 1024) bfloat16:
# 7 to 8 us are wanted, else the memory idles once a group. Shared memory alone leaves 2.4 us there (16 MiB of 29 are the group
# itself); six tiles in registers make it 8.
# Lanes gather moments over all tiles of a group that their block has; then the block leaves one 64-bit word (mean, M2) in the
# workspace. Zero, which its owner writes first, means "not there yet": no counter and no fence is needed, and only the
# watcher, a warp that reads the words, waits for the grid's start. It hands (mean, rstd) to the other warps.
# No deadlock: a warp that waits for group g has RING + KEPT tiles of moments behind it, and [require] makes that at least the
# number of turns that a group's tiles span, so all of g's moments are already out or on their way.

[let]
channels = "input.shape[1]"
groups = "input.shape[0] * num_groups"
group = "input.numel // max(groups, 1)" # elements of a group: contiguous
plane = "input.numel // max(input.shape[0] * channels, 1)"
pack = "16 // input.itemsize"           # elements of one access

# WARPS that move tiles (one more watches), CHUNK elements of a warp's piece of a tile, SLOTS of a ring, RING and KEPT tiles that wait,
# LOADS that the L2 is to: 0 treat as usual, 1 let go first; STREAM, stores that it is to: 0 treat as usual, 1 let go first, 2 keep.
[tune]
points = @POINTS@

[require]
call = [@GUARD@, "cc >= 90", "input.align >= 16", "out.align >= 16", "out.itemsize == input.itemsize", "channels % num_groups == 0"]
whole = "group % (WARPS * CHUNK) == 0"
one_channel = "plane % CHUNK == 0"      # a warp's chunk lies inside one channel
no_deadlock = "RING + KEPT >= ceil_div(group // (WARPS * CHUNK) - 1, min(sm_count, input.numel // (WARPS * CHUNK))) and SLOTS > RING"
registers = "KEPT * CHUNK * input.itemsize // 128 + CHUNK // 32 + 30 <= registers_per_sm // (align(WARPS + 1, 4) * 32)"
words = "groups <= 1024"
fits = "SLOTS * WARPS * CHUNK * input.itemsize + channels * 8 + WARPS * SLOTS * 8 + groups * 16 + (RING + KEPT + 2) * (WARPS * 8 + 8) <= max_shared"
worth = "SLOTS * WARPS * CHUNK * input.itemsize * 2 >= max_shared"

[define]
CHANNELS = "channels"
GROUPS = "groups"
PLANE = "plane"
PACK = "pack"
TILES = "input.numel // (WARPS * CHUNK)"
PER_GROUP = "group // (WARPS * CHUNK)"
BLOCKS = "min(sm_count, input.numel // (WARPS * CHUNK))"
WORDS = "min(sm_count, group // (WARPS * CHUNK))"  # blocks that have tiles of a group

[[workspace]]
name = "partial"
dtype = "int64"
shape = ["GROUPS", "WORDS"]

[[launch]]
kernel = "group_relay"
cooperative = true
grid = ["BLOCKS"]
block = ["(WARPS + 1) * 32"]
shared = "SLOTS * WARPS * CHUNK * input.itemsize + channels * 8 + WARPS * SLOTS * 8 + groups * 16 + (RING + KEPT + 2) * (WARPS * 8 + 8)"
args = ["input", "partial", "out"@ARGS@]
*/
#include <forge.cuh>

typedef unsigned long long u64;
constexpr forge::cache KEEP = forge::store_hint(STREAM), READ = forge::store_hint(LOADS);
constexpr int THREADS = (WARPS + 1) * 32, TILE = WARPS * CHUNK;
constexpr int VECS = CHUNK / (32 * PACK), N = VECS * PACK;  // accesses and elements of a lane in a chunk
constexpr int AROUND = KEPT > 0 ? KEPT : 1;                 // steps after which registers are used again
constexpr int HOLD = RING + KEPT, NOTES = HOLD + 2;         // groups whose warp moments can be pending in a block

__device__ __forceinline__ u64 word_load(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void word_store(u64* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// A block's moments of a group as one word. M2 is never negative: its sign bit is the "it is there" mark.
__device__ __forceinline__ u64 marked(float mean, float m2) {
    return forge::pack2(mean, __uint_as_float(__float_as_uint(m2) | 0x80000000u));
}
__device__ __forceinline__ float m2_of(u64 word) { return __uint_as_float((unsigned)(word >> 32) & 0x7fffffffu); }
__device__ __forceinline__ float mean_of(u64 word) { return __uint_as_float((unsigned)word); }
// Elements of a group that the block of word j has.
__device__ __forceinline__ float count_of(int j) { return (float)((PER_GROUP / BLOCKS + (j < PER_GROUP % BLOCKS)) * TILE); }

__device__ __forceinline__ void unpack(const uint4& v, float* x) {
    constexpr int in_word = PACK / 4;
    typedef forge::converter<DTYPE_input> convert;
    convert::unpack(v.x, x);
    convert::unpack(v.y, x + in_word);
    convert::unpack(v.z, x + 2 * in_word);
    convert::unpack(v.w, x + 3 * in_word);
}
@AFTER@
extern "C" __global__ void __launch_bounds__(THREADS, 1)
group_relay(const DTYPE_input* __restrict__ input, u64* __restrict__ partial, DTYPE_out* __restrict__ out@PARAMETERS@) {
    extern __shared__ __align__(128) unsigned char smem[];
    DTYPE_input* ring = reinterpret_cast<DTYPE_input*>(smem);                  // [WARPS][SLOTS][CHUNK]
    float2* gain = reinterpret_cast<float2*>(ring + SLOTS * TILE);             // [CHANNELS] (weight, bias)
    forge::barrier* full = reinterpret_cast<forge::barrier*>(gain + CHANNELS); // [WARPS][SLOTS] a chunk has arrived
    forge::barrier* ready = full + WARPS * SLOTS;                              // [GROUPS] its moments are known
    float2* known = reinterpret_cast<float2*>(ready + GROUPS);                 // [GROUPS] (mean, rstd)
    float2* note = known + GROUPS;                                             // [NOTES][WARPS] moments of warps in a group
    unsigned* noted = reinterpret_cast<unsigned*>(note + NOTES * WARPS);       // [NOTES] how many of them are written

    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int mine = (TILES - (int)blockIdx.x + BLOCKS - 1) / BLOCKS;

    // Each warp starts its own stream at once; everything else is set up while the first bytes are on their way.
    DTYPE_input* slots = ring + warp * (SLOTS * CHUNK);
    forge::barrier* arrived = full + warp * SLOTS;
    const DTYPE_input* source = input + (size_t)blockIdx.x * TILE + warp * CHUNK;
    constexpr size_t STRIDE = (size_t)BLOCKS * TILE;
    constexpr unsigned BYTES = CHUNK * sizeof(DTYPE_input);
    if (warp < WARPS && lane == 0) {
        for (int k = 0; k < SLOTS; ++k) forge::barrier_init(arrived + k, 1);
        forge::barrier_init_fence();
        for (int k = 0; k < SLOTS && k < mine; ++k) {
            forge::barrier_expect(arrived + k, BYTES);
            forge::bulk_load<READ>(slots + k * CHUNK, source + k * STRIDE, BYTES, arrived + k);
        }
    }
    for (int i = tid; i < GROUPS; i += THREADS) forge::barrier_init(ready + i, 1);
    for (int i = tid; i < NOTES; i += THREADS) noted[i] = 0;
    for (int i = tid; i < CHANNELS; i += THREADS) gain[i] = make_float2(@WEIGHT@, @BIAS@);
    for (int i = tid; i < mine; i += THREADS) {             // this block's own words
        const int t = blockIdx.x + i * BLOCKS, j = t % PER_GROUP;
        if (j < BLOCKS) partial[(size_t)(t / PER_GROUP) * WORDS + j] = 0;
    }
    __syncthreads();

    if (warp == WARPS) {                                    // ---- the watcher: every group of this block in turn
        constexpr int K = (WORDS + 31) / 32;
        if (tid == WARPS * 32) forge::grid_wait(forge::grid_arrive());      // every block's words are zero or written
        __syncwarp();
        int last = -1;
        for (int s = 0; s < mine; ++s) {
            const int g = (int)(blockIdx.x + s * BLOCKS) / PER_GROUP;
            if (g == last) continue;
            last = g;
            const u64* p = partial + (size_t)g * WORDS + lane;
            u64 w[K];
#pragma unroll
            for (int k = 0; k < K; ++k) w[k] = 0;
            for (;;) {
                bool missing = false;
                u64 got[K];
#pragma unroll
                for (int k = 0; k < K; ++k) got[k] = k * 32 + lane < WORDS && w[k] == 0 ? word_load(p + k * 32) : w[k];
#pragma unroll
                for (int k = 0; k < K; ++k) {
                    w[k] = got[k];
                    missing |= k * 32 + lane < WORDS && w[k] == 0;
                }
                if (!missing) break;
                __nanosleep(64);
            }
            __threadfence_block();
            __syncwarp();
            // Relative to one block's mean: equal values give exactly their mean, whatever the counts.
            const float first = __shfl_sync(forge::all_lanes, mean_of(w[0]), 0);
            float mean = 0.f, m2 = 0.f;
#pragma unroll
            for (int k = 0; k < K; ++k)
                if (k * 32 + lane < WORDS) mean = fmaf(mean_of(w[k]) - first, count_of(k * 32 + lane) * (1.f / PER_GROUP / TILE), mean);
            mean = first + forge::warp_sum(mean);
#pragma unroll
            for (int k = 0; k < K; ++k)
                if (k * 32 + lane < WORDS) {
                    const float apart = mean_of(w[k]) - mean;
                    m2 += fmaf(apart * apart, count_of(k * 32 + lane), m2_of(w[k]));
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
    const DTYPE_input* own = slots + lane * PACK;
    int slot = 0, parity = 0, old_slot = 0, note_slot = 0;
    int group = -1;                                         // whose (mean, rstd) these are
    float mean = 0.f, rstd = 0.f;
    float turns = 0.f, run_mean = 0.f, run_m2 = 0.f;        // of this lane, in the group of tile s: chunks, moments

    const auto take = [&](int s) {                          // ---- moments of tile s
        forge::barrier_wait(arrived + slot, parity);
        float x[N];
#pragma unroll
        for (int i = 0; i < VECS; ++i) forge::load<PACK>(own + slot * CHUNK + i * 32 * PACK, x + i * PACK);
        const forge::moments part = forge::moments_of<N>(x);
        const float share = __fdividef(1.f, turns + 1.f), apart = part.mean - run_mean;
        run_m2 += fmaf(apart * (turns * share * N), apart, part.m2);
        run_mean = fmaf(apart, share, run_mean);
        turns += 1.f;
        if (++slot == SLOTS) { slot = 0; parity ^= 1; }
        const int t = blockIdx.x + s * BLOCKS, g = t / PER_GROUP;
        if (s + 1 < mine && (t + BLOCKS) / PER_GROUP == g) return;
        float m = run_mean, q = run_m2, n = N * turns;      // the last tile that this block has of the group
        turns = run_mean = run_m2 = 0.f;
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
        if (before == WARPS - 1) {                          // the last warp of the block publishes it
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
                word_store(partial + (size_t)g * WORDS + (t - g * PER_GROUP) % BLOCKS, marked(m, q));
            }
        }
        if (++note_slot == NOTES) note_slot = 0;
    };
    const auto finish = [&](int c, const uint4* v) {        // ---- result of tile c
        const int t = blockIdx.x + c * BLOCKS, g = t / PER_GROUP;
        if (g != group) {
            forge::barrier_wait(ready + g, 0);
            mean = known[g].x;
            rstd = known[g].y;
            group = g;
        }
        const float2 wb = gain[(int)(((size_t)t * TILE + warp * CHUNK) / PLANE % CHANNELS)];
        const float scale = rstd * wb.x;
#pragma unroll
        for (int k = 0; k < VECS; ++k) {
            float x[PACK];
            unpack(v[k], x);
#pragma unroll
            for (int i = 0; i < PACK; ++i) x[i] = @RESULT@;
            forge::store<PACK, KEEP>(target + c * STRIDE + k * 32 * PACK, x);
        }
    };
    const auto move = [&](int d, uint4* v) {                // ---- tile d leaves its buffer, which is refilled
#pragma unroll
        for (int k = 0; k < VECS; ++k) v[k] = *reinterpret_cast<const uint4*>(own + old_slot * CHUNK + k * 32 * PACK);
        __syncwarp();                                       // every lane has read the buffer
        if (lane == 0 && d + SLOTS < mine) {
            forge::barrier_expect(arrived + old_slot, BYTES);
            forge::bulk_load<READ>(slots + old_slot * CHUNK, source + (d + SLOTS) * STRIDE, BYTES, arrived + old_slot);
        }
        if (++old_slot == SLOTS) old_slot = 0;
    };

    if constexpr (KEPT == 0) {
        for (int s = 0; s < mine + HOLD; ++s) {
            if (s < mine) take(s);
            if (s < HOLD) continue;
            uint4 v[VECS];
            move(s - HOLD, v);
            finish(s - HOLD, v);
        }
    } else {
        uint4 kept[AROUND][VECS];
        for (int base = 0; base < mine + HOLD; base += AROUND) {
#pragma unroll
            for (int r = 0; r < AROUND; ++r) {              // tiles base + r - RING and base + r - HOLD have the same registers
                const int s = base + r;
                if (s < mine) take(s);
                if (s >= HOLD && s < mine + HOLD) finish(s - HOLD, kept[r]);
                if (s >= RING && s < mine + RING) move(s - RING, kept[r]);
            }
        }
    }
}
