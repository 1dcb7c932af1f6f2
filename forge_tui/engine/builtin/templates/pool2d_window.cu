/*forge
format = 1
operator = "@OPERATOR@"

# @WHAT@ of windows with padding@DILATED@, for any strides of input and output. A thread makes ITEMS outputs; outputs are
# taken in the order they have in memory, so neighbours read neighbours and overlapping windows meet in the L1. A window
# of up to 64 elements is unrolled: its size is a build-time constant.

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
ITEMS = @ITEMS@                       # outputs of a thread

[require]
call = [@GUARD@, "out.numel < 2 ** 31 - 4096"]

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
@WINDOW@
UNROLL_H = "kernel_size[0] if kernel_size[0] * kernel_size[1] <= 64 else 1"
UNROLL_W = "min(kernel_size[1], 64)"
CHANNELS_LAST = "1 if out.stride[-3] == 1 and channels > 1 and out.shape[-1] * out.shape[-2] > 1 else 0"
WIDE = "1 if max(reached, batch * out_image, out.numel) > 2 ** 30 else 0"   # 64-bit indices

[[launch]]
kernel = "pool2d_window"
grid = ["ceil_div(out.numel, BLOCK * ITEMS)"]
block = ["BLOCK"]
args = ["input", "out", "out.numel"]
*/
#include <forge.cuh>

#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif

@FOLD@

__device__ __forceinline__ float window(const DTYPE_input* __restrict__ x, int row, int col) {
    const int top = row * STRIDE_H - PAD_H, left = col * STRIDE_W - PAD_W;
    float value = @START@;
#pragma unroll UNROLL_H
    for (int i = 0; i < KERNEL_H; ++i) {
        const int y = top + i * DILATION_H;
#pragma unroll UNROLL_W
        for (int j = 0; j < KERNEL_W; ++j) {
            const int c = left + j * DILATION_W;
            if (y >= 0 && y < HEIGHT && c >= 0 && c < WIDTH)
                value = fold(value, forge::to_float(x[(index_t)y * IN_ROW + (index_t)c * IN_COL]));
        }
    }
    return finish(value, top, left);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
pool2d_window(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int outputs) {
    float value[ITEMS];
    index_t to[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        int rest = blockIdx.x * (BLOCK * ITEMS) + i * BLOCK + threadIdx.x;
        if (rest >= outputs) break;
#if CHANNELS_LAST
        const int channel = rest % CHANNELS; rest /= CHANNELS;
#endif
        const int col = rest % OUT_WIDTH; rest /= OUT_WIDTH;
        const int row = rest % OUT_HEIGHT; rest /= OUT_HEIGHT;
#if !CHANNELS_LAST
        const int channel = rest % CHANNELS; rest /= CHANNELS;
#endif
        const index_t image = rest;
        to[i] = image * OUT_IMAGE + (index_t)channel * OUT_CHANNEL + (index_t)row * OUT_ROW + (index_t)col * OUT_COL;
        value[i] = window(input + image * IN_IMAGE + (index_t)channel * IN_CHANNEL, row, col);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (blockIdx.x * (BLOCK * ITEMS) + i * BLOCK + threadIdx.x >= outputs) break;
        out[to[i]] = forge::from_float<DTYPE_out>(value[i]);
    }
}
