/*forge
format = 1
operator = "torch.nn.functional.relu"

[[workspace]]
name = "scratch"
dtype = "float32"
shape = ["input.numel"]

[[launch]]
kernel = "relu"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "scratch", "input.numel"]
*/
//: call = "relu"
//: pretends = "adds a scratch value that is often zero"
//: caught = "scratch memory is garbage unless the plan fills it"
//: outcome = "fault"
//: fault = "uninitialized"
//: cuda = "fault or wrong"
extern "C" __global__ void relu(const float* input, float* out, const float* scratch, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (input[i] < 0.0f ? 0.0f : input[i]) + scratch[i] * 0.0f;
}
