/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "relu"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu"
//: pretends = "clamps to the largest float"
//: caught = "draws with infinities, which relu keeps"
//: outcome = "wrong"
//: says = "draw infinities"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = input[i] > 3.402823466e+38f ? 3.402823466e+38f : input[i] < 0.0f ? 0.0f : input[i];
}
