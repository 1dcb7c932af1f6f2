// What is done with a row. take: a thread's values become exp(value - its own maximum), and its (maximum, sum). finish: from the
// whole row's. whole: all of that for a row in registers. kept: results from what take left in x. fresh: results from values read again.
struct row_op {
    using state = forge::softmax_state;
    float base, top, factor;
    static FORGE_FN float nothing() { return -INFINITY; }
    static FORGE_FN float admit(float x) { return @ADMIT@; }
    template <int size> FORGE_FN state take(float* x, int) {
#pragma unroll
        for (int i = 0; i < size; ++i) x[i] = admit(x[i]);
        top = x[0];
#pragma unroll
        for (int i = 1; i < size; ++i) top = fmaxf(top, x[i]);
        base = top == -INFINITY ? 0.f : top;                // exp(-inf - 0) = 0, where exp(-inf + inf) would be NaN
        float part[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int i = 0; i < size; ++i) {
            x[i] = expf(x[i] - base);
            part[i % 4] += x[i];
        }
        return {top, (part[0] + part[1]) + (part[2] + part[3])};
    }
    // The maximum first, then the sum: two short merges take less time than one of both, with exponentials in every step.
    template <int size, class Threads> FORGE_FN void whole(float* x, int, Threads threads) {
#pragma unroll
        for (int i = 0; i < size; ++i) x[i] = admit(x[i]);
        top = x[0];
#pragma unroll
        for (int i = 1; i < size; ++i) top = fmaxf(top, x[i]);
        top = threads.merge(forge::max_state{top}).value;
        base = top == -INFINITY ? 0.f : top;
        float part[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int i = 0; i < size; ++i) {
            x[i] = forge::exp_for<DTYPE_out>(x[i] - base);
            part[i % 4] += x[i];
        }
        factor = 1.f / threads.merge(forge::sum_state{(part[0] + part[1]) + (part[2] + part[3])}, 1).value;
    }
    // A row that is -inf throughout has sum 0: NaN, as in eager.
    FORGE_FN void finish(const state& row) {
        factor = state::rescale(top, row.max) / row.sum;
        base = row.max;
    }
    FORGE_FN void finish_fresh(const state& row) {
        factor = 1.f / row.sum;
        base = row.max;
    }
    template <int count> FORGE_FN void kept(float* x, int, int) const {
#pragma unroll
        for (int i = 0; i < count; ++i) x[i] *= factor;
    }
    template <int count> FORGE_FN void fresh(float* x, int, int) const {
#pragma unroll
        for (int i = 0; i < count; ++i) x[i] = expf(admit(x[i]) - base) * factor;
    }
};
