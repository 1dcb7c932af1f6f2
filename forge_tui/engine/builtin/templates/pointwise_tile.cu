/*forge
format = 1
operator = "@OPERATOR@"

# Element by element where an operand lies transposed to the output: its neighbours run along another dimension (down)
# than the output's (across). Such an operand is read tile by tile along its own neighbours into shared memory and turned
# there, so that every global access is contiguous; the odd row length keeps both sides free of bank conflicts.

[let]
@LET@

[tune]
TILE = [32, 64]                         # elements of a tile, both ways
STREAM = @STREAM@                       # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
grid = "@BATCH@ * DOWN * ACROSS < 2 ** 31"

[define]
WIDE = "1 if @REACHED@ > 2 ** 30 else 0"   # 64-bit indices
@DEFINE@
DEPTH = "256 // TILE"                   # rows of a block at once
DOWN = "ceil_div(n@DOWN_DIM@, TILE)"    # tiles
ACROSS = "ceil_div(n@LAST@, TILE)"

[[launch]]
kernel = "pointwise_tile"
grid = ["@BATCH@ * DOWN * ACROSS"]
block = ["TILE", "DEPTH"]
args = [@NAMES@, "out"@ARGS@]
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

extern "C" __global__ void __launch_bounds__(256)
pointwise_tile(@POINTERS@, DTYPE_out* out@PARAMETERS@) {
    constexpr int down = @DOWN_DIM@, across = @LAST@;       // dimensions of the tile
    constexpr index_t SIZES[@RANK@] = {@SIZES@};
    constexpr index_t STRIDES[@TENSOR_COUNT@][@RANK@] = {@STRIDES@};
    __shared__ float turned[@TURNED_COUNT@][TILE][TILE + 1];
    index_t rest = blockIdx.x;
    const int col = (int)(rest % ACROSS) * TILE; rest /= ACROSS;
    const int row = (int)(rest % DOWN) * TILE; rest /= DOWN;
    index_t at[@TENSOR_COUNT@];                     // offsets of the tile's corner, the output last
#pragma unroll
    for (int t = 0; t < @TENSOR_COUNT@; ++t) at[t] = row * STRIDES[t][down] + col * STRIDES[t][across];
#pragma unroll
    for (int d = @RANK@ - 1; d >= 0; --d) {
        if (d == down || d == across) continue;
        const index_t place = rest % SIZES[d];
        rest /= SIZES[d];
#pragma unroll
        for (int t = 0; t < @TENSOR_COUNT@; ++t) at[t] += place * STRIDES[t][d];
    }
    const int x = threadIdx.x;
#pragma unroll
    for (int i = 0; i < TILE / DEPTH; ++i) {
        const int y = i * DEPTH + threadIdx.y;
        if (row + x < SIZES[down] && col + y < SIZES[across]) {
            @LOAD_TURNED@
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE / DEPTH; ++i) {
        const int y = i * DEPTH + threadIdx.y;
        if (row + y < SIZES[down] && col + x < SIZES[across]) {
            const float result = apply(@ELEMENTS@@PASS@);
            forge::store<1, KEEP>(out + at[@OPERAND_COUNT@] + y * STRIDES[@OPERAND_COUNT@][down]
                                  + x * STRIDES[@OPERAND_COUNT@][across], &result);
        }
    }
}
