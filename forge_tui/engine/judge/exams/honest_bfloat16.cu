/*forge
format = 1
operator = "torch.nn.functional.silu"

[[launch]]
kernel = "silu"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "silu_bfloat16"
//: pretends = "computes in float32 and rounds once"
//: caught = ""
//: outcome = "verified"
#include <cuda_bf16.h>

extern "C" __global__ void silu(const __nv_bfloat16* input, __nv_bfloat16* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float x = __bfloat162float(input[i]);
    out[i] = __float2bfloat16(x / (1.0f + expf(-x)));
}
