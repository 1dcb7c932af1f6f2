/*forge
format = 1
operator = "@OPERATOR@"

# Element by element over memory that all tensors fill without gaps and in the same order: a flat run of numel
# elements, whatever the shape. A thread moves ITEMS vectors of VEC elements, every load in flight before the first is
# used; neighbouring threads take neighbouring vectors. Only the vector that crosses the end goes element by element.
# Pointers are not __restrict__: an in-place call has one buffer under two names.

[let]
numel = "out.numel"
reach = "@REACH@"                       # most elements of one access

[tune]
BLOCK = [256, 128, 512]
VEC = [8, 4, 2, 1]                      # elements of one access: 16 bytes where alignment allows, or half of it
ITEMS = @ITEMS@                         # accesses of a thread in flight
STREAM = @STREAM@                       # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"

[define]
WIDE = "1 if numel > 2 ** 30 else 0"    # 64-bit indices

[[launch]]
kernel = "pointwise_dense"
grid = ["ceil_div(numel, BLOCK * VEC * ITEMS)"]
block = ["BLOCK"]
args = [@NAMES@, "out", { int64 = "numel" }@ARGS@]
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

// VEC elements from `at` on, fewer where the run ends; nobody asks where the whole tile lies inside.
template <bool whole, class T>
__device__ __forceinline__ void fetch(const T* from, index_t at, index_t size, float* x) {
    if (whole || at + VEC <= size) forge::load<VEC>(from + at, x);
    else forge::load_some<VEC>(from + at, (int)(size - at), 0.f, x);
}
template <bool whole>
__device__ __forceinline__ void emit(DTYPE_out* to, index_t at, index_t size, const float* x) {
    if (whole || at + VEC <= size) forge::store<VEC, KEEP>(to + at, x);
    else forge::store_some<VEC>(to + at, (int)(size - at), x);
}

template <bool whole>
__device__ __forceinline__ void make_tile(@POINTERS@, DTYPE_out* out, index_t first, index_t size@PARAMETERS@) {
    float x[@OPERAND_COUNT@][ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const index_t at = first + i * (BLOCK * VEC);
        @LOAD_PART@
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        float result[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j) result[j] = apply(@ELEMENTS@@PASS@);
        emit<whole>(out, first + i * (BLOCK * VEC), size, result);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
pointwise_dense(@POINTERS@, DTYPE_out* out, long long numel@PARAMETERS@) {
    const index_t size = (index_t)numel, tile = (index_t)blockIdx.x * (BLOCK * ITEMS * VEC);
    const index_t first = tile + threadIdx.x * VEC;
    if (tile + BLOCK * ITEMS * VEC <= size) make_tile<true>(@POINTER_NAMES@, out, first, size@PASS@);
    else make_tile<false>(@POINTER_NAMES@, out, first, size@PASS@);
}
