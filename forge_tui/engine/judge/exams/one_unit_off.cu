/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "one_unit_off"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu"
//: pretends = "within any tolerance for float32"
//: caught = "relu copies its input: there is one right answer"
//: outcome = "wrong"
//: says = "must be equal"
extern "C" __global__ void one_unit_off(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = input[i] < 0.0f ? 0.0f : input[i] * 1.0000001f;
}
