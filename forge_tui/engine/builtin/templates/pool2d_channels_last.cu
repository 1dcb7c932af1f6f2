/*forge
format = 1
operator = "@OPERATOR@"

# @WHAT@ of windows with padding@DILATED@ where channels are innermost in memory (channels_last): a thread makes VEC
# neighbouring channels of one output, so every read and write is a full vector and the place of the window is found
# once for all of them.

[let]
channels = "input.shape[-3]"
height = "input.shape[-2]"
width = "input.shape[-1]"
batch = "input.shape[0] if input.ndim == 4 else 1"
in_image = "input.stride[0] if input.ndim == 4 else 0"
out_image = "out.stride[0] if out.ndim == 4 else 0"
even = "8 if channels % 8 == 0 else 4 if channels % 4 == 0 else 2 if channels % 2 == 0 else 1"
reach = "min(even, 16 // input.itemsize, input.align // input.itemsize, out.align // out.itemsize)"

[tune]
BLOCK = [128, 256, 64]
VEC = [8, 4, 2, 1]                      # channels of a thread

[require]
call = [
    @GUARD@, "out.numel < 2 ** 31 - 4096",
    "input.stride[-3] == 1", "input.stride[-1] % channels == 0", "input.stride[-2] % channels == 0", "in_image % channels == 0",
    "out.stride[-3] == 1", "out.stride[-1] % channels == 0", "out.stride[-2] % channels == 0", "out_image % channels == 0",
]
aligned = "VEC <= reach and VEC * 2 >= reach"

[define]
CHANNELS = "channels"
HEIGHT = "height"
WIDTH = "width"
OUT_HEIGHT = "out.shape[-2]"
OUT_WIDTH = "out.shape[-1]"
IN_IMAGE = "in_image"
IN_ROW = "input.stride[-2]"
IN_COL = "input.stride[-1]"
OUT_IMAGE = "out_image"
OUT_ROW = "out.stride[-2]"
OUT_COL = "out.stride[-1]"
@WINDOW@
WIDE = "1 if max(batch * in_image, height * input.stride[-2], batch * out_image, out.numel) > 2 ** 30 else 0"   # 64-bit indices

[[launch]]
kernel = "pool2d_channels_last"
grid = ["ceil_div(out.numel // VEC, BLOCK)"]
block = ["BLOCK"]
args = ["input", "out", "out.numel // VEC"]
*/
#include <forge.cuh>

#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif

@FOLD@

extern "C" __global__ void __launch_bounds__(BLOCK)
pool2d_channels_last(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int vectors) {
    int rest = blockIdx.x * BLOCK + threadIdx.x;
    if (rest >= vectors) return;
    const int channel = rest % (CHANNELS / VEC) * VEC; rest /= CHANNELS / VEC;
    const int col = rest % OUT_WIDTH; rest /= OUT_WIDTH;
    const int row = rest % OUT_HEIGHT; rest /= OUT_HEIGHT;
    const index_t image = rest;
    const DTYPE_input* x = input + image * IN_IMAGE + channel;
    const int top = row * STRIDE_H - PAD_H, left = col * STRIDE_W - PAD_W;
    float value[VEC];
#pragma unroll
    for (int k = 0; k < VEC; ++k) value[k] = @START@;
#pragma unroll
    for (int i = 0; i < KERNEL_H; ++i) {
        const int y = top + i * DILATION_H;
#pragma unroll
        for (int j = 0; j < KERNEL_W; ++j) {
            const int c = left + j * DILATION_W;
            if (y < 0 || y >= HEIGHT || c < 0 || c >= WIDTH) continue;
            float one[VEC];
            forge::load<VEC>(x + (index_t)y * IN_ROW + (index_t)c * IN_COL, one);
#pragma unroll
            for (int k = 0; k < VEC; ++k) value[k] = fold(value[k], one[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < VEC; ++k) value[k] = finish(value[k], top, left);
    forge::store<VEC>(out + image * OUT_IMAGE + (index_t)row * OUT_ROW + (index_t)col * OUT_COL + channel, value);
}
