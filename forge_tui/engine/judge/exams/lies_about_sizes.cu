/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "relu"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel + 24"]
*/
//: call = "relu"
//: pretends = "is given a count that is too large"
//: caught = "every access is range-checked"
//: outcome = "fault"
//: fault = "out_of_bounds"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (input[i] < 0.0f ? 0.0f : input[i]);
}
