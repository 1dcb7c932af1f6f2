// What is done with a row. take: a thread's (maximum, sum of exponentials relative to it). whole: take and finish of a row in registers. finish: the whole row's logarithm.
// kept and fresh: results, from values still in registers or read again.
struct row_op {
    using state = forge::softmax_state;
    float base, shift;
    static FORGE_FN float nothing() { return -INFINITY; }
    static FORGE_FN float admit(float x) { return @ADMIT@; }
    template <int size> FORGE_FN state take(float* x, int) {
#pragma unroll
        for (int i = 0; i < size; ++i) x[i] = admit(x[i]);
        float top = x[0];
#pragma unroll
        for (int i = 1; i < size; ++i) top = fmaxf(top, x[i]);
        base = top == -INFINITY ? 0.f : top;                // exp(-inf - 0) = 0, where exp(-inf + inf) would be NaN
        float part[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int i = 0; i < size; ++i) part[i % 4] += expf(x[i] - base);
        return {top, (part[0] + part[1]) + (part[2] + part[3])};
    }
    template <int size, class Threads> FORGE_FN void whole(float* x, int valid, Threads threads) {
        finish(threads.merge(take<size>(x, valid)));
    }
    FORGE_FN void finish(const state& row) {
        base = row.max;
        shift = logf(row.sum);
    }
    FORGE_FN void finish_fresh(const state& row) { finish(row); }
    template <int count> FORGE_FN void kept(float* x, int, int) const {
#pragma unroll
        for (int i = 0; i < count; ++i) x[i] = (x[i] - base) - shift;
    }
    template <int count> FORGE_FN void fresh(float* x, int row, int c) const {
#pragma unroll
        for (int i = 0; i < count; ++i) x[i] = admit(x[i]);
        kept<count>(x, row, c);
    }
};
