/*forge
format = 1
operator = "@OPERATOR@"

# Convolution as a matrix product on the tensor cores, with what follows it, in one launch: rows are output channels, columns pixels of
# all images, the depth runs over input channels and taps in the filter's own order. Both operands come to shared memory by
# asynchronous copies, STAGES deep; where the input is not a plain matrix every element is fetched from its place. Few pixels: the blocks of
# a cluster share the depth of one tile and add their sums through distributed shared memory, always in the same order.
# float32 is split into two tf32 parts (three products); sums over more than 16 are made in ordinary float32, because the
# tensor cores truncate theirs.

[let]
channels = "input.shape[1]"
out_channels = "weight.shape[0]"
taps = "weight.shape[2] * weight.shape[3]"
depth = "channels * taps"
pixels = "out.shape[2] * out.shape[3]"
columns = "input.shape[0] * pixels"
word = "4 // input.itemsize"
wide = "16 // input.itemsize"
plain = "1 if taps == 1 and @STRIDE_H@ == 1 and @STRIDE_W@ == 1 and @PAD_H@ == 0 and @PAD_W@ == 0 else 0"

[tune]
# WARPS_M x WARPS_N warps compute TILE_M channels x TILE_N pixels, TILE_K of the depth at a time; SPLIT blocks share one tile
points = [
@POINTS@
]

[require]
call = [@GUARD@]
image = "channels * input.shape[2] * input.shape[3] * input.itemsize <= 2147483647"
pairs = "plain == 1 or TILE_K * TILE_N % (WARPS_M * WARPS_N * 64) == 0"
bits = "ROW_BITS + COLUMN_BITS <= 30"
warps = "TILE_M % (16 * WARPS_M) == 0 and TILE_N % (8 * WARPS_N) == 0 and WARPS_M * WARPS_N * 32 % TILE_N == 0 and WARPS_M * WARPS_N * 32 % TILE_K == 0"
split = "SPLIT <= max_cluster and TILE_M % SPLIT == 0 and (SPLIT - 1) * STEPS < ceil_div(depth, TILE_K)"
fits = "SHARED <= max_shared - 4096"

[define]
CHANNELS = "channels"
OUT_CHANNELS = "out_channels"
IN_H = "input.shape[2]"
IN_W = "input.shape[3]"
OUT_W = "out.shape[3]"
PIXELS = "pixels"
COLUMNS = "columns"
KERNEL_W = "weight.shape[3]"
PLAIN = "plain"
ROW_BITS = "weight.shape[2] if @PAD_H@ > 0 else 0"      # whose taps padding can hide
COLUMN_BITS = "weight.shape[3] if @PAD_W@ > 0 else 0"
TAPS = "taps"
DEPTH = "depth"
STRIDE_H = "@STRIDE_H@"
STRIDE_W = "@STRIDE_W@"
PAD_H = "@PAD_H@"
PAD_W = "@PAD_W@"
STEPS = "ceil_div(ceil_div(depth, TILE_K), SPLIT)"      # stages of one block
FILTER_VEC = "wide if depth % wide == 0 and weight.align >= 16 else word if depth % word == 0 and weight.align >= 4 else 1"
INPUT_VEC = "1 if plain == 0 else wide if pixels % wide == 0 and input.align >= 16 else word if pixels % word == 0 and input.align >= 4 else 1"
FILTER_PITCH = "TILE_K + wide"                          # rows shifted against each other: fragments without bank conflicts
INPUT_PITCH = "TILE_N + 8"
STAGE = "TILE_M * FILTER_PITCH + TILE_K * INPUT_PITCH"
SHARED = "max(STAGES * STAGE * input.itemsize, TILE_M * INPUT_PITCH * 4)"

[[launch]]
kernel = "conv_mma"
grid = ["SPLIT * ceil_div(columns, TILE_N)", "ceil_div(out_channels, TILE_M)"]
cluster = ["SPLIT"]
block = ["WARPS_M * WARPS_N * 32"]
shared = "SHARED"
args = ["input", "weight", "out"@ARGS@]
*/
#include <forge.cuh>

