/*forge
format = 1
operator = "torch.nn.functional.relu"

[let]
rows = "input.shape[0]"
cols = "input.shape[1]"

[[launch]]
kernel = "relu"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "rows", "cols", "input.stride[0]", "input.stride[1]", "out.stride[0]", "out.stride[1]"]
*/
//: call = "relu_transposed"
//: pretends = "follows the strides of a transposed input"
//: caught = ""
//: outcome = "verified"
extern "C" __global__ void relu(const float* input, float* out, int rows, int cols, int s0, int s1, int t0, int t1) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < rows * cols) out[i / cols * t0 + i % cols * t1] = (input[i / cols * s0 + i % cols * s1] < 0.0f ? 0.0f : input[i / cols * s0 + i % cols * s1]);
}
