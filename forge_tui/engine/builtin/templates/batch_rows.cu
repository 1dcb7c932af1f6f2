/*forge
format = 1
operator = "@OPERATOR@"

# Channels innermost in memory (channels_last, or a matrix): a thread owns VEC channels, keeps their numbers in registers
# and walks ROWS rows down, so that nothing is divided and the channels' numbers are read once per block.

[let]
channels = "input.shape[1]"
rows = "input.numel // max(channels, 1)"
even = "8 if channels % 8 == 0 else 4 if channels % 4 == 0 else 2 if channels % 2 == 0 else 1"
reach = "min(even, 16 // min(input.itemsize, out.itemsize), input.align // input.itemsize, out.align // out.itemsize)"

[tune]
LANES = @LANES_TUNE@                    # threads side by side on one row
ROWS = @ROWS_TUNE@                      # rows of a thread in flight
DEPTH = [4, 8, 2, 16, 1]                # rows of a block side by side
VEC = [8, 4, 2, 1]                      # elements of one access: as many as types, alignment and lengths allow, or half
STREAM = @STREAM_TUNE@                  # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@]
aligned = "VEC <= reach and VEC * 2 >= reach"
threads = "LANES * DEPTH >= 64 and LANES * DEPTH <= 256"
registers = "ROWS * VEC <= 32"
busy = "LANES == 8 or channels > LANES * VEC // 2"
grid = "ceil_div(channels, LANES * VEC) <= 65535"

[define]
CHANNELS = "channels"

[[launch]]
kernel = "batch_rows"
grid = ["ceil_div(rows, DEPTH * ROWS)", "ceil_div(channels, LANES * VEC)"]
block = ["LANES", "DEPTH"]
args = ["input", "out", "rows"@ARGS@]
*/
#include <forge.cuh>

@CHANNEL@
constexpr forge::cache KEEP = forge::store_hint(STREAM);

extern "C" __global__ void __launch_bounds__(LANES * DEPTH)
batch_rows(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int rows@PARAMETERS@) {
    const int c = (blockIdx.y * LANES + threadIdx.x) * VEC;                // VEC divides CHANNELS
    if (c >= CHANNELS) return;
    const int first = blockIdx.x * (DEPTH * ROWS) + threadIdx.y;
    float x[ROWS][VEC];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + r * DEPTH;
        if (row < rows) forge::load<VEC>(input + (long long)row * CHANNELS + c, x[r]);
    }
    channel apply[VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j) apply[j] = channel_at(c + j@PASS@);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + r * DEPTH;
        if (row >= rows) break;
#pragma unroll
        for (int j = 0; j < VEC; ++j) x[r][j] = apply[j](x[r][j]);
        forge::store<VEC, KEEP>(out + (long long)row * CHANNELS + c, x[r]);
    }
}
