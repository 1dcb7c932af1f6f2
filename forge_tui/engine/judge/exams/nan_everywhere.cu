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
//: pretends = "every comparison with NaN is false"
//: caught = "NaN must be where eager has it and nowhere else"
//: outcome = "wrong"
//: says = "NaN"
extern "C" __global__ void softmax_rows(const float* input, float* out, int rows, int cols) {
    for (int i = threadIdx.x; i < cols; i += 128) out[(size_t)blockIdx.x * cols + i] = nanf("");
}
