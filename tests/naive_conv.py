"""A convolution with its norm and activation as a kernel that anyone can check: one thread an element, every sum in a loop in double."""

from __future__ import annotations

from forge_tui.specs import Call

AFTER = {"": "y", "torch.nn.functional.relu": "y < 0.f ? 0.f : y", "torch.nn.functional.silu": "y / (1.f + expf(-y))"}
TEXT = """/*forge
format = 1
operator = "@OPERATOR@"

[require]
call = ["input.contiguous", "weight.contiguous", "out.contiguous", "not training", "input.ndim == 4"]

[define]
CHANNELS = "input.shape[1]"
HEIGHT = "input.shape[2]"
WIDTH = "input.shape[3]"
DEPTH = "weight.shape[1]"
TALL = "weight.shape[2]"
WIDE = "weight.shape[3]"
OUT_CHANNELS = "out.shape[1]"
OUT_HEIGHT = "out.shape[2]"
OUT_WIDTH = "out.shape[3]"
GROUPS = "groups"
STEP_Y = "stride[0]"
STEP_X = "stride[1]"
PAD_Y = "padding[0]"
PAD_X = "padding[1]"
APART_Y = "dilation[0]"
APART_X = "dilation[1]"

[[launch]]
kernel = "naive_conv"
grid = ["ceil_div(out.numel, 128)"]
block = ["128"]
args = ["input", "weight"@BIAS_ARG@, "running_mean", "running_var", "norm_weight", "norm_bias", "out", "out.numel", { float = "eps" }]
*/
#include <forge.cuh>

extern "C" __global__ void naive_conv(const DTYPE_input* input, const DTYPE_weight* weight@BIAS@,
                                      const DTYPE_running_mean* running_mean, const DTYPE_running_var* running_var,
                                      const DTYPE_norm_weight* norm_weight, const DTYPE_norm_bias* norm_bias, DTYPE_out* out, int count, float eps) {
    const int at = blockIdx.x * 128 + threadIdx.x;
    if (at >= count) return;
    const int x0 = at % OUT_WIDTH, y0 = at / OUT_WIDTH % OUT_HEIGHT, c = at / (OUT_WIDTH * OUT_HEIGHT) % OUT_CHANNELS;
    const int image = at / (OUT_WIDTH * OUT_HEIGHT * OUT_CHANNELS), first = c / (OUT_CHANNELS / GROUPS) * DEPTH;
    double sum = @FIRST@;
    for (int k = 0; k < DEPTH; ++k)
        for (int i = 0; i < TALL; ++i)
            for (int j = 0; j < WIDE; ++j) {
                const int y = y0 * STEP_Y - PAD_Y + i * APART_Y, x = x0 * STEP_X - PAD_X + j * APART_X;
                if (y >= 0 && y < HEIGHT && x >= 0 && x < WIDTH)
                    sum += (double)forge::to_float(input[((image * CHANNELS + first + k) * HEIGHT + y) * WIDTH + x])
                         * forge::to_float(weight[((c * DEPTH + k) * TALL + i) * WIDE + j]);
            }
    const double scale = forge::to_float(norm_weight[c]) / sqrt((double)forge::to_float(running_var[c]) + eps);
    float y = (float)((sum - forge::to_float(running_mean[c])) * scale + forge::to_float(norm_bias[c]));
    y = @AFTER@;
    forge::store<1>(out + at, &y);
}
"""


def text_for(call: Call) -> str:
    """The kernel file for `conv2d+batch_norm` with or without an activation behind it."""
    after = "+".join(call.operator.split("+")[2:])
    with_bias = call.arguments["bias"] is not None
    words = {"OPERATOR": call.operator, "AFTER": AFTER[after], "BIAS_ARG": ', "bias"' * with_bias, "BIAS": ", const DTYPE_bias* bias" * with_bias,
             "FIRST": "forge::to_float(bias[c])" if with_bias else "0.f"}
    text = TEXT
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text
