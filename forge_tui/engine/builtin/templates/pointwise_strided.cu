/*forge
format = 1
operator = "@OPERATOR@"

# Element by element over tensors of any strides, broadcast ones included: a stride of 0 is a value shared by a whole
# dimension. Dimensions that lie alike in all tensors are taken as one, the last is the innermost of the output. A thread
# makes ITEMS vectors of VEC elements of that last dimension; sizes and strides are build-time constants, so finding a
# vector's place costs multiplications only. Each element is read and written by one thread alone, so an in-place call
# is safe as long as pointers are not __restrict__.

[let]
@LET@
numel = "out.numel"

[tune]
BLOCK = [256, 128]
VEC = [8, 4, 2, 1]                      # elements of one access
ITEMS = @ITEMS@                         # vectors of a thread
STREAM = @STREAM@                       # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = [@ALIGNED@]

[define]
WIDE = "1 if @REACHED@ > 2 ** 30 else 0"   # 64-bit indices
@DEFINE@

[[launch]]
kernel = "pointwise_strided"
grid = ["ceil_div(numel, BLOCK * VEC * ITEMS)"]
block = ["BLOCK"]
args = [@NAMES@, "out", { int64 = "numel // VEC" }@ARGS@]
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

// VEC neighbours of the last dimension, or (stride 0) one value for all of them.
template <long long stride, class T>
__device__ __forceinline__ void fetch(const T* from, float* x) {
    if constexpr (stride == 1) {
        forge::load<VEC>(from, x);
    } else {
        static_assert(stride == 0 || VEC == 1, "vectors need neighbours");
        const float value = forge::to_float(*from);
#pragma unroll
        for (int j = 0; j < VEC; ++j) x[j] = value;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
pointwise_strided(@POINTERS@, DTYPE_out* out, long long vectors@PARAMETERS@) {
    constexpr index_t SIZES[@RANK@] = {@SIZES@};
    constexpr index_t STRIDES[@TENSOR_COUNT@][@RANK@] = {@STRIDES@};
    const index_t first = (index_t)blockIdx.x * (BLOCK * ITEMS) + threadIdx.x;
    index_t at[ITEMS][@TENSOR_COUNT@];              // offsets into each tensor, the output last
    float x[@OPERAND_COUNT@][ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        index_t rest = first + i * BLOCK;
        if (rest >= (index_t)vectors) break;
#pragma unroll
        for (int t = 0; t < @TENSOR_COUNT@; ++t) at[i][t] = 0;
#pragma unroll
        for (int d = @RANK@ - 1; d >= 0; --d) {
            const index_t size = d == @RANK@ - 1 ? SIZES[d] / VEC : SIZES[d];
            const index_t place = d == 0 ? rest : rest % size;
            rest /= size;
#pragma unroll
            for (int t = 0; t < @TENSOR_COUNT@; ++t) at[i][t] += place * (d == @RANK@ - 1 ? VEC : 1) * STRIDES[t][d];
        }
        @FETCH@
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (first + i * BLOCK >= (index_t)vectors) break;
        float result[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j) result[j] = apply(@ELEMENTS@@PASS@);
        forge::store<VEC, KEEP>(out + at[i][@OPERAND_COUNT@], result);
    }
}
