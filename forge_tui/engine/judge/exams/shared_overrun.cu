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
shared = "(cols - 1) * 4"
*/
//: call = "softmax"
//: pretends = "keeps a row in shared memory"
//: caught = "the array is shorter than the row"
//: outcome = "fault"
//: fault = "out_of_bounds"
//: cuda = "sanitizer"
extern "C" __global__ void softmax_rows(const float* input, float* out, int rows, int cols) {
    extern __shared__ float row[];
    const float* x = input + (size_t)blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += 128) row[i] = x[i];
    __syncthreads();
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; ++i) top = fmaxf(top, row[i]);
    for (int i = 0; i < cols; ++i) sum += expf(row[i] - top);
    for (int i = threadIdx.x; i < cols; i += 128) out[(size_t)blockIdx.x * cols + i] = expf(row[i] - top) / sum;
}
