/*forge
format = 1
operator = "@OPERATOR@"

# Any output size, any strides: LANES threads of a warp stand on one output and share the elements of its window. Outputs
# are taken in the order they have in memory, so that stores, and for one lane the loads too, come from neighbours.

[let]
channels = "input.shape[-3]"
height = "input.shape[-2]"
width = "input.shape[-1]"
batch = "input.shape[0] if input.ndim == 4 else 1"
in_image = "input.stride[0] if input.ndim == 4 else 0"
out_image = "out.stride[0] if out.ndim == 4 else 0"
reached = "batch * in_image + channels * input.stride[-3] + height * input.stride[-2] + width * input.stride[-1]"

[tune]
BLOCK = [128, 256]
LANES = @LANES@                 # threads on one output

[require]
call = ["output_size[0] == out.shape[-2]", "output_size[1] == out.shape[-1]"]
busy = "LANES == 1 or LANES <= ceil_div(height, out.shape[-2]) * ceil_div(width, out.shape[-1])"
grid = "out.numel * LANES < 2 ** 31"

[define]
CHANNELS = "channels"
HEIGHT = "height"
WIDTH = "width"
OUT_HEIGHT = "out.shape[-2]"
OUT_WIDTH = "out.shape[-1]"
IN_IMAGE = "in_image"
IN_CHANNEL = "input.stride[-3]"
IN_ROW = "input.stride[-2]"
IN_COL = "input.stride[-1]"
OUT_IMAGE = "out_image"
OUT_CHANNEL = "out.stride[-3]"
OUT_ROW = "out.stride[-2]"
OUT_COL = "out.stride[-1]"
CHANNELS_LAST = "1 if out.stride[-3] == 1 and channels > 1 and out.shape[-1] * out.shape[-2] > 1 else 0"
WIDE = "1 if max(reached, out.numel * LANES) > 2 ** 30 else 0"   # 64-bit indices

[[launch]]
kernel = "adaptive_avgpool"
grid = ["ceil_div(out.numel * LANES, BLOCK)"]
block = ["BLOCK"]
args = ["input", "out", "out.numel"]
*/
#include <forge.cuh>

#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
adaptive_avgpool(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int outputs) {
    const int own = (int)(((long long)blockIdx.x * BLOCK + threadIdx.x) / LANES), lane = threadIdx.x % LANES;
    int rest = min(own, outputs - 1);               // every lane stays for the shuffles
#if CHANNELS_LAST
    const int channel = rest % CHANNELS; rest /= CHANNELS;
#endif
    const int col = rest % OUT_WIDTH; rest /= OUT_WIDTH;
    const int row = rest % OUT_HEIGHT; rest /= OUT_HEIGHT;
#if !CHANNELS_LAST
    const int channel = rest % CHANNELS; rest /= CHANNELS;
#endif
    const index_t image = rest;
    // Window of output i out of n over s: [floor(i * s / n), ceil((i + 1) * s / n)), as in eager.
    const int top = (int)((long long)row * HEIGHT / OUT_HEIGHT);
    const int bottom = (int)(((long long)(row + 1) * HEIGHT + OUT_HEIGHT - 1) / OUT_HEIGHT);
    const int left = (int)((long long)col * WIDTH / OUT_WIDTH);
    const int right = (int)(((long long)(col + 1) * WIDTH + OUT_WIDTH - 1) / OUT_WIDTH);
    const DTYPE_input* x = input + image * IN_IMAGE + (index_t)channel * IN_CHANNEL;
    const int across = right - left, count = (bottom - top) * across;
    float sum = 0.f;
    if (LANES == 1) {
        for (int y = top; y < bottom; ++y) {
            float part = 0.f;                       // row by row: shorter sums lose fewer digits
            for (int c = left; c < right; ++c) part += forge::to_float(x[(index_t)y * IN_ROW + (index_t)c * IN_COL]);
            sum += part;
        }
    } else {
        for (int e = lane; e < count; e += LANES)
            sum += forge::to_float(x[(index_t)(top + e / across) * IN_ROW + (index_t)(left + e % across) * IN_COL]);
#pragma unroll
        for (int o = LANES / 2; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    }
    if (lane == 0 && own < outputs)
        out[image * OUT_IMAGE + (index_t)channel * OUT_CHANNEL + (index_t)row * OUT_ROW + (index_t)col * OUT_COL] =
            forge::from_float<DTYPE_out>(sum / (float)count);
}
