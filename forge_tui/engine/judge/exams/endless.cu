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
//: pretends = "waits for a value that never comes"
//: caught = "a limit on instructions, or the deadline"
//: outcome = "fault"
//: fault = "endless"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const volatile float* flag = input;
    if (i == 0) while (*flag != 12345.0f) { }
    if (i < n) out[i] = (input[i] < 0.0f ? 0.0f : input[i]);
}
