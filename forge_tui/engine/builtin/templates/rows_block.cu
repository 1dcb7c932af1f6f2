/*forge
format = 1
operator = "@OPERATOR@"

# Middle and long rows: a block per row, the row in registers, one read and one write. Every thread reduces its own
# values first; a round of shuffles and one barrier merge the threads' states.

[let]
cols = "@COLS@"
rows = "@ROWS@"
@LET@
reach = "@REACH@"

[tune]
BLOCK = @BLOCK_TUNE@                    # threads on one row
VEC = @VEC_TUNE@                           # elements of one access: as many as types, alignment and lengths allow, or half
STREAM = @STREAM_TUNE@                  # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"
registers = "ceil_div(cols, BLOCK * VEC) * VEC <= 64 and (ceil_div(cols, BLOCK * VEC) * VEC + 24) * BLOCK <= registers_per_sm"
busy = "BLOCK == 32 or cols > (BLOCK - 32) * VEC"   # no warp without work

[define]
COLS = "cols"
STEPS = "max(1, ceil_div(cols, BLOCK * VEC))"
@DEFINE@

[[launch]]
kernel = "rows_block"
grid = ["rows"]
block = ["BLOCK"]
args = ["input", "out"@ARGS@]
*/
#include <forge.cuh>

@OFFSETS@
@OP@
constexpr forge::cache KEEP = forge::store_hint(STREAM);

extern "C" __global__ void __launch_bounds__(BLOCK)
rows_block(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out@PARAMETERS@) {
    constexpr int SPAN = BLOCK * VEC, N = STEPS * VEC;
    __shared__ row_op::state scratch[BLOCK / 32];
    const int row = blockIdx.x, at = threadIdx.x * VEC;
    const DTYPE_input* from = input + input_row(row);
    float x[N];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = k * SPAN + at;                        // VEC divides COLS
        if ((k + 1) * SPAN <= COLS || c < COLS) {
            forge::load<VEC>(from + input_col(c), x + k * VEC);
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j) x[k * VEC + j] = row_op::nothing();
        }
    }
    const int valid = COLS % SPAN == 0 ? N : N - (at >= COLS - (STEPS - 1) * SPAN ? VEC : 0);
    row_op op{@PASS@};
    op.whole<N>(x, valid, forge::by_block<BLOCK>{scratch});
    DTYPE_out* to = out + out_row(row);
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = k * SPAN + at;
        if ((k + 1) * SPAN <= COLS || c < COLS) {
            op.kept<VEC>(x + k * VEC, row, c);
            forge::store<VEC, KEEP>(to + out_col(c), x + k * VEC);
        }
    }
}
