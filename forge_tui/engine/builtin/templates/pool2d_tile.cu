/*forge
format = 1
operator = "@OPERATOR@"

# @WHAT@ of windows with padding@DILATED@ over contiguous planes, tile by tile: a block reads the patch of input under
# TILE_H x TILE_W outputs once, in rows, into shared memory, and every overlapping window is served from there.

[let]
height = "input.shape[-2]"
width = "input.shape[-1]"
out_height = "out.shape[-2]"
out_width = "out.shape[-1]"
planes = "out.numel // max(out_height * out_width, 1)"
@LET_WINDOW@

[tune]
TILE_H = [8, 16, 4]
TILE_W = [32, 64, 16]
BLOCK = [256, 128]

[require]
call = [@GUARD@, "input.contiguous", "out.contiguous", "out.numel < 2 ** 31", "input.numel < 2 ** 31"]
fits = "((TILE_H - 1) * stride_h + reach_h) * ((TILE_W - 1) * stride_w + reach_w) * 4 <= 49152"
busy = "TILE_H * TILE_W >= BLOCK"
narrow = "TILE_W == 16 or TILE_W < 2 * out_width"
flat = "TILE_H == 4 or TILE_H < 2 * out_height"

[define]
HEIGHT = "height"
WIDTH = "width"
OUT_HEIGHT = "out_height"
OUT_WIDTH = "out_width"
@WINDOW@
DOWN = "ceil_div(out_height, TILE_H)"   # tiles of a plane
ACROSS = "ceil_div(out_width, TILE_W)"
ROWS = "(TILE_H - 1) * stride_h + reach_h"   # the patch of input
COLS = "(TILE_W - 1) * stride_w + reach_w"

[[launch]]
kernel = "pool2d_tile"
grid = ["planes * DOWN * ACROSS"]
block = ["BLOCK"]
args = ["input", "out"]
*/
#include <forge.cuh>

@FOLD@

extern "C" __global__ void __launch_bounds__(BLOCK)
pool2d_tile(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out) {
    __shared__ float patch[ROWS * COLS];
    const int tile = blockIdx.x % (DOWN * ACROSS);
    const long long plane = blockIdx.x / (DOWN * ACROSS);
    const int first_row = tile / ACROSS * TILE_H, first_col = tile % ACROSS * TILE_W;
    const int top = first_row * STRIDE_H - PAD_H, left = first_col * STRIDE_W - PAD_W;
    const DTYPE_input* x = input + plane * (HEIGHT * WIDTH);
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * COLS; i += BLOCK) {
        const int y = top + i / COLS, c = left + i % COLS;
        patch[i] = y >= 0 && y < HEIGHT && c >= 0 && c < WIDTH ? forge::to_float(x[y * WIDTH + c]) : @START@;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_H * TILE_W; i += BLOCK) {
        const int down = i / TILE_W, across = i % TILE_W;
        if (first_row + down >= OUT_HEIGHT || first_col + across >= OUT_WIDTH) continue;
        const float* from = patch + down * (STRIDE_H * COLS) + across * STRIDE_W;
        float value = @START@;
#pragma unroll
        for (int k = 0; k < KERNEL_H; ++k)
#pragma unroll
            for (int j = 0; j < KERNEL_W; ++j) value = fold(value, from[k * DILATION_H * COLS + j * DILATION_W]);
        value = finish(value, top + down * STRIDE_H, left + across * STRIDE_W);
        out[plane * (OUT_HEIGHT * OUT_WIDTH) + (first_row + down) * OUT_WIDTH + first_col + across] =
            forge::from_float<DTYPE_out>(value);
    }
}
