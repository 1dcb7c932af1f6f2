/*forge
format = 1
operator = "@OPERATOR@"

# One value in, one value out, over memory that both tensors fill without gaps and in the same order: a flat run of
# numel elements, whatever the shape. A thread moves ITEMS vectors of VEC elements, every load in flight before the
# first is used; neighbouring threads take neighbouring vectors. Only the vector that crosses the end goes by elements.
# Pointers are not __restrict__: an in-place call has one buffer under both names.

[let]
numel = "input.numel"
itemsize = "max(input.itemsize, out.itemsize)"
reach = "min(16, min(input.align * itemsize // input.itemsize, out.align * itemsize // out.itemsize))"   # bytes of the wider

[tune]
BLOCK = [256, 128, 512]
VEC = [8, 4, 2, 1]                      # elements of one access, 16 bytes where alignment allows
ITEMS = [1, 2, 4]                       # accesses of a thread in flight
STREAM = [0, 1]                         # 1: stores marked as not to be kept in the L2

[require]
call = [@GUARD@]
aligned = "VEC * itemsize <= reach or VEC == 1"
wide = "VEC * itemsize * 2 >= reach"    # half of what alignment allows at least
whole = "ITEMS == 1 or numel >= BLOCK * VEC * ITEMS * sm_count"
streaming = "STREAM == 0 or numel * itemsize >= l2_bytes // 4"

[define]
WIDE = "1 if numel > 2**30 else 0"

[[launch]]
kernel = "unary_dense"
grid = ["ceil_div(numel, BLOCK * VEC * ITEMS)"]
block = ["BLOCK"]
args = ["input", "out", { int64 = "numel" }@ARGS@]
*/
#include <forge.cuh>

#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif

__device__ __forceinline__ float apply(float x@PARAMETERS@) {
    @BODY@
}

extern "C" __global__ void __launch_bounds__(BLOCK)
unary_dense(const DTYPE_input* input, DTYPE_out* out, long long numel@PARAMETERS@) {
    const index_t size = (index_t)numel;
    const index_t first = ((index_t)blockIdx.x * (BLOCK * ITEMS) + threadIdx.x) * VEC;
    float x[ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        forge::load_part<VEC>(x[i], input, first + (index_t)i * (BLOCK * VEC), size);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) x[i][j] = apply(x[i][j]@PASS@);
        forge::store_part<VEC, STREAM>(out, x[i], first + (index_t)i * (BLOCK * VEC), size);
    }
}
