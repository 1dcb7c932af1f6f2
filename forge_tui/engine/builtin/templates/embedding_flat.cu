/*forge
format = 1
operator = "@OPERATOR@"

# Rows of a table by index, as one flat run of BYTES-wide words of the output: neighbouring threads copy neighbouring
# words, whatever the row length, and no thread is idle at a row's end. The index of a row is read by every thread on it
# and comes from the L1. Values are moved as bits, so every element type goes.

[let]
bytes = "weight.shape[1] * weight.itemsize"
step = "weight.stride[0] * weight.itemsize"
even = "16 if bytes % 16 == 0 and step % 16 == 0 else 8 if bytes % 8 == 0 and step % 8 == 0 else 4 if bytes % 4 == 0 and step % 4 == 0 else 2"
reach = "min(even, weight.align, out.align)"

[tune]
BLOCK = [256, 128]
BYTES = [16, 8, 4, 2]                   # of one access: as many as row length and alignment allow, or half
ITEMS = @ITEMS@                         # accesses of a thread in flight

[require]
call = [@GUARD@]
aligned = "BYTES <= reach and BYTES * 2 >= reach"

[define]
ROWS = "weight.shape[0]"
WORDS = "bytes // BYTES"                # of one row
STEP = "step // BYTES"
WIDE = "1 if out.numel > 2 ** 30 else 0"   # 64-bit indices

[[launch]]
kernel = "embedding_flat"
grid = ["ceil_div(input.numel * WORDS, BLOCK * ITEMS)"]
block = ["BLOCK"]
args = ["input", "weight", "out", { int64 = "input.numel * WORDS" }]
*/
#if WIDE
using index_t = long long;
#else
using index_t = int;
#endif
#if BYTES == 16
using word_t = uint4;
#elif BYTES == 8
using word_t = uint2;
#elif BYTES == 4
using word_t = unsigned;
#else
using word_t = unsigned short;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
embedding_flat(const DTYPE_input* __restrict__ input, const word_t* __restrict__ weight, word_t* __restrict__ out,
               long long words) {
    const index_t first = (index_t)blockIdx.x * (BLOCK * ITEMS) + threadIdx.x;
    word_t word[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const index_t at = first + i * BLOCK;
        if (at >= (index_t)words) break;
        const long long row = input[at / WORDS];
        if (row < 0 || row >= ROWS) __trap();       // eager fails too: an index outside the table is an error, not a value
        word[i] = weight[row * STEP + at % WORDS];
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const index_t at = first + i * BLOCK;
        if (at < (index_t)words) out[at] = word[i];
    }
}
