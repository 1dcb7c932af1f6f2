/*forge
format = 1
operator = "@OPERATOR@"

# Rows of any length: a block per row walks it twice, UNROLL accesses of a thread in flight. The second walk reads the
# row from shared memory where it was kept (KEEP = 1), else from memory again, where the L2 may still have it.

[let]
cols = "@COLS@"
rows = "@ROWS@"
@LET@
reach = "@REACH@"

[tune]
KEEP = @KEEP_TUNE@                      # 1: the row stays in shared memory
BLOCK = @BLOCK_TUNE@                    # threads on one row
VEC = @VEC_TUNE@                           # elements of one access: as many as types, alignment and lengths allow, or half
UNROLL = @UNROLL_TUNE@                  # accesses of a thread in flight
STREAM = @STREAM_TUNE@                  # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"
busy = "BLOCK == 32 or cols > (BLOCK - 32) * VEC"   # no warp without work
unrolled = "UNROLL == 1 or cols >= BLOCK * VEC * UNROLL"
fits = "KEEP == 0 or align(cols * input.itemsize, 16) <= max_shared - 1024"

[define]
COLS = "cols"
@DEFINE@

[[launch]]
kernel = "rows_stream"
grid = ["rows"]
block = ["BLOCK"]
shared = "align(cols * input.itemsize, 16) if KEEP else 0"
args = ["input", "out"@ARGS@]
*/
#include <forge.cuh>

@OFFSETS@
@OP@
constexpr forge::cache HINT = STREAM ? forge::cache::streaming : forge::cache::normal;
constexpr int SPAN = BLOCK * VEC, N = UNROLL * VEC;

extern "C" __global__ void __launch_bounds__(BLOCK)
rows_stream(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out@PARAMETERS@) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ row_op::state scratch[BLOCK / 32];
    DTYPE_input* row_copy = reinterpret_cast<DTYPE_input*>(memory);         // a thread reads only what it wrote
    const int row = blockIdx.x;
    const DTYPE_input* from = input + input_row(row);
    row_op op{@PASS@};
    row_op::state own = row_op::state::none();
    for (int start = threadIdx.x * VEC; start < COLS; start += SPAN * UNROLL) {
        float x[N];
        int valid = 0;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int c = start + u * SPAN;                 // VEC divides COLS
            if (c < COLS) {
                forge::load<VEC>(from + input_col(c), x + u * VEC);
                if (KEEP) forge::store<VEC>(row_copy + c, x + u * VEC);
                valid += VEC;
            } else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) x[u * VEC + j] = row_op::nothing();
            }
        }
        own.merge(op.take<N>(x, valid));
    }
    op.finish_fresh(forge::block_merge<BLOCK>(own, scratch));
    DTYPE_out* to = out + out_row(row);
    for (int start = threadIdx.x * VEC; start < COLS; start += SPAN * UNROLL) {
        float x[N];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int c = start + u * SPAN;
            if (c >= COLS) continue;
            if (KEEP) forge::load<VEC>(row_copy + c, x + u * VEC);
            else forge::load<VEC>(from + input_col(c), x + u * VEC);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int c = start + u * SPAN;
            if (c >= COLS) continue;
            op.fresh<VEC>(x + u * VEC, row, c);
            forge::store<VEC, HINT>(to + out_col(c), x + u * VEC);
        }
    }
}
