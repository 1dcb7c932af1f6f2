/*forge
format = 1
operator = "torch.nn.functional.adaptive_avg_pool2d"

# Global average of contiguous float32 planes. A block's planes are one contiguous span, so one bulk copy (the copy
# engine) brings the whole tile to shared memory: every byte of the input is in flight at once, no registers held.
# Then LANES threads add up one plane out of shared memory. 49 words between planes is odd: no bank conflicts.

[let]
planes = "input.shape[0] * input.shape[1]"
cols = "input.shape[2] * input.shape[3]"

[tune]
ROWS = [16, 32, 64, 128, 256]           # planes of one block
LANES = [1, 2, 4, 8]                    # threads on one plane
PARTS = [1, 2]                          # bulk copies (and barriers) the tile is cut into

[require]
global_mean = "out.numel == planes"
call = ["input.ndim == 4", "input.dtype == 'float32'", "input.contiguous"]
tile = "planes % ROWS == 0 and ROWS % PARTS == 0 and (ROWS // PARTS) * cols % 4 == 0"
shared = "ROWS * cols * 4 <= max_shared and ROWS // PARTS * cols * 4 < 1048576"
block = "ROWS * LANES >= 32 and ROWS * LANES <= 1024 and ROWS * LANES % (32 * PARTS) == 0"

[define]
COLS = "cols"

[[launch]]
kernel = "avgpool_bulk"
grid = ["planes // ROWS"]
block = ["ROWS * LANES"]
shared = "ROWS * cols * 4"
args = ["input", "out"]
*/

typedef unsigned long long u64;

// -- ptx
__device__ __forceinline__ unsigned saddr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void mbar_init(u64* b, unsigned n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(saddr(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void mbar_init_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void mbar_expect(u64* b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(saddr(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool mbar_test(u64* b, unsigned parity) {
    unsigned ok;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ok) : "r"(saddr(b)), "r"(parity) : "memory");
    return ok != 0;
}
__device__ __forceinline__ void mbar_wait(u64* b, unsigned parity) { while (!mbar_test(b, parity)) {} }
__device__ __forceinline__ void bulk_load(void* dst, const void* src, unsigned bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(saddr(dst)), "l"(src), "r"(bytes), "r"(saddr(b)) : "memory");
}
// -- end

extern "C" __global__ void __launch_bounds__(ROWS * LANES)
avgpool_bulk(const float* __restrict__ input, float* __restrict__ out) {
    extern __shared__ __align__(128) float tile[];
    __shared__ u64 full[PARTS];
    constexpr int SPAN = ROWS / PARTS * COLS;               // floats of one part
    const int tid = threadIdx.x;
    if (tid == 0) {
        const float* src = input + (size_t)blockIdx.x * (ROWS * COLS);
        for (int p = 0; p < PARTS; ++p) mbar_init(&full[p], 1);
        mbar_init_fence();
        for (int p = 0; p < PARTS; ++p) {
            mbar_expect(&full[p], SPAN * 4);
            bulk_load(tile + p * SPAN, src + p * SPAN, SPAN * 4, &full[p]);
        }
    }
    __syncthreads();
    const int row = tid / LANES, lane = tid % LANES;
    mbar_wait(&full[row / (ROWS / PARTS)], 0);
    const float* x = tile + row * COLS;
    float s[4] = {0.f, 0.f, 0.f, 0.f};                      // four chains hide the latency of the additions
#pragma unroll
    for (int i = 0; i < (COLS + LANES - 1) / LANES; ++i) {
        const int c = i * LANES + lane;
        if ((i + 1) * LANES <= COLS || c < COLS) s[i & 3] += x[c];
    }
    float v = (s[0] + s[1]) + (s[2] + s[3]);
#pragma unroll
    for (int o = LANES / 2; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (lane == 0) out[(size_t)blockIdx.x * ROWS + row] = v / (float)COLS;
}
