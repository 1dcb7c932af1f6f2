/*forge
format = 1
operator = "torch.nn.functional.softmax"

# bfloat16 in, float32 out, the general file: any row length, no alignment asked (513 columns: no row but the first is
# aligned). A group of THREADS threads owns a row, element by element with neighbouring threads on neighbouring
# elements, values in registers, one barrier (maximum and sum merged together). Rows too long for that go through
# memory again: three passes, served by the L1 and L2.

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[tune]
THREADS = [32, 64, 128, 256, 512, 1024]                     # threads on one row = of a block
KEEP = [1, 0]                                               # 1: the row stays in registers

[require]
call = ["input.dtype == 'bfloat16'", "out.dtype == 'float32'", "input.contiguous", "dim == -1 or dim == input.ndim - 1"]
registers = "KEEP == 0 or (ceil_div(cols, THREADS) <= 64 and (ceil_div(cols, THREADS) + 24) * THREADS <= 65536)"
busy = "THREADS == 32 or cols > THREADS - 32"               # no warp without work
passes = "KEEP == 1 or (THREADS >= 256 and cols > 32768)"   # only where it is needed

[define]
COLS = "cols"
STEPS = "ceil_div(cols, THREADS)"

[[launch]]
kernel = "softmax_any"
grid = ["rows"]
block = ["THREADS"]
args = ["input", "out"]
*/

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = THREADS / 32;

__device__ __forceinline__ float widen(unsigned short b) { return __uint_as_float((unsigned)b << 16); }
__device__ __forceinline__ float rescale(float from, float to) { return from == to ? 1.f : expf(from - to); }
__device__ __forceinline__ void merge(float& m, float& s, float mb, float sb) {
    const float to = fmaxf(m, mb);
    s = fmaf(s, rescale(m, to), sb * rescale(mb, to));
    m = to;
}
// (maximum, sum of exponentials relative to it) of the block's row, from every thread's own.
__device__ __forceinline__ void block_merge(float& m, float& s) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        const float mb = __shfl_xor_sync(ALL, m, o), sb = __shfl_xor_sync(ALL, s, o);
        merge(m, s, mb, sb);
    }
    if (WARPS > 1) {
        __shared__ float2 part[WARPS];
        if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = make_float2(m, s);
        __syncthreads();
        const float2 q = part[threadIdx.x & (WARPS - 1)];
        m = q.x; s = q.y;
#pragma unroll
        for (int o = WARPS / 2; o > 0; o >>= 1) {
            const float mb = __shfl_xor_sync(ALL, m, o), sb = __shfl_xor_sync(ALL, s, o);
            merge(m, s, mb, sb);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_any(const unsigned short* __restrict__ input, float* __restrict__ out) {
    const float none = __int_as_float(0xff800000);          // -inf
    const int tid = threadIdx.x;
    const unsigned short* p = input + (size_t)blockIdx.x * COLS;
    float* y = out + (size_t)blockIdx.x * COLS;
    float m = none, s = 0.f;
#if KEEP
    float x[STEPS];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = k * THREADS + tid;
        x[k] = (k + 1) * THREADS <= COLS || c < COLS ? widen(__ldg(p + c)) : none;
    }
#pragma unroll
    for (int k = 0; k < STEPS; ++k) m = fmaxf(m, x[k]);
    const float own = m, base = m == none ? 0.f : m;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) { x[k] = expf(x[k] - base); s += x[k]; }
    block_merge(m, s);
    const float factor = rescale(own, m) / s;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        const int c = k * THREADS + tid;
        if ((k + 1) * THREADS <= COLS || c < COLS) y[c] = x[k] * factor;
    }
#else
#pragma unroll 8
    for (int c = tid; c < COLS; c += THREADS) m = fmaxf(m, widen(__ldg(p + c)));
    const float base = m == none ? 0.f : m;
#pragma unroll 8
    for (int c = tid; c < COLS; c += THREADS) s += expf(widen(__ldg(p + c)) - base);
    block_merge(m, s);
    const float inv = 1.f / s;
#pragma unroll 8
    for (int c = tid; c < COLS; c += THREADS) y[c] = expf(widen(__ldg(p + c)) - m) * inv;
#endif
}
