/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "relu"
grid = ["ceil_div(input.numel, 1024)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
//: call = "relu_offset"
//: pretends = "loads four elements at once"
//: caught = "the captured tensor is aligned to 4 bytes only, and is placed so"
//: outcome = "fault"
//: fault = "misaligned"
extern "C" __global__ void relu(const float* input, float* out, int n) {
    const int i = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (i + 3 < n) {
        const float4 v = *reinterpret_cast<const float4*>(input + i);
        *reinterpret_cast<float4*>(out + i) =
            make_float4((v.x < 0.0f ? 0.0f : v.x), (v.y < 0.0f ? 0.0f : v.y), (v.z < 0.0f ? 0.0f : v.z), (v.w < 0.0f ? 0.0f : v.w));
    } else {
        for (int k = i; k < n; ++k) out[k] = (input[k] < 0.0f ? 0.0f : input[k]);
    }
}
