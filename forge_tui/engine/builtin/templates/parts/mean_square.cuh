// What is done with a row. take: the sum of a thread's squares. finish: reciprocal root of the whole row's mean square.
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
    FORGE_FN void finish(const state& row) { rstd = rsqrtf(row.value / (float)COLS + eps); }
    FORGE_FN void finish_fresh(const state& row) { finish(row); }
    template <int count> FORGE_FN void kept(float* x, int row, int c) const {
@LOAD_PARAMETERS@
#pragma unroll
        for (int i = 0; i < count; ++i) x[i] = @AFFINE@;
    }
    template <int count> FORGE_FN void fresh(float* x, int row, int c) const { kept<count>(x, row, c); }
};
