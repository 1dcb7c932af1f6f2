/*forge
format = 1
operator = "@OPERATOR@"

# Groups that a cluster can hold, one read and one write: each block of the cluster brings its share of the group to shared memory by
# bulk copies and takes the moments of each piece as it arrives. Every warp sends its moments to every block of the cluster by
# asynchronous stores that complete on the receiver's barrier: between the last load and the first result there is no barrier
# of a block or cluster, no fence, and no access to memory (weights and biases are fetched beside the data).
# Clusters of the grid's second half have only LATE pieces under way at first (0: all of them), so that the others have their
# data sooner, and their results are written while these still load.

[let]
channels = "input.shape[1]"
groups = "input.shape[0] * num_groups"
group = "input.numel // max(groups, 1)" # elements of a group: contiguous
plane = "input.numel // max(input.shape[0] * channels, 1)"
pack = "16 // input.itemsize"           # elements of one access

# CLUSTER blocks of a group, BLOCK threads, PIECES: bulk copies of a block; STREAM, stores that the L2 is to: 0 treat as usual, 1 let go
# first.
[tune]
points = @POINTS@

[require]
call = [@GUARD@, "cc >= 90", "input.align >= 16", "out.align >= 16", "out.itemsize == input.itemsize", "channels % num_groups == 0"]
cluster = "CLUSTER <= max_cluster"
whole = "group % (CLUSTER * PIECES * BLOCK * pack) == 0"
one_channel = "plane % (BLOCK * pack) == 0"     # an access of the block lies inside one channel
registers = "group // (CLUSTER * PIECES * BLOCK * pack) <= 8"
late = "LATE < PIECES"
fits = "group // CLUSTER * input.itemsize <= max_shared - 4096"

[define]
CHANNELS = "channels"
PLANE = "plane"
PACK = "pack"
SHARE = "group // CLUSTER"              # elements of a block
VECS = "SHARE // (PIECES * BLOCK * pack)"
SPAN = "ceil_div(SHARE, plane) + (0 if plane % SHARE == 0 or SHARE % plane == 0 else 1)"  # channels that a block's share can touch
RESIDENT = "max(1, min(ceil_div(groups * CLUSTER, sm_count), max_shared // (SHARE * input.itemsize + 4096), registers_per_sm // (BLOCK * (VECS * pack + 32))))"

[[launch]]
kernel = "group_cluster"
grid = ["groups * CLUSTER"]
cluster = ["CLUSTER"]
block = ["BLOCK"]
shared = "SHARE * input.itemsize"
args = ["input", "out"@ARGS@]
*/
#include <forge.cuh>

constexpr forge::cache KEEP = forge::store_hint(STREAM);
constexpr int WARPS = BLOCK / 32, PIECE = SHARE / PIECES, STEP = BLOCK * PACK, N = VECS * PACK;
constexpr int ENTRIES = CLUSTER * WARPS, LANES = ENTRIES < 32 ? ENTRIES : 32, EACH = ENTRIES / LANES;
@AFTER@
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
group_cluster(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out@PARAMETERS@) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ forge::barrier full[PIECES], mail;
    __shared__ unsigned long long box[ENTRIES];             // (mean, M2) of every warp of the cluster
    __shared__ float2 gain[SPAN];                           // (weight, bias) of this block's channels
    DTYPE_input* data = reinterpret_cast<DTYPE_input*>(memory);
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const size_t first = (size_t)blockIdx.x * SHARE;        // a cluster's blocks are neighbours
    const bool late = LATE > 0 && blockIdx.x >= gridDim.x / 2;
    constexpr unsigned BYTES = PIECE * sizeof(DTYPE_input);
    const auto fetch = [&](int p) {
        forge::barrier_expect(full + p, BYTES);
        forge::bulk_load(data + p * PIECE, input + first + p * PIECE, BYTES, full + p);
    };
    if (tid == 0) {
        for (int p = 0; p < PIECES; ++p) forge::barrier_init(full + p, 1);
        forge::barrier_init(&mail, 1);
        forge::barrier_init_fence();
        for (int p = 0; p < (late ? LATE : PIECES); ++p) fetch(p);
        forge::barrier_expect(&mail, ENTRIES * 8);
    }
    for (int k = tid; k < SPAN; k += BLOCK) {
        const int i = (int)((first / PLANE + k) % CHANNELS);
        gain[k] = make_float2(@WEIGHT@, @BIAS@);
    }
    __syncthreads();
    forge::cluster_arrive_relaxed();                        // "my barriers are there": waited for before the first message

    float mean = 0.f, m2 = 0.f;
#pragma unroll 1
    for (int p = 0; p < PIECES; ++p) {
        forge::barrier_wait(full + p, 0);
        if (late && tid == 0 && p + LATE < PIECES) fetch(p + LATE);
        float x[N];
#pragma unroll
        for (int i = 0; i < VECS; ++i) forge::load<PACK>(data + p * PIECE + i * STEP + tid * PACK, x + i * PACK);
        const forge::moments part = forge::moments_of<N>(x);
        const float share = __fdividef(1.f, p + 1.f), apart = part.mean - mean;
        m2 += fmaf(apart * (p * share * N), apart, part.m2);
        mean = fmaf(apart, share, mean);
    }
    float n = N * PIECES;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1, n *= 2.f) {
        const float mb = __shfl_xor_sync(forge::all_lanes, mean, o), qb = __shfl_xor_sync(forge::all_lanes, m2, o);
        forge::merge_equal(mean, m2, mb, qb, n);
    }
    forge::cluster_wait();
    if (lane < CLUSTER) forge::cluster_send(box + forge::cluster_rank() * WARPS + warp, &mail, lane, forge::pack2(mean, m2));
    forge::barrier_wait(&mail, 0);                          // every warp's moments are here; nobody writes here any more
    float means[EACH], squares[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const float2 both = forge::unpack2(box[lane % LANES + e * 32]);
        means[e] = both.x;
        squares[e] = both.y;
    }
#pragma unroll
    for (int e = 1; e < EACH; e <<= 1, n *= 2.f)
#pragma unroll
        for (int k = 0; k < EACH; k += 2 * e) forge::merge_equal(means[k], squares[k], means[k + e], squares[k + e], n);
    mean = means[0];
    m2 = squares[0];
#pragma unroll
    for (int o = 1; o < LANES; o <<= 1, n *= 2.f) {
        const float mb = __shfl_xor_sync(forge::all_lanes, mean, o), qb = __shfl_xor_sync(forge::all_lanes, m2, o);
        forge::merge_equal(mean, m2, mb, qb, n);
    }
    const float rstd = rsqrtf(m2 * (1.f / CLUSTER / SHARE) + eps);
    DTYPE_out* to = out + first + tid * PACK;
    const int start = (int)(first % PLANE);                 // where in its first channel the block begins
#pragma unroll 4
    for (int k = 0; k < VECS * PIECES; ++k) {
        const float2 wb = gain[PLANE % SHARE == 0 ? 0 : (start + k * STEP) / PLANE];
        const float scale = rstd * wb.x;
        float x[PACK];
        forge::load<PACK>(data + k * STEP + tid * PACK, x);
#pragma unroll
        for (int i = 0; i < PACK; ++i) x[i] = @RESULT@;
        forge::store<PACK, KEEP>(to + k * STEP, x);
    }
}
