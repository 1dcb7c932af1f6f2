/*forge
format = 1
operator = "@OPERATOR@"

# Mean of whole contiguous planes. The planes of a block are one contiguous span: it goes to shared memory by 16-byte
# copies, several of a thread in flight (with ASYNC all of them: cp.async holds no registers); then LANES threads add up
# each plane.

[let]
cols = "input.shape[-1] * input.shape[-2]"
planes = "out.numel"

[tune]
PLANES = [16, 32, 64, 8, 128]           # planes of one block
LANES = [8, 4, 16, 2, 1]                # threads on one plane
ASYNC = [0, 1]                          # 1: copies by cp.async

[require]
call = ["input.contiguous", "out.contiguous", "out.shape[-1] == 1", "out.shape[-2] == 1", "planes <= 2 ** 30"]
shared = "PLANES * cols * input.itemsize <= max_shared"
block = "PLANES * LANES >= 64 and PLANES * LANES <= 512"
async = "ASYNC == 0 or (input.align >= 16 and PLANES * cols * input.itemsize % 16 == 0)"
busy = "LANES <= max(cols // 4, 1)"     # a few elements for every thread

[define]
COLS = "cols"
WHOLE = "1 if input.align >= 16 and PLANES * cols * input.itemsize % 16 == 0 else 0"   # spans begin on 16 bytes

[[launch]]
kernel = "avgpool_tile"
grid = ["ceil_div(planes, PLANES)"]
block = ["PLANES * LANES"]
shared = "PLANES * cols * input.itemsize"
args = ["input", "out", "planes"]
*/
#include <forge.cuh>

extern "C" __global__ void __launch_bounds__(PLANES * LANES)
avgpool_tile(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out, int planes) {
    extern __shared__ __align__(16) unsigned char memory[];
    DTYPE_input* tile = reinterpret_cast<DTYPE_input*>(memory);
    constexpr int THREADS = PLANES * LANES;
    const int first = blockIdx.x * PLANES, count = min(PLANES, planes - first) * COLS;
    const DTYPE_input* from = input + (long long)first * COLS;
    int copied = 0;
    if (WHOLE) {
        constexpr int VEC = 16 / sizeof(DTYPE_input);
        copied = count / VEC * VEC;
#pragma unroll 8
        for (int i = threadIdx.x * VEC; i < copied; i += THREADS * VEC) {
            if (ASYNC) forge::copy_async<16>(tile + i, from + i);
            else *reinterpret_cast<uint4*>(tile + i) = __ldcs(reinterpret_cast<const uint4*>(from + i));
        }
    }
#pragma unroll 8
    for (int i = copied + threadIdx.x; i < count; i += THREADS) tile[i] = from[i];
    if (ASYNC) {
        forge::copy_async_commit();
        forge::copy_async_wait();
    }
    __syncthreads();
    const int plane = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    float sum[4] = {0.f, 0.f, 0.f, 0.f};            // four chains hide the latency of the additions
    if (first + plane < planes) {
        const DTYPE_input* x = tile + plane * COLS;
#pragma unroll 8
        for (int k = 0; k < (COLS + LANES - 1) / LANES; ++k) {
            const int c = k * LANES + lane;
            if (c < COLS) sum[k & 3] += forge::to_float(x[c]);
        }
    }
    float total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
#pragma unroll
    for (int o = LANES / 2; o > 0; o >>= 1) total += __shfl_xor_sync(0xffffffffu, total, o);
    if (lane == 0 && first + plane < planes) out[first + plane] = forge::from_float<DTYPE_out>(total / (float)COLS);
}
