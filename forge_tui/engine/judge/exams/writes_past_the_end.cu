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
//: pretends = "has no check of its range"
//: caught = "every access is range-checked; on a GPU guard bands show it"
//: outcome = "fault"
//: fault = "out_of_bounds"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (input[i] < 0.0f ? 0.0f : input[i]);
    if (i == n - 1) out[n] = 0.0f;
}
