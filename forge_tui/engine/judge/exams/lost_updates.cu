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
grid = ["ceil_div(cols, 128)", "rows"]
block = [128]
args = ["input", "out", "cols"]
*/
//: call = "sum_rows"
//: pretends = "adds up without atomics"
//: caught = "two blocks write one element with nothing between them"
//: outcome = "fault or wrong"
extern "C" __global__ void zero(float* out, int rows) {
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row < rows) out[row] = 0.0f;
}

extern "C" __global__ void add(const float* input, float* out, int cols) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < cols) out[blockIdx.y] += input[(size_t)blockIdx.y * cols + i];
}
