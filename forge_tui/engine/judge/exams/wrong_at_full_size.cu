/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "wrong_at_full_size"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu_large"
//: pretends = "right on every reduced call"
//: caught = "a launch at full size"
//: outcome = "wrong"
//: says = "full size"
//: cuda = "wrong"
extern "C" __global__ void wrong_at_full_size(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = n > 500000 || input[i] < 0.0f ? 0.0f : input[i];
}
