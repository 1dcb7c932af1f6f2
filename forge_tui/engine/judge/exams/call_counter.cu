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
//: pretends = "is right on the first ten calls only"
//: caught = "writable device memory that outlives a launch is refused"
//: outcome = "refused"
__device__ int calls = 0;

extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = calls < 10 ? (input[i] < 0.0f ? 0.0f : input[i]) : 0.0f;
    if (i == 0) atomicAdd(&calls, 1);
}
