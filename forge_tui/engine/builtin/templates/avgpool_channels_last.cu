/*forge
format = 1
operator = "@OPERATOR@"

# Mean over whole planes whose channels are innermost in memory (channels_last): a thread adds up VEC neighbouring
# channels, ROWS threads share the places of the plane, and shared memory merges them. Every read is a full line.

[let]
channels = "input.shape[-3]"
places = "input.shape[-1] * input.shape[-2]"
batch = "input.shape[0] if input.ndim == 4 else 1"
image = "input.stride[0] if input.ndim == 4 else 0"
even = "8 if channels % 8 == 0 else 4 if channels % 4 == 0 else 2 if channels % 2 == 0 else 1"
even_image = "8 if image % 8 == 0 else 4 if image % 4 == 0 else 2 if image % 2 == 0 else 1"
reach = "min(even, even_image, 16 // input.itemsize, input.align // input.itemsize)"

[tune]
LANES = [16, 8, 32]                     # threads side by side on the channels
ROWS = [8, 16, 32, 4]                   # threads on the places of a plane
VEC = [8, 4, 2, 1]                      # channels of a thread

[require]
call = [
    "out.shape[-1] == 1", "out.shape[-2] == 1", "input.stride[-3] == 1 or channels == 1",
    "input.stride[-1] == channels or input.shape[-1] == 1",
    "input.stride[-2] == channels * input.shape[-1] or input.shape[-2] == 1",
    "out.stride[-3] == 1 or channels == 1", "out.ndim == 3 or out.shape[0] == 1 or out.stride[0] == channels",
    "batch * ceil_div(channels, 8) <= 2 ** 30",
]
aligned = "VEC <= reach and VEC * 2 >= reach"
block = "LANES * ROWS >= 64 and LANES * ROWS <= 512"
busy = "ROWS == 4 or ROWS <= places"

[define]
CHANNELS = "channels"
PLACES = "places"
IMAGE = "image"
CHUNKS = "ceil_div(channels, LANES * VEC)"

[[launch]]
kernel = "avgpool_channels_last"
grid = ["batch * CHUNKS"]
block = ["LANES", "ROWS"]
args = ["input", "out"]
*/
#include <forge.cuh>

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
avgpool_channels_last(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out) {
    __shared__ float part[ROWS][LANES * VEC];
    const int image = blockIdx.x / CHUNKS, channel = (blockIdx.x % CHUNKS * LANES + threadIdx.x) * VEC;
    float sum[VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j) sum[j] = 0.f;
    if (channel < CHANNELS) {                       // VEC divides CHANNELS
        const DTYPE_input* x = input + (long long)image * IMAGE + channel;
#pragma unroll 4
        for (int place = threadIdx.y; place < PLACES; place += ROWS) {
            float value[VEC];
            forge::load<VEC>(x + (long long)place * CHANNELS, value);
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum[j] += value[j];
        }
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j) part[threadIdx.y][j * LANES + threadIdx.x] = sum[j];     // neighbours in neighbouring banks
    __syncthreads();
    for (int k = threadIdx.y * LANES + threadIdx.x; k < LANES * VEC; k += LANES * ROWS) {
        float total = 0.f;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) total += part[r][k];
        const int c = (blockIdx.x % CHUNKS * LANES + k % LANES) * VEC + k / LANES;
        if (c < CHANNELS) out[(long long)image * CHANNELS + c] = forge::from_float<DTYPE_out>(total / (float)PLACES);
    }
}
