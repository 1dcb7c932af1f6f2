/*forge
format = 1
operator = "@OPERATOR@"

# Mean of whole contiguous planes of any size, straight from global memory: LANES threads stand on one plane and read
# neighbouring vectors. Up to 32 of them merge by shuffles; a whole block on one plane also goes through shared memory.

[let]
cols = "input.shape[-1] * input.shape[-2]"
planes = "out.numel"
even = "8 if cols % 8 == 0 else 4 if cols % 4 == 0 else 2 if cols % 2 == 0 else 1"
reach = "min(even, 16 // input.itemsize, input.align // input.itemsize)"

[tune]
BLOCK = [128, 256]
LANES = @LANES@    # threads on one plane
VEC = [8, 4, 2, 1]                      # elements of one access: as many as alignment and plane size allow

[require]
call = ["input.contiguous", "out.contiguous", "out.shape[-1] == 1", "out.shape[-2] == 1", "planes <= 2 ** 30"]
aligned = "VEC == reach"
lanes = "LANES <= 32 or LANES == BLOCK"
busy = "LANES == 4 or LANES * VEC < 2 * cols"   # no thread without work

[define]
COLS = "cols"

[[launch]]
kernel = "avgpool_lanes"
grid = ["ceil_div(planes, BLOCK // LANES)"]
block = ["BLOCK"]
args = ["input", "out", "planes"]
*/
#include <forge.cuh>

extern "C" __global__ void __launch_bounds__(BLOCK)
avgpool_lanes(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int planes) {
    const int lane = threadIdx.x % LANES, plane = blockIdx.x * (BLOCK / LANES) + threadIdx.x / LANES;
    float sum[VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j) sum[j] = 0.f;
    if (plane < planes) {
        const DTYPE_input* x = input + (long long)plane * COLS;
#pragma unroll 4
        for (int c = lane * VEC; c < COLS; c += LANES * VEC) {     // VEC divides COLS
            float value[VEC];
            forge::load<VEC>(x + c, value);
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum[j] += value[j];
        }
    }
    float total = sum[0];
#pragma unroll
    for (int j = 1; j < VEC; ++j) total += sum[j];
#pragma unroll
    for (int o = (LANES < 32 ? LANES : 32) / 2; o > 0; o >>= 1) total += __shfl_xor_sync(0xffffffffu, total, o);
    if (LANES > 32) {
        __shared__ float part[BLOCK / 32];
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = total;
        __syncthreads();
        total = 0.f;
#pragma unroll
        for (int w = 0; w < BLOCK / 32; ++w) total += part[w];
    }
    if (lane == 0 && plane < planes) out[plane] = forge::from_float<DTYPE_out>(total / (float)COLS);
}
