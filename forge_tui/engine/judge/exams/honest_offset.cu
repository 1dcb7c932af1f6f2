/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "relu"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu_offset"
//: pretends = "loads single elements of a tensor aligned to 4 bytes"
//: caught = ""
//: outcome = "verified"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (input[i] < 0.0f ? 0.0f : input[i]);
}