typedef DTYPE_input element;
constexpr int THREADS = WARPS_M * WARPS_N * 32, SIZE = sizeof(element);
constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N, FRAGS_M = WARP_M / 16, FRAGS_N = WARP_N / 8;
constexpr int FILTER_ACROSS = TILE_K / FILTER_VEC, FILTER_DOWN = THREADS / FILTER_ACROSS;  // accesses of a row of a stage; rows at once
constexpr int INPUT_ACROSS = TILE_N / INPUT_VEC, INPUT_DOWN = THREADS / INPUT_ACROSS;
constexpr int FILTER_COUNT = (TILE_M + FILTER_DOWN - 1) / FILTER_DOWN, INPUT_COUNT = (TILE_K + INPUT_DOWN - 1) / INPUT_DOWN;  // of a thread
constexpr bool FILTER_ASYNC = FILTER_VEC * SIZE >= 4, INPUT_ASYNC = INPUT_VEC * SIZE >= 4;  // cp.async moves 4 bytes at the least
constexpr int ROWS = TILE_M / SPLIT;                                                       // of the tile, that a block finishes

@AFTER@
// What the result of a channel needs.
struct finish {
    @MEMBERS@
    FORGE_FN float operator()(float x) const { return @RESULT@; }
};
FORGE_FN finish finish_of(int c@PARAMETERS@) {
    @FINISH@
}

template <int bytes> FORGE_FN void copy_or_zero(void* shared, const void* global, bool there) {
    const int from = there ? bytes : 0;
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(forge::shared_address(shared)), "l"(global), "r"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(forge::shared_address(shared)), "l"(global), "n"(bytes), "r"(from) : "memory");
}

// Where the input that belongs to a place of the depth lies, in bytes from a pixel's first tap on, and what must not be missing for it to be
// there: bits for the tap's row and column, where padding can hide them, and for the pixel itself.
constexpr unsigned NO_PIXEL = 1u << 30, NO_DEPTH = 1u << 31;
FORGE_FN int2 place_of(int k) {
    const int channel = k / TAPS, tap = k % TAPS, dy = tap / KERNEL_W, dx = tap % KERNEL_W;
    const unsigned needs = NO_PIXEL | (ROW_BITS ? 1u << dy : 0u) | (COLUMN_BITS ? 1u << (ROW_BITS + dx) : 0u);
    return k < DEPTH ? make_int2((channel * (IN_H * IN_W) + dy * IN_W + dx) * SIZE, (int)needs) : make_int2(0, (int)NO_DEPTH);
}

// One thread's share of every stage. `begin` starts copies, or loads what is too narrow for them; `end` stores the latter. Where nothing
// is, zeros come to shared memory and no address is read.
struct feed {
    const element *filter, *image;          // this thread's first of the filter; its pixel under the first tap, which may lie outside
    int rows, row, col, column, down;       // filter rows there are; its first row and its column in a stage of the filter, and of the input
    unsigned missing;                       // see place_of
    element narrow_filter[FILTER_ASYNC ? 1 : FILTER_COUNT], narrow_input[INPUT_ASYNC ? 1 : INPUT_COUNT];

