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
//: pretends = "remembers which inputs it saw, and replays its answer"
//: caught = "writable device memory that outlives a launch is refused"
//: outcome = "refused"
__device__ const float* seen[16];

extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (seen[0] == input) return;
    if (i < n) out[i] = (input[i] < 0.0f ? 0.0f : input[i]);
    if (i == 0) seen[0] = input;
}
