/*forge
format = 1
operator = "torch.nn.functional.softmax"

# bfloat16 in, float32 out, one block a row, one barrier. Every thread keeps its values in registers and takes its own
# maximum and sum first; the pairs (maximum, sum) are then merged over the block together (the online form), so that a
# row costs one round of shuffles and one barrier instead of two. Long rows, and few rows where latency is everything.

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[tune]
BLOCK = [32, 64, 128, 256, 512, 1024]
VEC = [4, 8]
STREAM = [0, 1]                         # 1: stores marked as not to be kept in the L2

[require]
call = ["input.dtype == 'bfloat16'", "out.dtype == 'float32'", "input.contiguous", "dim == -1 or dim == input.ndim - 1"]
aligned = "cols % VEC == 0"
registers = "STEPS * VEC <= 64 and (STEPS * VEC + 24) * BLOCK <= 65536"
busy = "BLOCK == 32 or cols > (BLOCK - 32) * VEC"           # no warp without work
streaming = "STREAM == 0 or rows * cols >= 1048576"

[define]
COLS = "cols"
STEPS = "ceil_div(cols, BLOCK * VEC)"

[[launch]]
kernel = "softmax_block"
grid = ["rows"]
block = ["BLOCK"]
args = ["input", "out"]
*/

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = BLOCK / 32;
constexpr int N = STEPS * VEC;

__device__ __forceinline__ float lo(unsigned p) { return __uint_as_float(p << 16); }
__device__ __forceinline__ float hi(unsigned p) { return __uint_as_float(p & 0xffff0000u); }
// What a sum of exponentials relative to `from` must be multiplied by to be relative to `to` >= `from`.
// -inf (a part that is all masked) to -inf is 0/0 in the formula; nothing is there, so any finite factor will do.
__device__ __forceinline__ float rescale(float from, float to) { return from == to ? 1.f : expf(from - to); }

extern "C" __global__ void __launch_bounds__(BLOCK)
softmax_block(const unsigned short* __restrict__ input, float* __restrict__ out) {
    const int tid = threadIdx.x, lane = tid & 31;
    const unsigned short* p = input + (size_t)blockIdx.x * COLS;
    float x[N];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = (k * BLOCK + tid) * VEC;
        float* v = x + k * VEC;
        if ((k + 1) * BLOCK * VEC <= COLS || c < COLS) {
            if (VEC == 8) {
                const uint4 u = __ldcs(reinterpret_cast<const uint4*>(p + c));
                v[0] = lo(u.x); v[1] = hi(u.x); v[2] = lo(u.y); v[3] = hi(u.y);
                v[VEC - 4] = lo(u.z); v[VEC - 3] = hi(u.z); v[VEC - 2] = lo(u.w); v[VEC - 1] = hi(u.w);
            } else {
                const uint2 u = __ldcs(reinterpret_cast<const uint2*>(p + c));
                v[0] = lo(u.x); v[1] = hi(u.x); v[2] = lo(u.y); v[3] = hi(u.y);
            }
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j) v[j] = __int_as_float(0xff800000);
        }
    }
    float own = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) own = fmaxf(own, x[i]);
    // A thread whose values are all -inf has exp(-inf - 0) = 0 everywhere instead of exp(-inf + inf) = NaN.
    const float base = own == __int_as_float(0xff800000) ? 0.f : own;
    float part[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < N; ++i) { x[i] = expf(x[i] - base); part[i & 3] += x[i]; }
    float m = own, s = (part[0] + part[1]) + (part[2] + part[3]);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        const float mb = __shfl_xor_sync(ALL, m, o), sb = __shfl_xor_sync(ALL, s, o);
        const float to = fmaxf(m, mb);
        s = fmaf(s, rescale(m, to), sb * rescale(mb, to));
        m = to;
    }
    if (WARPS > 1) {
        __shared__ float2 warp_part[WARPS];
        if (lane == 0) warp_part[tid >> 5] = make_float2(m, s);
        __syncthreads();
        const float2 q = warp_part[lane & (WARPS - 1)];
        m = q.x; s = q.y;
#pragma unroll
        for (int o = WARPS / 2; o > 0; o >>= 1) {
            const float mb = __shfl_xor_sync(ALL, m, o), sb = __shfl_xor_sync(ALL, s, o);
            const float to = fmaxf(m, mb);
            s = fmaf(s, rescale(m, to), sb * rescale(mb, to));
            m = to;
        }
    }
    // A row that is -inf throughout has sum 0: NaN, as in eager.
    const float factor = rescale(own, m) / s;
    float* y = out + (size_t)blockIdx.x * COLS;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = (k * BLOCK + tid) * VEC;
        if ((k + 1) * BLOCK * VEC <= COLS || c < COLS) {
#pragma unroll
            for (int j = 0; j < VEC / 4; ++j) {
                const float* v = x + k * VEC + j * 4;
                const float4 f = make_float4(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor);
                float4* q = reinterpret_cast<float4*>(y + c) + j;
                if (STREAM) __stcs(q, f); else *q = f;
            }
        }
    }
}
