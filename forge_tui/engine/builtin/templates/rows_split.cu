/*forge
format = 1
operator = "@OPERATOR@"

# Few long rows: two launches. The first cuts every row into SPLIT slices, one block each, and leaves each slice's state in
# the workspace; in the second every warp merges the states of its row by itself, while its first values are on the way,
# and the block writes one slice. With REVERSE the second launch walks the tensor backwards, so that it starts on what
# the first one left in the L2.

[let]
cols = "@COLS@"
rows = "@ROWS@"
@LET@
reach = "@REACH@"

[tune]
SPLIT = @SPLIT_TUNE@                    # slices of a row
BLOCK = @BLOCK_TUNE@
VEC = @VEC_TUNE@                           # elements of one access: as many as types, alignment and lengths allow, or half
UNROLL = [4, 2, 1]                      # accesses of a thread in flight
REVERSE = [0, 1]

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"
blocks = "SPLIT <= max(2, ceil_div(cols, BLOCK * VEC))"     # no block without work
unrolled = "UNROLL == 1 or cols >= SPLIT * BLOCK * VEC * UNROLL"
reverse = "REVERSE == 0 or rows * cols * input.itemsize > l2_bytes // 8"    # no difference where all of it stays in the L2

[define]
COLS = "cols"
SLICE = "align(ceil_div(cols, SPLIT), VEC)"
@DEFINE@

[[workspace]]
name = "partial"
dtype = "float32"
shape = ["rows * SPLIT", "@STATE_FLOATS@"]

[[launch]]
kernel = "rows_gather"
grid = ["rows * SPLIT"]
block = ["BLOCK"]
args = ["input", "partial"@ARGS@]

[[launch]]
kernel = "rows_apply"
grid = ["rows * SPLIT"]
block = ["BLOCK"]
args = ["input", "partial", "out"@ARGS@]
*/
#include <forge.cuh>

@OFFSETS@
@OP@
constexpr int SPAN = BLOCK * VEC, N = UNROLL * VEC;

// UNROLL vectors of a thread, the first at `start`; beyond `end` is nothing. Returns how many elements there are.
__device__ __forceinline__ int fetch(const DTYPE_input* from, int start, int end, float* x) {
    int valid = 0;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int c = start + u * SPAN;
        if (c < end) {
            forge::load<VEC>(from + input_col(c), x + u * VEC);
            valid += VEC;
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j) x[u * VEC + j] = row_op::nothing();
        }
    }
    return valid;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
rows_gather(const DTYPE_input* __restrict__ input, float* __restrict__ partial@PARAMETERS@) {
    __shared__ row_op::state scratch[BLOCK / 32];
    const int row = blockIdx.x / SPLIT, begin = blockIdx.x % SPLIT * SLICE, end = min(begin + SLICE, COLS);
    const DTYPE_input* from = input + input_row(row);
    row_op op{@PASS@};
    row_op::state own = row_op::state::none();
    for (int start = begin + threadIdx.x * VEC; start < end; start += SPAN * UNROLL) {
        float x[N];
        const int valid = fetch(from, start, end, x);
        own.merge(op.take<N>(x, valid));
    }
    own = forge::block_merge<BLOCK>(own, scratch);
    if (threadIdx.x == 0) reinterpret_cast<row_op::state*>(partial)[blockIdx.x] = own;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
rows_apply(const DTYPE_input* __restrict__ input, const float* __restrict__ partial, DTYPE_out* __restrict__ out@PARAMETERS@) {
    const int block = REVERSE ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int row = block / SPLIT, begin = block % SPLIT * SLICE, end = min(begin + SLICE, COLS);
    const DTYPE_input* from = input + input_row(row);
    int start = begin + threadIdx.x * VEC;
    float x[N];
    fetch(from, start, end, x);                             // on the way while the states are merged
    row_op op{@PASS@};
    row_op::state all = row_op::state::none();
    for (int i = threadIdx.x % 32; i < SPLIT; i += 32)
        all.merge(reinterpret_cast<const row_op::state*>(partial)[row * SPLIT + i]);
    op.finish_fresh(forge::warp_merge<32>(all));
    DTYPE_out* to = out + out_row(row);
    while (start < end) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int c = start + u * SPAN;
            if (c >= end) continue;
            op.fresh<VEC>(x + u * VEC, row, c);
            forge::store<VEC, forge::cache::streaming>(to + out_col(c), x + u * VEC);
        }
        start += SPAN * UNROLL;
        if (start < end) fetch(from, start, end, x);
    }
}
