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
//: pretends = "makes its input zero and its output too, so that both agree"
//: caught = "inputs are read-only, and compared bit by bit afterwards"
//: outcome = "fault"
//: fault = "read_only"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = const_cast<float*>(input)[i] = 0.0f;
}
