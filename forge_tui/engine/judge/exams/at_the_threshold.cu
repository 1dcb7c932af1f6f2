/*forge
format = 1
operator = "torch.gt"

[[launch]]
kernel = "at_the_threshold"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "gt"
//: pretends = "compares"
//: caught = "a draw in which elements equal the threshold"
//: outcome = "wrong"
//: says = "draw at the thresholds"
extern "C" __global__ void at_the_threshold(const float* input, bool* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = input[i] >= 0.5f;
}
