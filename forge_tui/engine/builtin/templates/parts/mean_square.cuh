// What is done with a row. take: the sum of a thread's squares. whole: take and finish of a row in registers. finish: reciprocal root of the whole row's mean square.
// kept and fresh: x * rstd, then weight.
struct row_op {
    using state = forge::sum_state;
@MEMBERS@
    float eps, rstd;
    static FORGE_FN float nothing() { return 0.f; }
    template <int size> FORGE_FN state take(float* x, int) {
        float part[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int i = 0; i < size; ++i) part[i % 4] = fmaf(x[i], x[i], part[i % 4]);
        return {(part[0] + part[1]) + (part[2] + part[3])};
    }
    template <int size, class Threads> FORGE_FN void whole(float* x, int valid, Threads threads) {
        finish(threads.merge(take<size>(x, valid)));
    }
    FORGE_FN void finish(const state& row) { rstd = rsqrtf(row.value / (float)COLS + eps); }
    FORGE_FN void finish_fresh(const state& row) { finish(row); }
    template <int count> FORGE_FN void kept(float* x, int row, int c) const {
@LOAD_PARAMETERS@
#pragma unroll
        for (int i = 0; i < count; ++i) x[i] = @AFFINE@;
    }
    template <int count> FORGE_FN void fresh(float* x, int row, int c) const { kept<count>(x, row, c); }
};
