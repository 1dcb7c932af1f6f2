/*forge
format = 1
operator = "@OPERATOR@"

# The reduced dimension is not the innermost one in memory: neighbouring threads stand on neighbouring rows (VEC of them
# each), so that every access is contiguous across rows, and DEPTH threads share a row's elements. With KEEP the elements
# stay in registers; else they are read a second time, from the L2 where that holds them.

[let]
cols = "@COLS@"
rows = "@ROWS@"
@LET@
reach = "@ROW_REACH@"

[tune]
ACROSS = @ACROSS_TUNE@                  # threads side by side over rows
DEPTH = @DEPTH_TUNE@                    # threads on one row
KEEP = [1, 0]                           # 1: the elements stay in registers
VEC = [8, 4, 2, 1]                      # rows of one thread, one access: as many as types, alignment and lengths allow, or less
UNROLL = [4, 8]                         # elements of a row in flight when they are not kept

[require]
call = [@GUARD@]
aligned = "VEC <= reach"
threads = "ACROSS * DEPTH >= 32 and ACROSS * DEPTH <= 512"
registers = "ceil_div(cols, DEPTH) * VEC <= 64 if KEEP else UNROLL * VEC <= 32"
kept = "KEEP == 0 or UNROLL == 4"       # it has no part there
busy = "DEPTH == 1 or cols >= DEPTH"
side_by_side = "ACROSS == 8 or rows > ACROSS * VEC // 2"

[define]
COLS = "cols"
STEPS = "max(1, ceil_div(cols, DEPTH) if KEEP else UNROLL)"
@DEFINE@

[[launch]]
kernel = "columns"
grid = ["ceil_div(rows, ACROSS * VEC)"]
block = ["ACROSS", "DEPTH"]
args = ["input", "out", "rows"@ARGS@]
*/
#include <forge.cuh>

@OFFSETS@
@OP@
// STEPS elements of VEC neighbouring rows; beyond the end is nothing. Returns how many elements of a row there are.
__device__ __forceinline__ int fetch(const DTYPE_input* from, int start, float (&x)[VEC][STEPS]) {
    int valid = 0;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = start + k * DEPTH;
        float v[VEC];
        if (c < COLS) {
            forge::load<VEC>(from + input_col(c), v);
            ++valid;
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j) v[j] = row_op::nothing();
        }
#pragma unroll
        for (int j = 0; j < VEC; ++j) x[j][k] = v[j];
    }
    return valid;
}

extern "C" __global__ void __launch_bounds__(ACROSS * DEPTH)
columns(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int rows@PARAMETERS@) {
    __shared__ row_op::state scratch[DEPTH][ACROSS * VEC];
    const int row = (blockIdx.x * ACROSS + threadIdx.x) * VEC;              // VEC divides rows
    const bool there = row < rows;                                         // every thread stays for the barrier
    const DTYPE_input* from = input + input_row(there ? row : 0);
    DTYPE_out* to = out + out_row(there ? row : 0);
    row_op ops[VEC];
    row_op::state own[VEC];
    float x[VEC][STEPS];
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
        ops[j] = row_op{@PASS@};
        own[j] = row_op::state::none();
    }
    for (int start = threadIdx.y; start < COLS; start += DEPTH * STEPS) {  // once, with KEEP
        const int valid = fetch(from, start, x);
#pragma unroll
        for (int j = 0; j < VEC; ++j) own[j].merge(ops[j].take<STEPS>(x[j], valid));
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
        row_op::state all = own[j];
        if (DEPTH > 1) {
            if (j == 0) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) scratch[threadIdx.y][threadIdx.x * VEC + i] = own[i];
                __syncthreads();
            }
            all = scratch[0][threadIdx.x * VEC + j];
#pragma unroll
            for (int d = 1; d < DEPTH; ++d) all.merge(scratch[d][threadIdx.x * VEC + j]);
        }
        if (KEEP) ops[j].finish(all);
        else ops[j].finish_fresh(all);
    }
    if (!there) return;
    for (int start = threadIdx.y; start < COLS; start += DEPTH * STEPS) {
        if (!KEEP) fetch(from, start, x);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const int c = start + k * DEPTH;
            if (c >= COLS) break;
            float v[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                v[j] = x[j][k];
                if (KEEP) ops[j].kept<1>(v + j, row + j, c);
                else ops[j].fresh<1>(v + j, row + j, c);
            }
            forge::store<VEC>(to + out_col(c), v);
        }
    }
}
