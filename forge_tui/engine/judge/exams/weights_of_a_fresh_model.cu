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
//: call = "layer_norm_fresh"
//: pretends = "normalizes"
//: caught = "weights drawn anew, though the captured ones are all one and zero"
//: outcome = "wrong"
//: says = "draw other weights"
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
    for (int i = threadIdx.x; i < cols; i += 128) square += (x[i] - mean) * (x[i] - mean);
    square = over_block(square, false, shared) / cols;
    const float scale = 1.0f / sqrtf(square + eps);
    for (int i = threadIdx.x; i < cols; i += 128) {
        out[(size_t)blockIdx.x * cols + i] = (x[i] - mean) * scale ;
    }
}