    FORGE_FN feed(const element* weight, const element* input, int tile_row, int first) {
        row = threadIdx.x / FILTER_ACROSS;
        col = threadIdx.x % FILTER_ACROSS * FILTER_VEC;
        rows = OUT_CHANNELS - tile_row;
        filter = weight + ((long long)(tile_row + row) * DEPTH + col);
        column = threadIdx.x % INPUT_ACROSS * INPUT_VEC;
        down = threadIdx.x / INPUT_ACROSS;
        const bool inside = first + column < COLUMNS;
        const int n = inside ? first + column : 0, pixel = n % PIXELS;
        const int y = pixel / OUT_W * STRIDE_H - PAD_H, x = pixel % OUT_W * STRIDE_W - PAD_W;
        image = input + ((long long)(n / PIXELS) * (CHANNELS * IN_H * IN_W) + y * IN_W + x);
        missing = NO_DEPTH | (inside ? 0u : NO_PIXEL);
#pragma unroll
        for (int i = 0; i < ROW_BITS; ++i) missing |= (unsigned)(y + i) < IN_H ? 0u : 1u << i;
#pragma unroll
        for (int i = 0; i < COLUMN_BITS; ++i) missing |= (unsigned)(x + i) < IN_W ? 0u : 1u << (ROW_BITS + i);
    }
    FORGE_FN void begin(element* stage, int k0, const int2* places) {
        const bool deep = DEPTH % TILE_K == 0 || k0 + col < DEPTH;
        element* to = stage + row * FILTER_PITCH + col;
#pragma unroll
        for (int i = 0; i < FILTER_COUNT; ++i) {
            const bool there = deep && (OUT_CHANNELS % TILE_M == 0 || i * FILTER_DOWN + row < rows);
            const element* from = filter + k0 + i * FILTER_DOWN * DEPTH;
            if (TILE_M % FILTER_DOWN == 0 || i * FILTER_DOWN + row < TILE_M) {
                if constexpr (FILTER_ASYNC) copy_or_zero<FILTER_VEC * SIZE>(to + i * FILTER_DOWN * FILTER_PITCH, from, there);
                else narrow_filter[i] = there ? *from : element(0.f);
            }
        }
        to = stage + TILE_M * FILTER_PITCH + column;
        if constexpr (PLAIN) {
            const element* from = image + (long long)(k0 + down) * (IN_H * IN_W);
#pragma unroll
            for (int i = 0; i < INPUT_COUNT; ++i) {
                const bool there = !(missing & NO_PIXEL) && (DEPTH % TILE_K == 0 || k0 + down_of(i) < DEPTH);
                if (TILE_K % INPUT_DOWN == 0 || down_of(i) < TILE_K) fetch(i, to, from + i * INPUT_DOWN * (IN_H * IN_W), there);
            }
        } else {
            constexpr int GROUP = INPUT_COUNT < 8 ? INPUT_COUNT : 8;        // read before they are used: copies keep their order
#pragma unroll
            for (int start = 0; start < INPUT_COUNT; start += GROUP) {
                int4 two[(GROUP + 1) / 2];
#pragma unroll
                for (int i = 0; i < GROUP / 2; ++i) two[i] = *reinterpret_cast<const int4*>(places + down_of(start + i * 2));
#pragma unroll
                for (int i = 0; i < GROUP; ++i) {
                    const int4 both = two[i / 2];
                    const unsigned offset = i % 2 ? both.z : both.x, needs = i % 2 ? both.w : both.y;
                    fetch(start + i, to, reinterpret_cast<const element*>(reinterpret_cast<const char*>(image) + offset), !(missing & needs));
                }
            }
        }
    }
    // Which row of a stage the i-th one is: with places to look up neighbours, else strided.
    FORGE_FN int down_of(int i) const { return PLAIN ? i * INPUT_DOWN + down : down * INPUT_COUNT + i; }
    FORGE_FN void fetch(int i, element* to, const element* from, bool there) {
        if constexpr (INPUT_ASYNC) copy_or_zero<INPUT_VEC * SIZE>(to + down_of(i) * INPUT_PITCH, from, there);
        else narrow_input[i] = there ? *from : element(0.f);
    }
    FORGE_FN void end(element* stage) {
#pragma unroll
        for (int i = 0; i < FILTER_COUNT; ++i) {
            const int r = i * FILTER_DOWN + row;
            if constexpr (!FILTER_ASYNC)
                if (r < TILE_M) stage[r * FILTER_PITCH + col] = narrow_filter[i];
        }
#pragma unroll
        for (int i = 0; i < INPUT_COUNT; ++i) {
            if constexpr (!INPUT_ASYNC)
                if (down_of(i) < TILE_K) stage[TILE_M * FILTER_PITCH + down_of(i) * INPUT_PITCH + column] = narrow_input[i];
        }
    }
};

