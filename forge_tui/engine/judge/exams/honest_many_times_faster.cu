/*forge
format = 1
operator = "torch.nn.functional.group_norm"

[let]
n = "input.numel"
parts = "n // 2048"
plane = "n // input.shape[1]"

[require]
call = ["num_groups == 1", "input.shape[0] == 1", "n % 2048 == 0", "parts <= 128", "input.contiguous"]

[[workspace]]
name = "partial"
dtype = "float32"
shape = ["parts", "3"]

[[launch]]
kernel = "gather"
grid = ["parts"]
block = [256]
args = ["input", "partial"]

[[launch]]
kernel = "apply"
grid = ["parts"]
block = [256]
args = ["input", "weight", "bias", "partial", "out", "parts", "plane", { float = "eps" }]
*/
//: call = "group_norm_one_group"
//: pretends = "spreads over the whole device what eager gives one block: more than ten times faster on a GPU, and right"
//: caught = ""
//: outcome = "verified"
#include <forge.cuh>

extern "C" __global__ void gather(const float* input, float* partial) {
    __shared__ forge::moments scratch[8];
    float x[8];
    for (int i = 0; i < 8; ++i) x[i] = input[blockIdx.x * 2048 + i * 256 + threadIdx.x];
    const forge::moments all = forge::block_merge<256>(forge::moments_of<8>(x), scratch);
    if (threadIdx.x == 0) reinterpret_cast<forge::moments*>(partial)[blockIdx.x] = all;
}

extern "C" __global__ void apply(const float* input, const float* weight, const float* bias, const float* partial, float* out,
                                 int parts, int plane, float eps) {
    forge::moments all = forge::moments::none();
    for (int i = threadIdx.x % 32; i < parts; i += 32) all.merge(reinterpret_cast<const forge::moments*>(partial)[i]);
    all = forge::warp_merge<32>(all);
    const float scale = rsqrtf(all.m2 / all.count + eps);
    for (int i = 0; i < 8; ++i) {
        const int at = blockIdx.x * 2048 + i * 256 + threadIdx.x, channel = at / plane;
        out[at] = (input[at] - all.mean) * scale * weight[channel] + bias[channel];
    }
}
