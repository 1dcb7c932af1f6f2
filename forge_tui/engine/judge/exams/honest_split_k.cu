/*forge
format = 1
operator = "torch.sum"

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[[launch]]
kernel = "zero"
grid = ["ceil_div(rows, 128)"]
block = ["128"]
args = ["out", "rows"]

[[launch]]
kernel = "add"
grid = ["ceil_div(cols, 512)", "rows"]
block = [128]
args = ["input", "out", "cols"]
*/
//: call = "sum_rows"
//: pretends = "blocks add their parts with float atomics, in any order"
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

extern "C" __global__ void zero(float* out, int rows) {
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row < rows) out[row] = 0.0f;
}

extern "C" __global__ void add(const float* input, float* out, int cols) {
    __shared__ float shared[128];
    const float* x = input + (size_t)blockIdx.y * cols;
    float sum = 0.0f;
    for (int i = blockIdx.x * 512 + threadIdx.x; i < min(cols, (int)(blockIdx.x + 1) * 512); i += 128) sum += x[i];
    sum = over_block(sum, false, shared);
    if (threadIdx.x == 0) atomicAdd(out + blockIdx.y, sum);
}
