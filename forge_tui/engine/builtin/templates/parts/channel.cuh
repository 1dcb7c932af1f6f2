// One channel: y = (x - mean) * scale + shift, the subtraction first, so that a large mean costs no digits.
struct channel {
    float mean, scale, shift;
    FORGE_FN float operator()(float x) const { return @RESULT@; }
};
__device__ __forceinline__ channel channel_at(int c@PARAMETERS@) {
    const float rstd = rsqrtf(forge::to_float(running_var[c]) + eps);
    return {forge::to_float(running_mean[c]), @SCALE@, @SHIFT@};
}
