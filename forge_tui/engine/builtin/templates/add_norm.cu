/*forge
format = 1
operator = "@OPERATOR@"

# @WHAT@
# LANES threads on one row, which stays in registers. Up to 32 lanes need no barrier, more need one.

[let]
cols = "@COLS@"
rows = "input.numel // cols"
reach = "min(@REACH@)"

[tune]
LANES = @LANES_TUNE@                    # threads on one row
WARPS = [4, 2, 8, 1]                    # of a block, where several rows share one
VEC = [8, 4, 2, 1]                      # elements of one access

[require]
call = [@GUARD@]
aligned = "VEC <= reach and cols % VEC == 0 and (VEC * 2 >= reach or cols % (VEC * 2) != 0)"
registers = "ceil_div(cols, LANES * VEC) * VEC <= 64 and (ceil_div(cols, LANES * VEC) * VEC + 32) * max(LANES, 32 * WARPS) <= registers_per_sm"
block = "LANES <= 32 or WARPS == 4"                 # a block is a row then, and WARPS means nothing
busy = "LANES == 8 or cols > LANES * VEC // 2"
enough = "LANES > 32 or WARPS == 1 or rows >= WARPS * (32 // LANES)"

[define]
COLS = "cols"
STEPS = "ceil_div(cols, LANES * VEC)"
THREADS = "LANES if LANES > 32 else 32 * WARPS"

[[launch]]
kernel = "add_norm"
grid = ["ceil_div(rows * LANES, LANES if LANES > 32 else 32 * WARPS)"]
block = ["LANES if LANES > 32 else 32 * WARPS"]
args = ["input", "@OTHER@"@SUM_ARG@, "@OUT@", "rows"@ARGS@]
*/
#include <forge.cuh>

@OP@
extern "C" __global__ void __launch_bounds__(THREADS)
add_norm(const DTYPE_input* __restrict__ input, const DTYPE_@OTHER@* __restrict__ @OTHER@@SUM@, DTYPE_@OUT@* __restrict__ @OUT@, int rows@PARAMETERS@, float eps) {
    constexpr int SPAN = LANES * VEC, N = STEPS * VEC;
    const int lane = threadIdx.x % LANES;
    const int own = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int row = min(own, rows - 1);                     // every lane stays for the shuffles
    const long long from = (long long)row * COLS;
    float x[N];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = k * SPAN + lane * VEC;                // VEC divides COLS
        if ((k + 1) * SPAN <= COLS || c < COLS) {
            forge::load<VEC, forge::cache::streaming>(input + from + c, x + k * VEC);
@BEFORE@
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j) x[k * VEC + j] = row_op::nothing();
        }
    }
    const int valid = COLS % SPAN == 0 ? N : N - (lane * VEC >= COLS - (STEPS - 1) * SPAN ? VEC : 0);
    row_op op{@PASS@};
    if constexpr (LANES <= 32) {
        op.finish(forge::warp_merge<LANES>(op.take<N>(x, valid)));
    } else {
        __shared__ row_op::state scratch[THREADS / 32];
        op.finish(forge::block_merge<LANES>(op.take<N>(x, valid), scratch));
    }
    if (own >= rows) return;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = k * SPAN + lane * VEC;
        if ((k + 1) * SPAN <= COLS || c < COLS) {
            @STORE_SUM@
            op.kept<VEC>(x + k * VEC, row, c);
@AFTER@
            forge::store<VEC>(@OUT@ + from + c, x + k * VEC);
        }
    }
}
