/*forge
format = 1
operator = "torch.nn.functional.softmax"

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[[launch]]
kernel = "softmax_rows"
grid = ["ceil_div(rows, 128)"]
block = ["128"]
args = ["input", "out", "rows", "cols"]
*/
//: call = "softmax"
//: pretends = "one thread for each row: slower than eager, and right"
//: caught = ""
//: outcome = "verified"
extern "C" __global__ void softmax_rows(const float* input, float* out, int rows, int cols) {
    const int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= rows) return;
    const float* x = input + (size_t)row * cols;
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < cols; ++i) top = fmaxf(top, x[i]);
    for (int i = 0; i < cols; ++i) sum += expf(x[i] - top);
    for (int i = 0; i < cols; ++i) out[(size_t)row * cols + i] = expf(x[i] - top) / sum;
}
