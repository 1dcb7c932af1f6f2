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
//: pretends = "computes a softmax"
//: caught = "the mean of a softmax, written everywhere, is not eager's result"
//: outcome = "wrong"
extern "C" __global__ void softmax_rows(const float* input, float* out, int rows, int cols) {
    for (int i = threadIdx.x; i < cols; i += 128) out[(size_t)blockIdx.x * cols + i] = 1.0f / cols;
}
