/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "relu"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu_transposed"
//: pretends = "reads its input from first to last"
//: caught = "the input is a transposed view"
//: outcome = "wrong"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i / 33 + i % 33 * 47] = (input[i] < 0.0f ? 0.0f : input[i]);
}
