/*forge
format = 1
operator = "@OPERATOR@"

# Rows of a table by index, LANES threads on each: the index is read once per thread and the row is walked in BYTES-wide
# words, ITEMS of them in flight, with no division. For rows long enough to keep the lanes busy.

[let]
bytes = "weight.shape[1] * weight.itemsize"
step = "weight.stride[0] * weight.itemsize"
even = "16 if bytes % 16 == 0 and step % 16 == 0 else 8 if bytes % 8 == 0 and step % 8 == 0 else 4 if bytes % 4 == 0 and step % 4 == 0 else 2"
reach = "min(even, weight.align, out.align)"

[tune]
BLOCK = [128, 256]
LANES = [32, 16, 64, 128]               # threads on one row
BYTES = [16, 8, 4, 2]                   # of one access: as many as row length and alignment allow
ITEMS = [4, 2, 1]                       # accesses of a thread in flight

[require]
call = [@GUARD@, "input.numel < 2 ** 31"]
aligned = "BYTES == reach"
busy = "LANES == 16 or LANES * BYTES <= bytes"
whole = "ITEMS == 1 or LANES * BYTES * ITEMS < 2 * bytes"

[define]
ROWS = "weight.shape[0]"
WORDS = "bytes // BYTES"                # of one row
STEP = "step // BYTES"

[[launch]]
kernel = "embedding_rows"
grid = ["ceil_div(input.numel, BLOCK // LANES)"]
block = ["BLOCK"]
args = ["input", "weight", "out", "input.numel"]
*/
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
embedding_rows(const DTYPE_input* __restrict__ input, const word_t* __restrict__ weight, word_t* __restrict__ out,
               int count) {
    const int own = blockIdx.x * (BLOCK / LANES) + threadIdx.x / LANES;
    if (own >= count) return;
    const long long row = input[own];
    if (row < 0 || row >= ROWS) __trap();           // eager fails too: an index outside the table is an error, not a value
    const word_t* from = weight + row * STEP;
    word_t* to = out + (long long)own * WORDS;
    for (int at = threadIdx.x % LANES; at < WORDS; at += LANES * ITEMS) {
        word_t word[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (at + i * LANES < WORDS) word[i] = from[at + i * LANES];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (at + i * LANES < WORDS) to[at + i * LANES] = word[i];
    }
}
