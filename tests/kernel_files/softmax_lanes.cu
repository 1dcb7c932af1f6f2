/*forge
format = 1
operator = "torch.nn.functional.softmax"

# bfloat16 in, float32 out, short and middle rows: LANES threads of one warp own ROWS rows each, all of them in
# registers. One read, one write, no shared memory, no barrier. VEC = 4 makes loads (8 B) and stores (16 B) of a warp
# both contiguous; VEC = 8 halves the loads.

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[tune]
WARPS = [1, 2, 4, 8]
LANES = [16, 32]                        # threads on one row
ROWS = [1, 2]                           # rows of a lane group, side by side
VEC = [4, 8]
STREAM = [0, 1]                         # 1: stores marked as not to be kept in the L2

[require]
call = ["input.dtype == 'bfloat16'", "out.dtype == 'float32'", "input.contiguous", "dim == -1 or dim == input.ndim - 1"]
aligned = "cols % (LANES * VEC) == 0"
registers = "cols // LANES * ROWS <= 64"
enough = "(rows >= ROWS or ROWS == 1) and (rows >= TILE or WARPS == 1)"
streaming = "STREAM == 0 or rows * cols >= 1048576"

[define]
COLS = "cols"
TILE = "WARPS * (32 // LANES) * ROWS"   # rows of a block

[[launch]]
kernel = "softmax_lanes"
grid = ["ceil_div(rows, TILE)"]
block = ["32 * WARPS"]
args = ["input", "out", "rows"]
*/

constexpr unsigned ALL = 0xffffffffu;
constexpr int STEPS = COLS / (LANES * VEC);
constexpr int N = STEPS * VEC;                              // values of a row in one thread

__device__ __forceinline__ float lo(unsigned p) { return __uint_as_float(p << 16); }
__device__ __forceinline__ float hi(unsigned p) { return __uint_as_float(p & 0xffff0000u); }

extern "C" __global__ void __launch_bounds__(32 * WARPS)
softmax_lanes(const unsigned short* __restrict__ input, float* __restrict__ out, int rows) {
    constexpr int GROUPS = 32 / LANES;                      // rows of a warp side by side
    const int lane = threadIdx.x % LANES;
    const int first = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * (GROUPS * ROWS) + (threadIdx.x & 31) / LANES;
    float x[ROWS][N];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = min(first + r * GROUPS, rows - 1);  // every lane stays for the shuffles
        const unsigned short* p = input + (size_t)row * COLS + lane * VEC;
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            float* v = x[r] + k * VEC;
            if (VEC == 8) {
                const uint4 u = __ldcs(reinterpret_cast<const uint4*>(p + k * LANES * VEC));
                v[0] = lo(u.x); v[1] = hi(u.x); v[2] = lo(u.y); v[3] = hi(u.y);
                v[VEC - 4] = lo(u.z); v[VEC - 3] = hi(u.z); v[VEC - 2] = lo(u.w); v[VEC - 1] = hi(u.w);
            } else {
                const uint2 u = __ldcs(reinterpret_cast<const uint2*>(p + k * LANES * VEC));
                v[0] = lo(u.x); v[1] = hi(u.x); v[2] = lo(u.y); v[3] = hi(u.y);
            }
        }
    }
    float m[ROWS], s[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        m[r] = x[r][0];
#pragma unroll
        for (int i = 1; i < N; ++i) m[r] = fmaxf(m[r], x[r][i]);
    }
#pragma unroll
    for (int o = LANES / 2; o > 0; o >>= 1)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) m[r] = fmaxf(m[r], __shfl_xor_sync(ALL, m[r], o));
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float part[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int i = 0; i < N; ++i) { x[r][i] = expf(x[r][i] - m[r]); part[i & 3] += x[r][i]; }
        s[r] = (part[0] + part[1]) + (part[2] + part[3]);
    }
#pragma unroll
    for (int o = LANES / 2; o > 0; o >>= 1)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) s[r] += __shfl_xor_sync(ALL, s[r], o);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + r * GROUPS;
        if (row >= rows) break;
        const float inv = 1.f / s[r];
        float4* y = reinterpret_cast<float4*>(out + (size_t)row * COLS + lane * VEC);
#pragma unroll
        for (int k = 0; k < STEPS; ++k)
#pragma unroll
            for (int j = 0; j < VEC / 4; ++j) {
                const float* v = x[r] + k * VEC + j * 4;
                const float4 f = make_float4(v[0] * inv, v[1] * inv, v[2] * inv, v[3] * inv);
                float4* q = y + k * (LANES * VEC / 4) + j;
                if (STREAM) __stcs(q, f); else *q = f;
            }
    }
}
