/*forge
format = 1
operator = "@OPERATOR@"

# A function of its operands, and another function of that, both results: each operand is read once, each result written once. Memory that all
# tensors fill without gaps and in the same order. A thread moves ITEMS vectors of VEC elements, every load in flight before the first is used.
# Pointers are not __restrict__: the first result may be an operand's own memory.

[let]
numel = "out0.numel"
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
kernel = "add_act"
grid = ["ceil_div(numel, BLOCK * VEC * ITEMS)"]
block = ["BLOCK"]
args = [@NAMES@, "out0", "out1", { int64 = "numel" }]
*/
#include <forge.cuh>

#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif

__device__ __forceinline__ float apply(@VALUES@) {
    @BODY@
}
__device__ __forceinline__ float after(float x) {
    @AFTER@
}

constexpr forge::cache KEEP = forge::store_hint(STREAM);

extern "C" __global__ void __launch_bounds__(BLOCK)
add_act(@POINTERS@, DTYPE_out0* out0, DTYPE_out1* out1, long long numel) {
    const index_t size = (index_t)numel, first = (index_t)blockIdx.x * (BLOCK * ITEMS * VEC) + threadIdx.x * VEC;
    float x[@OPERAND_COUNT@][ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const index_t at = first + i * (BLOCK * VEC);
        if (at + VEC <= size) {
            @LOAD_PART@
        } else {
            const int left = (int)(size - at);
            @LOAD_SOME@
        }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const index_t at = first + i * (BLOCK * VEC);
        float one[VEC], two[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            one[j] = forge::rounded<DTYPE_out0>(apply(@ELEMENTS@));
            two[j] = after(one[j]);
        }
        if (at + VEC <= size) {
            forge::store<VEC>(out0 + at, one);
            forge::store<VEC, KEEP>(out1 + at, two);
        } else {
            forge::store_some<VEC>(out0 + at, (int)(size - at), one);
            forge::store_some<VEC>(out1 + at, (int)(size - at), two);
        }
    }
}
