// The comparison of one output with its reference in three passes over memory: see fused.py, and tolerance.py for what
// is compared. Macros: T (element type of eager and candidate), LEAST and LAST (frexp exponents of the first and last
// class). A warp works on one segment of a row; a part is what of a row is compared together.
typedef unsigned long long u64;
typedef long long i64;
#define CLASSES (LAST - LEAST + 1)
#define SEGMENT 2048
#define SEGMENTS_OF_PART 512
#define WARPS (blockDim.x / 32)

struct Element {
    double truth, got, own, error;
    bool finite, differs;
};

__device__ bool is_finite(double v) { return (__double_as_longlong(v) >> 52 & 0x7ff) != 0x7ff; }
__device__ bool is_nan(double v) { return v != v; }

__device__ int class_of(double truth) {   // the exponent that frexp gives; zero and subnormals fall into the first class
    const int exponent = (int)(__double_as_longlong(truth) >> 52 & 0x7ff) - 1022;
    return min(max(exponent, LEAST), LAST) - LEAST;
}

__device__ Element element(const T* eager, const T* candidate, const double* reference, const double* moved, i64 at) {
    Element e;
    const double own = (double)eager[at], got = (double)candidate[at], truth = reference[at];
    e.finite = is_finite(own);
    e.differs = own != got && !(e.finite && is_finite(got)) && !(is_nan(own) && is_nan(got));
    // Where the reference overflows though eager does not, eager is the only truth there is.
    e.truth = e.finite ? (is_finite(truth) ? truth : own) : 0.0;
    e.got = got;
    e.own = e.finite ? fabs(own - e.truth) : 0.0;
    if (moved != nullptr && e.finite && is_finite(moved[at])) e.own = fmax(e.own, moved[at]);
    e.error = e.finite ? fabs(got - e.truth) : 0.0;
    return e;
}

__device__ double excess(const Element& e, double noise, double row_max) {   // no fused multiply-add: two kernels must agree on every bit
    const double left = __dsub_rn(e.error, __dmul_rn(noise, row_max));
    return left > 0.0 ? left : 0.0;
}

struct Segment {
    i64 begin, part;
    int count;
};

__device__ Segment segment(i64 number, i64 segments, i64 width, i64 parts) {
    const i64 row = number / segments, inner = number % segments, offset = inner * SEGMENT;
    const i64 left = width - offset;
    return {row * width + offset, row * parts + inner / SEGMENTS_OF_PART, (int)(left < 0 ? 0 : left < SEGMENT ? left : SEGMENT)};
}

__device__ double warp_sum(double v) {
    for (int step = 16; step; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// Largest magnitude of the truth in each part. (Doubles of one sign compare as integers do.)
extern "C" __global__ void __launch_bounds__(256) part_max(const T* eager, const T* candidate, const double* reference, u64* maxima,
                                                           i64 total, i64 segments, i64 width, i64 parts) {
    const int lane = threadIdx.x % 32;
    for (i64 number = (i64)blockIdx.x * WARPS + threadIdx.x / 32; number < total; number += (i64)gridDim.x * WARPS) {
        const Segment s = segment(number, segments, width, parts);
        double most = 0.0;
        for (int i = lane; i < s.count; i += 32)
            most = fmax(most, fabs(element(eager, candidate, reference, nullptr, s.begin + i).truth));
        for (int step = 16; step; step /= 2) most = fmax(most, __shfl_xor_sync(0xffffffffu, most, step));
        if (lane == 0 && most > 0.0) atomicMax(maxima + s.part, (u64)__double_as_longlong(most));
    }
}

// Sums of squares by segment (eager's error, the candidate's, the truth, units in the last place); by class the number
// of finite elements, eager's worst error and the candidate's; the first element that is infinite or NaN on one side
// only, and how many.
extern "C" __global__ void __launch_bounds__(256) tally(const T* eager, const T* candidate, const double* reference, const double* moved,
                                                        const double* units, const u64* maxima, double* sums, u64* counts, u64* own_worst,
                                                        u64* worst, u64* differing, i64 total, i64 segments, i64 width, i64 parts,
                                                        double noise) {
    __shared__ unsigned int s_counts[CLASSES];
    __shared__ u64 s_own[CLASSES], s_worst[CLASSES];
    for (int i = threadIdx.x; i < CLASSES; i += blockDim.x) s_counts[i] = 0, s_own[i] = 0, s_worst[i] = 0;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    for (i64 number = (i64)blockIdx.x * WARPS + threadIdx.x / 32; number < total; number += (i64)gridDim.x * WARPS) {
        const Segment s = segment(number, segments, width, parts);
        const double row_max = s.count ? __longlong_as_double((i64)maxima[s.part]) : 0.0;
        double own2 = 0.0, error2 = 0.0, truth2 = 0.0, unit2 = 0.0;
        for (int i = lane; i < s.count; i += 32) {
            const Element e = element(eager, candidate, reference, moved, s.begin + i);
            if (e.differs) {
                atomicMin(differing, (u64)(s.begin + i));
                atomicAdd(differing + 1, 1ull);
            }
            if (!e.finite) continue;
            const int kind = class_of(e.truth);
            const double unit = units[kind];
            own2 += e.own * e.own, error2 += e.error * e.error, truth2 += e.truth * e.truth, unit2 += unit * unit;
            atomicAdd(s_counts + kind, 1u);
            const u64 own = (u64)__double_as_longlong(e.own), left = (u64)__double_as_longlong(excess(e, noise, row_max));
            if (own > *(volatile u64*)(s_own + kind)) atomicMax(s_own + kind, own);
            if (left > *(volatile u64*)(s_worst + kind)) atomicMax(s_worst + kind, left);
        }
        own2 = warp_sum(own2), error2 = warp_sum(error2), truth2 = warp_sum(truth2), unit2 = warp_sum(unit2);
        if (lane == 0) {
            sums[4 * number] = own2, sums[4 * number + 1] = error2;
            sums[4 * number + 2] = truth2, sums[4 * number + 3] = unit2;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < CLASSES; i += blockDim.x) {
        if (s_counts[i] == 0) continue;
        atomicAdd(counts + i, (u64)s_counts[i]);
        atomicMax(own_worst + i, s_own[i]);
        atomicMax(worst + i, s_worst[i]);
    }
}

// By class the first element whose error is the worst.
extern "C" __global__ void __launch_bounds__(256) find(const T* eager, const T* candidate, const double* reference, const u64* maxima,
                                                       const u64* worst, u64* places, i64 total, i64 segments, i64 width, i64 parts,
                                                       double noise) {
    __shared__ u64 s_places[CLASSES];
    for (int i = threadIdx.x; i < CLASSES; i += blockDim.x) s_places[i] = ~0ull >> 1;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    for (i64 number = (i64)blockIdx.x * WARPS + threadIdx.x / 32; number < total; number += (i64)gridDim.x * WARPS) {
        const Segment s = segment(number, segments, width, parts);
        const double row_max = s.count ? __longlong_as_double((i64)maxima[s.part]) : 0.0;
        for (int i = lane; i < s.count; i += 32) {
            const Element e = element(eager, candidate, reference, nullptr, s.begin + i);
            if (!e.finite) continue;
            const int kind = class_of(e.truth);
            const u64 at = (u64)(s.begin + i);
            if ((u64)__double_as_longlong(excess(e, noise, row_max)) == worst[kind] && at < *(volatile u64*)(s_places + kind))
                atomicMin(s_places + kind, at);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < CLASSES; i += blockDim.x)
        if (s_places[i] != ~0ull >> 1) atomicMin(places + i, s_places[i]);
}
