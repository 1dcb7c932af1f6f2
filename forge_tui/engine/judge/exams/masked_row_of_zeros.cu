/*forge
format = 1
operator = "torch.nn.functional.softmax"

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[[launch]]
kernel = "softmax_rows"
grid = ["rows"]
block = ["128"]
args = ["input", "out", "rows", "cols"]
*/
//: call = "softmax"
//: pretends = "a row that is masked throughout gives zeros, as attention would like"
//: caught = "a draw with such a row, where eager has NaN"
//: outcome = "wrong"
//: says = "draw masked row"
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

extern "C" __global__ void softmax_rows(const float* input, float* out, int rows, int cols) {
    __shared__ float shared[128];
    const float* x = input + (size_t)blockIdx.x * cols;
    float* y = out + (size_t)blockIdx.x * cols;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 128) top = fmaxf(top, x[i]);
    top = over_block(top, true, shared);
    for (int i = threadIdx.x; i < cols; i += 128) sum += expf(x[i] - top);
    sum = over_block(sum, false, shared);
    for (int i = threadIdx.x; i < cols; i += 128) y[i] = top == -INFINITY ? 0.0f : expf(x[i] - top) / sum;
}
