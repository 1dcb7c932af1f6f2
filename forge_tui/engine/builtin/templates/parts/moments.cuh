// What is done with a row. take: the moments of a thread's values. whole: take and finish of a row in registers. finish: mean and reciprocal deviation of the whole row.
// kept and fresh: (x - mean) * rstd, then weight and bias; the subtraction first, so that a constant row gives exactly the bias.
struct row_op {
    using state = forge::moments;
@MEMBERS@
    float eps, mean, rstd;
    static FORGE_FN float nothing() { return 0.f; }
    template <int size> FORGE_FN state take(float* x, int valid) { return forge::moments_of<size>(x, valid); }
    template <int size, class Threads> FORGE_FN void whole(float* x, int valid, Threads threads) {
        finish(threads.merge(take<size>(x, valid)));
    }
    FORGE_FN void finish(const state& row) {
        mean = row.mean;
        rstd = rsqrtf(row.m2 / (float)COLS + eps);
    }
    FORGE_FN void finish_fresh(const state& row) { finish(row); }
    template <int count> FORGE_FN void kept(float* x, int row, int c) const {
@LOAD_PARAMETERS@
#pragma unroll
        for (int i = 0; i < count; ++i) x[i] = @AFFINE@;
    }
    template <int count> FORGE_FN void fresh(float* x, int row, int c) const { kept<count>(x, row, c); }
};
