/*forge
format = 1
operator = "@OPERATOR@"

# Contiguous planes, each of one channel: LANES threads stand on a plane, read its channel's numbers once and move ITEMS
# accesses each. A block has DEPTH planes side by side; large planes are cut over the second grid dimension.

[let]
plane = "@PLANE@"
planes = "input.numel // max(plane, 1)"
even = "8 if plane % 8 == 0 else 4 if plane % 4 == 0 else 2 if plane % 2 == 0 else 1"
reach = "min(even, 16 // min(input.itemsize, out.itemsize), input.align // input.itemsize, out.align // out.itemsize)"

[tune]
LANES = @LANES_TUNE@                    # threads side by side on one plane
DEPTH = @DEPTH_TUNE@                    # planes of a block
VEC = [8, 4, 2, 1]                      # elements of one access: as many as types, alignment and lengths allow, or half
ITEMS = @ITEMS_TUNE@                    # accesses of a thread in flight
STREAM = @STREAM_TUNE@                  # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"
threads = "LANES * DEPTH >= 64 and LANES * DEPTH <= 512"
busy = "ITEMS == 1 and LANES == 8 or plane > (LANES * ITEMS // 2) * VEC"
grid = "ceil_div(plane, LANES * VEC * ITEMS) <= 65535"

[define]
PLANE = "plane"
CHANNELS = "max(1, input.shape[1])"

[[launch]]
kernel = "batch_planes"
grid = ["ceil_div(planes, DEPTH)", "ceil_div(plane, LANES * VEC * ITEMS)"]
block = ["LANES", "DEPTH"]
args = ["input", "out", "planes"@ARGS@]
*/
#include <forge.cuh>

@CHANNEL@
constexpr forge::cache KEEP = forge::store_hint(STREAM);

extern "C" __global__ void __launch_bounds__(LANES * DEPTH)
batch_planes(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int planes@PARAMETERS@) {
    const int plane = blockIdx.x * DEPTH + threadIdx.y;
    if (plane >= planes) return;
    const int first = (blockIdx.y * (LANES * ITEMS) + threadIdx.x) * VEC;
    const DTYPE_input* from = input + (long long)plane * PLANE;
    float x[ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int at = first + i * (LANES * VEC);           // VEC divides PLANE
        if (at < PLANE) forge::load<VEC>(from + at, x[i]);
    }
    const channel apply = channel_at(plane % CHANNELS@PASS@);
    DTYPE_out* to = out + (long long)plane * PLANE;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int at = first + i * (LANES * VEC);
        if (at >= PLANE) break;
#pragma unroll
        for (int j = 0; j < VEC; ++j) x[i][j] = apply(x[i][j]);
        forge::store<VEC, KEEP>(to + at, x[i]);
    }
}
