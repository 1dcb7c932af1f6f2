/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "late_row"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu_large"
//: pretends = "right on the first rows"
//: caught = "a launch at full size"
//: outcome = "wrong"
//: says = "full size"
//: cuda = "wrong"
extern "C" __global__ void late_row(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = input[i] < 0.0f && i < 700000 ? 0.0f : input[i];
}
