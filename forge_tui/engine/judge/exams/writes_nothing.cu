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
//: caught = "the outputs are filled with a fresh pattern before every launch"
//: outcome = "wrong"
//: says = "nothing was written"
extern "C" __global__ void softmax_rows(const float* input, float* out, int rows, int cols) {
    if (rows < 0) out[0] = input[0] * cols;
}
