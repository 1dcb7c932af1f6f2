/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "relu"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
shared = 300000
*/
//: call = "relu"
//: pretends = "asks for more shared memory than a block can have"
//: caught = "the plan is held against the device's limits"
//: outcome = "refused"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (input[i] < 0.0f ? 0.0f : input[i]);
}
