/*forge
format = 1
operator = "@OPERATOR@"

# Long rows, one read and one write: a thread-block cluster holds a whole row in distributed shared memory, brought there by
# bulk copies (no registers, all of it in flight at once). Each piece is reduced as soon as it is there. The blocks
# exchange their states by asynchronous remote stores that complete on the receiver's barrier: no cluster-wide barrier
# and no memory fence between the last load and the first store. Measured form: group_norm (1, 512, 128, 128) bfloat16.

[let]
cols = "@COLS@"
rows = "@ROWS@"
@LET@
reach = "@REACH@"

[tune]
CLUSTER = @CLUSTER_TUNE@                # blocks of a cluster = of a row
BLOCK = [256, 512, 1024]
PIECES = [2, 1, 4]                      # bulk copies of a block
VEC = @VEC_TUNE@                           # elements of one access: as many as types, alignment and lengths allow, or half
STREAM = @STREAM_TUNE@                  # stores that the L2 is to: 0 treat as usual, 1 let go first, 2 keep

[require]
call = [@GUARD@, "cc >= 90"]
aligned = "VEC <= reach and VEC * 2 >= reach"
bulk = "reach * input.itemsize >= 16"   # rows begin and end on 16 bytes
cluster = "CLUSTER <= max_cluster"
pieces = "(CLUSTER * PIECES - 1) * align(ceil_div(cols, CLUSTER * PIECES), 128 // input.itemsize) < cols"
busy = "cols >= CLUSTER * BLOCK * VEC"
fits = "align(ceil_div(cols, CLUSTER * PIECES), 128 // input.itemsize) * PIECES * input.itemsize <= max_shared - 2048"

[define]
COLS = "cols"
SPAN = "align(ceil_div(cols, CLUSTER * PIECES), 128 // input.itemsize)"    # elements of a piece
@DEFINE@

[[launch]]
kernel = "rows_cluster"
grid = ["rows * CLUSTER"]
cluster = ["CLUSTER"]
block = ["BLOCK"]
shared = "SPAN * PIECES * input.itemsize"
args = ["input", "out"@ARGS@]
*/
#include <forge.cuh>

@OFFSETS@
@OP@
constexpr forge::cache KEEP = forge::store_hint(STREAM);
constexpr int UNROLL = 2, N = UNROLL * VEC, STEP = BLOCK * VEC;
constexpr int WORDS = (sizeof(row_op::state) + 7) / 8;      // of a message

union message {
    row_op::state state;
    unsigned long long word[WORDS];
};

extern "C" __global__ void __launch_bounds__(BLOCK)
rows_cluster(const DTYPE_input* __restrict__ input, DTYPE_out* __restrict__ out@PARAMETERS@) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ forge::barrier full[PIECES], mail;
    __shared__ message box[CLUSTER];
    __shared__ row_op::state scratch[BLOCK / 32];
    DTYPE_input* data = reinterpret_cast<DTYPE_input*>(memory);
    const int row = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;      // a cluster's blocks are neighbours
    const int begin = rank * (PIECES * SPAN), length = min(PIECES * SPAN, COLS - begin);
    if (threadIdx.x == 0) {
        const DTYPE_input* from = input + input_row(row) + begin;
        for (int p = 0; p < PIECES; ++p) forge::barrier_init(full + p, 1);
        forge::barrier_init(&mail, 1);
        forge::barrier_init_fence();
        for (int p = 0; p < PIECES; ++p) {
            const unsigned bytes = min(SPAN, length - p * SPAN) * (int)sizeof(DTYPE_input);
            forge::barrier_expect(full + p, bytes);
            forge::bulk_load(data + p * SPAN, from + p * SPAN, bytes, full + p);
        }
        forge::barrier_expect(&mail, CLUSTER * WORDS * 8);
    }
    __syncthreads();
    forge::cluster_arrive_relaxed();                        // "my barriers are there": waited for before the first message

    row_op op{@PASS@};
    message own;
    own.state = row_op::state::none();
#pragma unroll 1
    for (int p = 0; p < PIECES; ++p) {
        forge::barrier_wait(full + p, 0);
        const int end = min((p + 1) * SPAN, length);
        for (int start = p * SPAN + threadIdx.x * VEC; start < end; start += STEP * UNROLL) {
            float x[N];
            int valid = 0;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int c = start + u * STEP;
                if (c < end) {
                    forge::load<VEC>(data + c, x + u * VEC);
                    valid += VEC;
                } else {
#pragma unroll
                    for (int j = 0; j < VEC; ++j) x[u * VEC + j] = row_op::nothing();
                }
            }
            own.state.merge(op.take<N>(x, valid));
        }
    }
    own.state = forge::block_merge<BLOCK>(own.state, scratch);
    forge::cluster_wait();
    if (threadIdx.x < CLUSTER) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) forge::cluster_send(&box[rank].word[w], &mail, threadIdx.x, own.word[w]);
    }
    forge::barrier_wait(&mail, 0);                          // everybody's state is here; nobody writes here any more
    op.finish_fresh(forge::warp_merge<CLUSTER>(box[threadIdx.x % CLUSTER].state));
    DTYPE_out* to = out + out_row(row);
#pragma unroll 4
    for (int c = threadIdx.x * VEC; c < length; c += STEP) {
        float x[VEC];
        forge::load<VEC>(data + c, x);
        op.fresh<VEC>(x, row, begin + c);
        forge::store<VEC, KEEP>(to + out_col(begin + c), x);
    }
}
