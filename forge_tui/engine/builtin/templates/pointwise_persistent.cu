/*forge
format = 1
operator = "@OPERATOR@"

# The same flat run as pointwise_dense, walked by as many blocks as stay resident: every thread loads its next ITEMS
# vectors before it computes and stores the ones it has, so that loads never wait for arithmetic, and there is no tail
# of half-filled waves. Pointers are not __restrict__: an in-place call has one buffer under two names.

[let]
numel = "out.numel"
reach = "@REACH@"                       # most elements of one access

[tune]
BLOCK = [256, 512, 128]
RESIDENT = [4, 2, 8]                    # blocks of one multiprocessor
VEC = [8, 4, 2, 1]                      # elements of one access: 16 bytes where alignment allows, or half of it
ITEMS = [1, 2]                          # accesses of a thread in flight
STREAM = @STREAM@                       # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"
resident = "BLOCK * RESIDENT <= threads_per_sm"

[define]
WIDE = "1 if numel > 2 ** 30 else 0"    # 64-bit indices

[[launch]]
kernel = "pointwise_persistent"
grid = ["min(ceil_div(numel, BLOCK * VEC * ITEMS), sm_count * RESIDENT)"]
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
__device__ __forceinline__ void load_tile(float (&x)[@OPERAND_COUNT@][ITEMS][VEC], @POINTERS@,
                                          index_t first, index_t size) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const index_t at = first + i * (BLOCK * VEC);
        @LOAD_PART@
    }
}

template <bool whole>
__device__ __forceinline__ void store_tile(const float (&x)[@OPERAND_COUNT@][ITEMS][VEC], DTYPE_out* out,
                                           index_t first, index_t size@PARAMETERS@) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        float result[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j) result[j] = apply(@ELEMENTS@@PASS@);
        emit<whole>(out, first + i * (BLOCK * VEC), size, result);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
pointwise_persistent(@POINTERS@, DTYPE_out* out, long long numel@PARAMETERS@) {
    constexpr int TILE = BLOCK * ITEMS * VEC;
    const index_t size = (index_t)numel, whole = size / TILE, step = gridDim.x;      // whole: tiles that lie inside
    const index_t own = threadIdx.x * VEC;
    index_t tile = blockIdx.x;
    float x[@OPERAND_COUNT@][ITEMS][VEC];
    if (tile < whole) load_tile<true>(x, @POINTER_NAMES@, tile * TILE + own, size);
    while (tile < whole) {
        float ahead[@OPERAND_COUNT@][ITEMS][VEC];
        if (tile + step < whole) load_tile<true>(ahead, @POINTER_NAMES@, (tile + step) * TILE + own, size);
        store_tile<true>(x, out, tile * TILE + own, size@PASS@);
        tile += step;
#pragma unroll
        for (int k = 0; k < @OPERAND_COUNT@; ++k)
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
#pragma unroll
                for (int j = 0; j < VEC; ++j) x[k][i][j] = ahead[k][i][j];
    }
    if (tile == whole && whole * TILE < size) {     // the last, partial tile falls to whoever is next
        load_tile<false>(x, @POINTER_NAMES@, tile * TILE + own, size);
        store_tile<false>(x, out, tile * TILE + own, size@PASS@);
    }
}
