/*forge
format = 1
operator = "@OPERATOR@"

# One operand is a row of cols elements repeated over every row of the others (a bias, a position table). A thread keeps
# its VEC elements of that row in registers and walks ROWS rows down, so the row is read once per block and no element
# needs a division to find its place. LANES threads stand side by side on a row. Pointers are not __restrict__: an
# in-place call has one buffer under two names.

[let]
cols = "@ROW@.numel"
rows = "out.numel // max(@ROW@.numel, 1)"
even = "8 if cols % 8 == 0 else 4 if cols % 4 == 0 else 2 if cols % 2 == 0 else 1"
reach = "min(even, @REACH@)"

[tune]
LANES = [32, 64, 128, 256]              # threads side by side on one row
ROWS = @ROWS@                           # rows of a thread in flight
VEC = [8, 4, 2, 1]                      # elements of one access: as many as alignment and row length allow, or half
STREAM = @STREAM@                       # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"
busy = "LANES == 32 or (LANES // 2) * VEC < cols"   # no thread that is always beyond the row

[define]
COLS = "cols"
DEPTH = "256 // LANES"                  # rows of a block side by side
WIDE = "1 if out.numel > 2 ** 30 else 0"   # 64-bit indices

[[launch]]
kernel = "pointwise_rows"
grid = ["ceil_div(rows, DEPTH * ROWS)", "ceil_div(cols, LANES * VEC)"]
block = ["LANES", "DEPTH"]
args = [@NAMES@, "out", "rows"@ARGS@]
*/
#include <forge.cuh>

#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif

__device__ __forceinline__ float apply(@VALUES@@PARAMETERS@) {
    @BODY@
}

constexpr forge::cache KEEP = forge::store_hint(STREAM);

extern "C" __global__ void __launch_bounds__(LANES * DEPTH)
pointwise_rows(@POINTERS@, DTYPE_out* out, int rows@PARAMETERS@) {
    const int col = (blockIdx.y * LANES + threadIdx.x) * VEC;      // VEC divides COLS
    if (col >= COLS) return;
    float shared_row[VEC], x[ROWS][VEC];
    forge::load<VEC>(@ROW@ + col, shared_row);
    const int first = blockIdx.x * (DEPTH * ROWS) + threadIdx.y;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + r * DEPTH;
        if (row < rows) forge::load<VEC>(@OTHER@ + (index_t)row * COLS + col, x[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + r * DEPTH;
        if (row >= rows) break;
        float result[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j) result[j] = apply(@ELEMENTS@@PASS@);
        forge::store<VEC, KEEP>(out + (index_t)row * COLS + col, result);
    }
}
