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
//: pretends = "writes one element too early as well"
//: caught = "every access is range-checked; on a GPU guard bands show it"
//: outcome = "fault"
//: fault = "out_of_bounds"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = (input[i] < 0.0f ? 0.0f : input[i]);
    if (i == 0) out[-1] = 0.0f;
}
