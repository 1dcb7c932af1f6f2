/*forge
format = 1
operator = "@OPERATOR@"

# Padding (or, with negative amounts, cutting) of any dimensions: a thread makes ITEMS vectors of VEC outputs, in the order
# the output has in memory, and finds where each comes from. Dimensions that are not padded and lie alike on both sides
# are taken as one. Sizes are build-time constants: no division is left. A vector is never part input and part padding.

[let]
@LET@

[tune]
BLOCK = [256, 128]
VEC = [8, 4, 2, 1]                      # elements of one access
ITEMS = @ITEMS@                         # vectors of a thread

[require]
call = [@GUARD@]
aligned = [@ALIGNED@]

[define]
@DEFINE@
WIDE = "1 if @REACHED@ > 2 ** 30 else 0"   # 64-bit indices

[[launch]]
kernel = "pad_any"
grid = ["ceil_div(out.numel, BLOCK * VEC * ITEMS)"]
block = ["BLOCK"]
args = ["input", "out", { int64 = "out.numel // VEC" }, { float = "@VALUE@" }]
*/
#include <forge.cuh>

#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif

// Which of `size` inputs stands at `place`, counted from the first one; a place outside stays outside only where
// padding is a constant.
__device__ __forceinline__ index_t source(index_t place, index_t size) {
    @SOURCE@
}

extern "C" __global__ void __launch_bounds__(BLOCK)
pad_any(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, long long vectors, float value) {
    constexpr index_t SIZES[@RANK@] = {@SIZES@}, INPUTS[@RANK@] = {@INPUTS@}, BEFORE[@RANK@] = {@BEFORES@};
    constexpr index_t IN_STEPS[@RANK@] = {@IN_STEPS@}, OUT_STEPS[@RANK@] = {@OUT_STEPS@};
    const index_t first = (index_t)blockIdx.x * (BLOCK * ITEMS) + threadIdx.x;
    float x[ITEMS][VEC];
    index_t to[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        index_t rest = first + i * BLOCK, from = 0;
        if (rest >= (index_t)vectors) break;
        bool inside = true;
        to[i] = 0;
#pragma unroll
        for (int d = @RANK@ - 1; d >= 0; --d) {
            const index_t width = d == @RANK@ - 1 ? VEC : 1, size = SIZES[d] / width;
            const index_t place = (d == 0 ? rest : rest % size) * width;
            rest /= size;
            to[i] += place * OUT_STEPS[d];
            const index_t own = source(place - BEFORE[d], INPUTS[d]);
            inside = inside && own >= 0 && own < INPUTS[d];
            from += own * IN_STEPS[d];
        }
        if (inside) {
            forge::load<VEC>(input + from, x[i]);
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j) x[i][j] = value;
        }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (first + i * BLOCK >= (index_t)vectors) break;
        forge::store<VEC>(out + to[i], x[i]);
    }
}