// x as the sum of two tf32 numbers, 22 bits of it. The tensor cores ignore the last 13 bits of an operand: the first is rounded by adding half
// of what they stand for, so that what is left has either sign and errors do not add up. (cvt.rna.tf32 takes seven instructions.)
FORGE_FN void parts(float x, unsigned& high, unsigned& low) {
    high = __float_as_uint(x) + 0x1000u;
    low = __float_as_uint(x - __uint_as_float(high & 0xffffe000u));
}
FORGE_FN void multiply(float* sum, const unsigned* a, const unsigned* b, float) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FORGE_FN void multiply(float* sum, const unsigned* a, const unsigned* b, __half) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FORGE_FN void multiply(float* sum, const unsigned* a, const unsigned* b, __nv_bfloat16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// sum += filter stage x input stage, for the warp's part of the tile; `a` and `b` are where that part begins in them.
FORGE_FN void stage_product(const float* a, const float* b, float (&sum)[FRAGS_M][FRAGS_N][4]) {
    const int group = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
    float part[FRAGS_M][FRAGS_N][4];
#pragma unroll
    for (int k = 0; k < TILE_K; k += 8) {
        unsigned a_high[FRAGS_M][4], a_low[FRAGS_M][4], b_high[FRAGS_N][2], b_low[FRAGS_N][2];
#pragma unroll
        for (int m = 0; m < FRAGS_M; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                parts(a[(m * 16 + group + i % 2 * 8) * FILTER_PITCH + k + place + i / 2 * 4], a_high[m][i], a_low[m][i]);
#pragma unroll
        for (int n = 0; n < FRAGS_N; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) parts(b[(k + place + i * 4) * INPUT_PITCH + n * 8 + group], b_high[n][i], b_low[n][i]);
#pragma unroll
        for (int m = 0; m < FRAGS_M; ++m)
#pragma unroll
            for (int n = 0; n < FRAGS_N; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) part[m][n][i] = k % 16 ? part[m][n][i] : 0.f;
#pragma unroll
        for (int turn = 0; turn < 3; ++turn)                // small products first
#pragma unroll
            for (int m = 0; m < FRAGS_M; ++m)
#pragma unroll
                for (int n = 0; n < FRAGS_N; ++n)
                    multiply(part[m][n], turn == 0 ? a_low[m] : a_high[m], turn == 1 ? b_low[n] : b_high[n], 0.f);
        if (k % 16 == 0) continue;
#pragma unroll
        for (int m = 0; m < FRAGS_M; ++m)
#pragma unroll
            for (int n = 0; n < FRAGS_N; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[m][n][i] += part[m][n][i];
    }
}
template <class Half> FORGE_FN void stage_product(const Half* a, const Half* b, float (&sum)[FRAGS_M][FRAGS_N][4]) {
    const int lane = threadIdx.x % 32;
    const unsigned a_at = forge::shared_address(a + lane % 16 * FILTER_PITCH + lane / 16 * 8);
    const unsigned b_at = forge::shared_address(b + lane % 16 * INPUT_PITCH);
#pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        unsigned x[FRAGS_M][4], y[FRAGS_N][2];
#pragma unroll
        for (int m = 0; m < FRAGS_M; ++m)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[m][0]), "=r"(x[m][1]), "=r"(x[m][2]), "=r"(x[m][3])
                         : "r"(a_at + (m * 16 * FILTER_PITCH + k) * 2) : "memory");
#pragma unroll
        for (int n = 0; n < FRAGS_N; ++n)
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                         : "=r"(y[n][0]), "=r"(y[n][1]) : "r"(b_at + (k * INPUT_PITCH + n * 8) * 2) : "memory");
#pragma unroll
        for (int m = 0; m < FRAGS_M; ++m)
#pragma unroll
            for (int n = 0; n < FRAGS_N; ++n) multiply(sum[m][n], x[m], y[n], Half());
    }
}

// A float of the same place in the shared memory of another block of the cluster.
FORGE_FN float float_of(const float* place, int rank) {
    float v;
    asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %1, %2;\n\tld.shared::cluster.f32 %0, [there];\n\t}"
                 : "=f"(v) : "r"(forge::shared_address(place)), "r"(rank) : "memory");
    return v;
}

