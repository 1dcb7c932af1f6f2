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
//: pretends = "has a barrier inside a condition"
//: caught = "not every thread of the block reaches it"
//: outcome = "fault"
//: fault = "divergent_barrier"
//: cuda = "fault or wrong"
// On a device the barrier pairs with a later one of the other threads, which then read the sum before it is there.
extern "C" __global__ void softmax_rows(const float* input, float* out, int rows, int cols) {
    __shared__ float sum;
    const float* x = input + (size_t)blockIdx.x * cols;
    float top = -INFINITY;
    for (int i = 0; i < cols; ++i) top = fmaxf(top, x[i]);
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
    if (threadIdx.x < 50) __syncthreads();
    if (threadIdx.x == 0) {
        float mine = 0.0f;
        for (int i = 0; i < cols; ++i) mine += expf(x[i] - top);
        sum = mine;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += 128) out[(size_t)blockIdx.x * cols + i] = expf(x[i] - top) / sum;
}
