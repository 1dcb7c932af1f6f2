/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "depends_on_place"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu"
//: pretends = "outputs lie behind inputs, as in the first launches"
//: caught = "draws elsewhere, outputs before inputs"
//: outcome = "wrong"
extern "C" __global__ void depends_on_place(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = input[i] < 0.0f || (const char*)out < (const char*)input ? 0.0f : input[i];
}
