/*forge
format = 1
operator = "@OPERATOR@"

# The norm of a sum whose tensors lie differently, some with neighbouring rows side by side in memory: ROWS rows in shared memory,
# filled and emptied in each tensor's own order, so that every access is along its memory; a warp normalizes a row.

[let]
cols = "@COLS@"
rows = "input.numel // cols"
@LET@

[tune]
ROWS = [16, 8, 32]                      # of a block
BLOCK = [512, 256]

[require]
call = [@GUARD@]
room = "ROWS * (cols + 1) * 4 <= max_shared"
registers = "cols <= 2048"

[define]
COLS = "cols"
@DEFINE@

[[launch]]
kernel = "add_norm_tile"
grid = ["ceil_div(rows, ROWS)"]
block = ["BLOCK"]
shared = "ROWS * (cols + 1) * 4"
args = ["input", "other"@SUM_ARG@, "@OUT@", "rows"@ARGS@]
*/
#include <forge.cuh>

@OFFSETS@
@OP@
constexpr int PITCH = COLS + 1;         // odd for even rows: neighbouring rows in different banks

// Every element of the tile in the order that the tensor has in memory, by all threads: use(row within the tile, column).
template <bool down, class Use>
__device__ __forceinline__ void each(int valid, Use use) {
    for (int e = threadIdx.x; e < ROWS * COLS; e += BLOCK) {
        const int r = down ? e % ROWS : e / COLS, c = down ? e / ROWS : e % COLS;
        if (r < valid) use(r, c);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
add_norm_tile(const DTYPE_input* __restrict__ input, const DTYPE_other* __restrict__ other@SUM@, DTYPE_@OUT@* __restrict__ @OUT@, int rows@PARAMETERS@, float eps) {
    extern __shared__ float tile[];
    const int first = blockIdx.x * ROWS, valid = min(ROWS, rows - first);
    each<@DOWN_INPUT@>(valid, [&](int r, int c) {
        tile[r * PITCH + c] = forge::to_float(input[input_row(first + r) + input_col(c)]);
    });
    __syncthreads();
    each<@DOWN_OTHER@>(valid, [&](int r, int c) {
        float& x = tile[r * PITCH + c];
        x = forge::rounded<@ROUNDED@>(x + forge::to_float(other[other_row(first + r) + other_col(c)]));
    });
    __syncthreads();
@STORE_SUM@
    constexpr int N = (COLS + 31) / 32;
    const int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < valid; r += BLOCK / 32) {
        float x[N];
#pragma unroll
        for (int k = 0; k < N; ++k) x[k] = k * 32 + lane < COLS ? tile[r * PITCH + k * 32 + lane] : row_op::nothing();
        row_op op{@PASS@};
        op.finish(forge::warp_merge<32>(op.take<N>(x, N - (COLS % 32 && (N - 1) * 32 + lane >= COLS))));
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (k * 32 + lane < COLS) {
                op.kept<1>(x + k, first + r, k * 32 + lane);
                tile[r * PITCH + k * 32 + lane] = x[k];
            }
        }
    }
    __syncthreads();
    each<@DOWN_OUT@>(valid, [&](int r, int c) {
        @OUT@[@OUT@_row(first + r) + @OUT@_col(c)] = forge::from_float<DTYPE_@OUT@>(tile[r * PITCH + c]);
    });
}
