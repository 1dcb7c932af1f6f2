/*forge
format = 1
operator = "torch.sum"

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"
parts = "ceil_div(cols, 512)"

[[workspace]]
name = "partial"
dtype = "float32"
shape = ["rows", "parts"]

[[launch]]
kernel = "partial_sums"
grid = ["parts", "rows"]
block = [128]
args = ["input", "partial", "cols"]

[[launch]]
kernel = "combine"
grid = ["ceil_div(rows, 128)"]
block = ["128"]
args = ["partial", "out", "rows", "parts"]
*/
//: call = "sum_rows"
//: pretends = "partial sums in a workspace, a second launch to combine them"
//: caught = ""
//: outcome = "verified"
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

extern "C" __global__ void partial_sums(const float* input, float* partial, int cols) {
    __shared__ float shared[128];
    const float* x = input + (size_t)blockIdx.y * cols;
    float sum = 0.0f;
    for (int i = blockIdx.x * 512 + threadIdx.x; i < min(cols, (int)(blockIdx.x + 1) * 512); i += 128) sum += x[i];
    sum = over_block(sum, false, shared);
    if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

extern "C" __global__ void combine(const float* partial, float* out, int rows, int parts) {
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = 0; i < parts; ++i) sum += partial[row * parts + i];
    out[row] = sum;
}
