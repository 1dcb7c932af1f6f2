/*forge
format = 1
operator = "torch.nn.functional.softmax"

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[[launch]]
kernel = "softmax_rows"
grid = ["ceil_div(rows, 4)"]
block = ["128"]
args = ["input", "out", "rows", "cols"]
*/
//: call = "softmax"
//: pretends = "a warp for each row, no barrier"
//: caught = ""
//: outcome = "verified"
extern "C" __global__ void softmax_rows(const float* input, float* out, int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* x = input + (size_t)row * cols;
    float top = -INFINITY, sum = 0.0f;
    for (int i = lane; i < cols; i += 32) top = fmaxf(top, x[i]);
    for (int step = 16; step > 0; step >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    for (int i = lane; i < cols; i += 32) sum += expf(x[i] - top);
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int i = lane; i < cols; i += 32) out[(size_t)row * cols + i] = expf(x[i] - top) / sum;
}
