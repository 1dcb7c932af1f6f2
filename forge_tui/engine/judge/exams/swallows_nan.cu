/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "swallows_nan"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu"
//: pretends = "a maximum with zero"
//: caught = "a draw with NaN: fmaxf gives the other operand, relu keeps NaN"
//: outcome = "wrong"
//: says = "draw not a number"
extern "C" __global__ void swallows_nan(const float* input, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fmaxf(input[i], 0.0f);
}
