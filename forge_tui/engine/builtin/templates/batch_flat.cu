/*forge
format = 1
operator = "@OPERATOR@"

# Any dense layout, any size: one flat run, a channel looked up for every access (for every element where an access spans
# channels). Small or odd planes, where lanes on a plane would be idle.

[let]
numel = "input.numel"
inner = "@PLANE@"                       # neighbouring elements of one channel
reach = "min(16 // max(input.itemsize, out.itemsize), input.align // input.itemsize, out.align // out.itemsize)"

[tune]
BLOCK = [256, 128, 512]
VEC = [8, 4, 2, 1]                      # elements of one access: as many as types and alignment allow, or half
STREAM = @STREAM_TUNE@                  # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"

[define]
INNER = "max(1, inner)"
CHANNELS = "max(1, input.shape[1])"
WIDE = "1 if numel > 2 ** 30 else 0"    # 64-bit indices

[[launch]]
kernel = "batch_flat"
grid = ["ceil_div(numel, BLOCK * VEC)"]
block = ["BLOCK"]
args = ["input", "out", { int64 = "numel" }@ARGS@]
*/
#include <forge.cuh>

#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif

@CHANNEL@
constexpr forge::cache KEEP = forge::store_hint(STREAM);

extern "C" __global__ void __launch_bounds__(BLOCK)
batch_flat(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, long long numel@PARAMETERS@) {
    const index_t size = (index_t)numel, at = ((index_t)blockIdx.x * BLOCK + threadIdx.x) * VEC;
    if (at >= size) return;
    const int valid = (int)min((index_t)VEC, size - at);
    float x[VEC];
    if (valid == VEC) forge::load<VEC>(input + at, x);
    else forge::load_some<VEC>(input + at, valid, 0.f, x);
    if (INNER % VEC == 0) {
        const channel apply = channel_at((int)(at / INNER % CHANNELS)@PASS@);
#pragma unroll
        for (int j = 0; j < VEC; ++j) x[j] = apply(x[j]);
    } else {
#pragma unroll
        for (int j = 0; j < VEC; ++j) x[j] = channel_at((int)((at + j) / INNER % CHANNELS)@PASS@)(x[j]);
    }
    if (valid == VEC) forge::store<VEC, KEEP>(out + at, x);
    else forge::store_some<VEC>(out + at, valid, x);
}
