/*forge
format = 1
operator = "torch.nn.functional.adaptive_avg_pool2d"

# The general file: any number of planes, any plane size, no alignment asked. LANES threads of a warp share one plane
# and read neighbouring floats; ROWS planes of one lane group are in flight together.

[let]
planes = "input.shape[0] * input.shape[1]"
cols = "input.shape[2] * input.shape[3]"

[tune]
BLOCK = [64, 128, 256]
LANES = [4, 8, 16, 32]                  # threads on one plane
ROWS = [1, 2, 4]                        # planes of one lane group

[require]
global_mean = "out.numel == planes"
call = ["input.ndim == 4", "input.dtype == 'float32'", "input.contiguous"]
registers = "ceil_div(cols, LANES) * ROWS <= 64"

[define]
COLS = "cols"
TILE = "(BLOCK // LANES) * ROWS"

[[launch]]
kernel = "avgpool_lanes"
grid = ["ceil_div(planes, TILE)"]
block = ["BLOCK"]
args = ["input", "out", "planes"]
*/

constexpr int STEPS = (COLS + LANES - 1) / LANES;

extern "C" __global__ void __launch_bounds__(BLOCK)
avgpool_lanes(const float* __restrict__ input, float* __restrict__ out, int planes) {
    constexpr int GROUPS = BLOCK / LANES;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const int first = blockIdx.x * (GROUPS * ROWS) + group;
    float v[ROWS][STEPS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int plane = min(first + r * GROUPS, planes - 1);      // every lane stays for the shuffles
        const float* x = input + (size_t)plane * COLS;
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const int c = k * LANES + lane;
            v[r][k] = ((k + 1) * LANES <= COLS || c < COLS) ? __ldg(x + c) : 0.f;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float s = v[r][0];
#pragma unroll
        for (int k = 1; k < STEPS; ++k) s += v[r][k];
#pragma unroll
        for (int o = LANES / 2; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
        const int plane = first + r * GROUPS;
        if (lane == 0 && plane < planes) out[plane] = s / (float)COLS;
    }
}