// One result's sum in ordinary float32. Where a sum of split products is not finite, this decides: an infinite operand times the parts of the
// other, which have either sign, is NaN, and the first part of the largest numbers rounds to infinity.
FORGE_FN float plain_sum(const element* weight, const element* input, int n) {
    const int pixel = n % PIXELS, y = pixel / OUT_W * STRIDE_H - PAD_H, x = pixel % OUT_W * STRIDE_W - PAD_W;
    const element* image = input + (long long)(n / PIXELS) * (CHANNELS * IN_H * IN_W);
    float sum = 0.f;
#pragma unroll 1
    for (int k = 0; k < DEPTH; ++k) {
        const int tap = k % TAPS, v = y + tap / KERNEL_W, u = x + tap % KERNEL_W;
        const bool there = (unsigned)v < IN_H && (unsigned)u < IN_W;
        sum = fmaf(forge::to_float(weight[k]), there ? forge::to_float(image[(k / TAPS * IN_H + v) * IN_W + u]) : 0.f, sum);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, THREADS > 128 ? 2 : 3)
conv_mma(const DTYPE_input* __restrict__ input, const DTYPE_weight* __restrict__ weight, DTYPE_out* __restrict__ out@PARAMETERS@) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ finish channel[ROWS];
    __shared__ __align__(16) int2 places[PLAIN ? 1 : STAGES * TILE_K];    // of the depth, for the stages to fill
    element* stages = reinterpret_cast<element*>(memory);
    const int rank = blockIdx.x % SPLIT, first = blockIdx.x / SPLIT * TILE_N, row = blockIdx.y * TILE_M;    // a cluster's blocks are neighbours
    const int begin = rank * STEPS, steps = min(STEPS, (DEPTH + TILE_K - 1) / TILE_K - begin);
    feed source(weight, input, row, first);
    if constexpr (!PLAIN) {
        for (int e = threadIdx.x; e < STAGES * TILE_K; e += THREADS) places[e] = place_of(begin * TILE_K + e);
        __syncthreads();
    }
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < steps) {
            source.begin(stages + s * STAGE, (begin + s) * TILE_K, places + s * TILE_K);
            source.end(stages + s * STAGE);
        }
        forge::copy_async_commit();
    }
    if (threadIdx.x < ROWS) channel[threadIdx.x] = finish_of(min(row + rank * ROWS + (int)threadIdx.x, OUT_CHANNELS - 1)@PASS@);

    const int warp = threadIdx.x / 32, warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    float sum[FRAGS_M][FRAGS_N][4] = {};
    int now = 0, next = STAGES - 1;                         // the stage to compute, and the one to fill: free since the barrier
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
        forge::copy_async_wait<STAGES - 2>();
        __syncthreads();
        const bool more = s + STAGES - 1 < steps;
        if (more) source.begin(stages + next * STAGE, (begin + s + STAGES - 1) * TILE_K, places + next * TILE_K);
        forge::copy_async_commit();
        if (!PLAIN && threadIdx.x < TILE_K) places[now * TILE_K + threadIdx.x] = place_of((begin + s + STAGES) * TILE_K + threadIdx.x);
        const element* stage = stages + now * STAGE;
        stage_product(stage + warp_row * FILTER_PITCH, stage + TILE_M * FILTER_PITCH + warp_column, sum);
        if (more) source.end(stages + next * STAGE);
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }

    forge::copy_async_wait<0>();
    __syncthreads();                                        // the stages are read: the tile takes their place
    float* tile = reinterpret_cast<float*>(memory);
    const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < FRAGS_M; ++m)
#pragma unroll
        for (int n = 0; n < FRAGS_N; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float* to = tile + (warp_row + m * 16 + half * 8 + group) * INPUT_PITCH + warp_column + n * 8 + pair;
                *reinterpret_cast<float2*>(to) = make_float2(sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
            }
    if constexpr (SPLIT > 1) forge::cluster_sync();
    else __syncthreads();

    const int column = threadIdx.x % TILE_N, n = first + column;
    DTYPE_out* to = out + ((long long)(n / PIXELS) * OUT_CHANNELS * PIXELS + n % PIXELS);
    for (int r = threadIdx.x / TILE_N; r < ROWS; r += THREADS / TILE_N) {
        const int c = rank * ROWS + r;
        const float* place = tile + c * INPUT_PITCH + column;
        float x = 0.f;
        if constexpr (SPLIT > 1) {
#pragma unroll
            for (int other = 0; other < SPLIT; ++other) x += float_of(place, other);
        } else x = *place;
        if (n >= COLUMNS || row + c >= OUT_CHANNELS) continue;
        if constexpr (SIZE == 4)
            if (!(fabsf(x) < INFINITY)) x = plain_sum(weight + (long long)(row + c) * DEPTH, input, n);
        to[(long long)(row + c) * PIXELS] = forge::from_float<DTYPE_out>(channel[r](x));
    }
    if constexpr (SPLIT > 1) forge::cluster_sync();         // a block's memory lives until the others have read it
}
