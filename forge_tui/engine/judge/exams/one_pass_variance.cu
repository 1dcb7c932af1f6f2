/*forge
format = 1
operator = "torch.nn.functional.layer_norm"

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[[launch]]
kernel = "layer_norm"
grid = ["rows"]
block = [128]
args = ["input", "weight", "bias", "out", "cols", { float = "eps" }]
*/
//: call = "layer_norm"
//: pretends = "normalizes in one pass"
//: caught = "a mean far from zero: the difference of two averages loses the digits"
//: outcome = "wrong"
//: says = "draw far from zero"
// Sum or maximum over the 128 threads of a block.
__device__ float over_block(float value, bool largest, float* shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int step = 64; step > 0; step >>= 1) {
        if (threadIdx.x < step) {
            const float other = shared[threadIdx.x + step];
            shared[threadIdx.x] = largest ? fmaxf(shared[threadIdx.x], other) : shared[threadIdx.x] + other;
        }
        __syncthreads();
    }
    value = shared[0];
    __syncthreads();
    return value;
}

extern "C" __global__ void layer_norm(const float* input, const float* weight, const float* bias, float* out, int cols,
                                      float eps) {
    __shared__ float shared[128];
    const float* x = input + (size_t)blockIdx.x * cols;
    float mean = 0.0f, square = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 128) mean += x[i];
    mean = over_block(mean, false, shared) / cols;
    for (int i = threadIdx.x; i < cols; i += 128) square += x[i] * x[i];
    square = over_block(square, false, shared) / cols;
    const float scale = rsqrtf(fmaxf(square - mean * mean, 0.0f) + eps);
    for (int i = threadIdx.x; i < cols; i += 128) {
        out[(size_t)blockIdx.x * cols + i] = (x[i] - mean) * scale * weight[i] + bias[i];
    }
}
