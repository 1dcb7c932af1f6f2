/*forge
format = 1
operator = "@OPERATOR@"

# Short and middle rows: LANES threads of one warp own ROWS rows each, all of them in registers. One read, one write, no
# shared memory, no barrier.

[let]
cols = "@COLS@"
rows = "@ROWS@"
@LET@
reach = "@REACH@"

[tune]
LANES = @LANES_TUNE@                    # threads on one row
WARPS = @WARPS_TUNE@
ROWS = @ROWS_TUNE@                      # rows of a thread, side by side
VEC = @VEC_TUNE@                           # elements of one access: as many as types, alignment and lengths allow, or half
STREAM = @STREAM_TUNE@                  # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and (VEC * 2 >= reach or cols < 32)"
registers = "ceil_div(cols, LANES * VEC) * VEC * ROWS <= 64"
busy = "LANES == 1 or cols > LANES * VEC // 2"      # at most half of the lanes without work
enough = "rows >= WARPS * (32 // LANES) * ROWS or (WARPS == 1 and ROWS == 1)"

[define]
COLS = "cols"
STEPS = "max(1, ceil_div(cols, LANES * VEC))"
@DEFINE@

[[launch]]
kernel = "rows_lanes"
grid = ["ceil_div(rows, WARPS * (32 // LANES) * ROWS)"]
block = ["32 * WARPS"]
args = ["input", "out", "rows"@ARGS@]
*/
#include <forge.cuh>

@OFFSETS@
@OP@
constexpr forge::cache KEEP = forge::store_hint(STREAM);

extern "C" __global__ void __launch_bounds__(32 * WARPS)
rows_lanes(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int rows@PARAMETERS@) {
    constexpr int GROUPS = 32 / LANES, SPAN = LANES * VEC, N = STEPS * VEC;
    const int lane = threadIdx.x % LANES;
    const int first = (blockIdx.x * WARPS + threadIdx.x / 32) * (GROUPS * ROWS) + threadIdx.x % 32 / LANES;
    float x[ROWS][N];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = min(first + r * GROUPS, rows - 1);  // every lane stays for the shuffles
        const DTYPE_input* from = input + input_row(row);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const int c = k * SPAN + lane * VEC;            // VEC divides COLS
            if ((k + 1) * SPAN <= COLS || c < COLS) {
                forge::load<VEC>(from + input_col(c), x[r] + k * VEC);
            } else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) x[r][k * VEC + j] = row_op::nothing();
            }
        }
    }
    const int valid = COLS % SPAN == 0 ? N : N - (lane * VEC >= COLS - (STEPS - 1) * SPAN ? VEC : 0);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        row_op op{@PASS@};
        op.whole<N>(x[r], valid, forge::by_lanes<LANES>{});
        const int row = first + r * GROUPS;
        if (row < rows) {
            DTYPE_out* to = out + out_row(row);
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                const int c = k * SPAN + lane * VEC;
                if ((k + 1) * SPAN <= COLS || c < COLS) {
                    op.kept<VEC>(x[r] + k * VEC, row, c);
                    forge::store<VEC, KEEP>(to + out_col(c), x[r] + k * VEC);
                }
            }
        }
    }
}
