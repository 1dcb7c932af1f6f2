// forge.cuh: what kernel files share. `#include <forge.cuh>`. Everything is in namespace forge, device code, and inlined.
//
//   types        to_float(v), from_float<Type>(v) for float, __half, __nv_bfloat16
//   memory       load<Count>(pointer, x), store<Count>(pointer, x): Count elements of any of these types from and to floats, in
//                accesses of up to 16 bytes; load<Count, forge::cache::streaming>(...) with a cache hint; load_some, store_some
//                for the first n of Count, one by one
//   reductions   warp_sum, warp_max, block_sum, block_max; any state with `across` and `merge` through warp_merge, block_merge
//   states       moments (mean and squared deviations, merged as Chan, Golub and LeVeque do), softmax_state (maximum and sum)
//   copies       copy_async (cp.async), bulk_load / bulk_store with barrier_* (mbarrier), cluster_*: sm_90 for the last two
//   grid         grid_sync, in a cooperative launch
//
// Template parameters are in lower or mixed case on purpose: a kernel file's tunables are macros, and N or VEC would be replaced.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace forge {

#define FORGE_FN __device__ __forceinline__

enum : unsigned { all_lanes = 0xffffffffu };               // an enumerator: a constexpr variable would be device memory

// ---- types ---------------------------------------------------------------------------------------------------------

FORGE_FN float to_float(float v) { return v; }
FORGE_FN float to_float(__half v) { return __half2float(v); }
FORGE_FN float to_float(__nv_bfloat16 v) { return __uint_as_float((unsigned)__bfloat16_as_ushort(v) << 16); }

template <class Type> struct converter;
template <> struct converter<float> {
    static FORGE_FN float one(float v) { return v; }
    static FORGE_FN void unpack(unsigned word, float* x) { x[0] = __uint_as_float(word); }
    static FORGE_FN unsigned pack(const float* x) { return __float_as_uint(x[0]); }
};
template <> struct converter<__half> {
    static FORGE_FN __half one(float v) { return __float2half_rn(v); }
    static FORGE_FN void unpack(unsigned word, float* x) {
        x[0] = __half2float(__ushort_as_half((unsigned short)(word & 0xffffu)));
        x[1] = __half2float(__ushort_as_half((unsigned short)(word >> 16)));
    }
    static FORGE_FN unsigned pack(const float* x) {
        const __half2 h = __floats2half2_rn(x[0], x[1]);
        return *reinterpret_cast<const unsigned*>(&h);
    }
};
template <> struct converter<__nv_bfloat16> {
    static FORGE_FN __nv_bfloat16 one(float v) { return __float2bfloat16_rn(v); }
    static FORGE_FN void unpack(unsigned word, float* x) {
        x[0] = __uint_as_float(word << 16);
        x[1] = __uint_as_float(word & 0xffff0000u);
    }
    static FORGE_FN unsigned pack(const float* x) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(x[0], x[1]);
        return *reinterpret_cast<const unsigned*>(&h);
    }
};

// Round to nearest even, overflow to infinity, as torch does.
template <class Type> FORGE_FN Type from_float(float v) { return converter<Type>::one(v); }

// What `v` is after a round trip through Type: for values that eager stores in Type between two steps.
template <class Type> FORGE_FN float rounded(float v) { return to_float(from_float<Type>(v)); }

// ---- memory --------------------------------------------------------------------------------------------------------

enum class cache {
    normal,
    read_only,      // ld.global.nc: data that no thread of this launch writes
    streaming,      // evict first: read or written once and not soon again
    resident,       // stores only: to be kept in the L2 as long as it can (sm_80): the last of it is read again, or never has to leave
    bypass_l1       // L2 only
};

// For a tunable: 0, 1, 2.
FORGE_FN constexpr cache store_hint(int number) {
    return number == 2 ? cache::resident : number == 1 ? cache::streaming : cache::normal;
}

template <cache hint, class Word> FORGE_FN Word load_word(const Word* p) {
    if constexpr (hint == cache::read_only) return __ldg(p);
    else if constexpr (hint == cache::streaming) return __ldcs(p);
    else if constexpr (hint == cache::bypass_l1) return __ldcg(p);
    else return *p;
}
// A store of 4, 8 or 16 bytes under the L2's policy "evict last".
FORGE_FN unsigned long long evict_last() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
FORGE_FN void store_resident(unsigned* p, unsigned v) {
    asm volatile("st.global.L2::cache_hint.b32 [%0], %1, %2;" ::"l"(p), "r"(v), "l"(evict_last()) : "memory");
}
FORGE_FN void store_resident(uint2* p, uint2 v) {
    asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1, %2}, %3;" ::"l"(p), "r"(v.x), "r"(v.y), "l"(evict_last()) : "memory");
}
FORGE_FN void store_resident(uint4* p, uint4 v) {
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;"
                 ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(evict_last()) : "memory");
}
template <cache hint, class Word> FORGE_FN void store_word(Word* p, Word v) {
    if constexpr (hint == cache::streaming) __stcs(p, v);
    else if constexpr (hint == cache::resident) store_resident(p, v);
    else if constexpr (hint == cache::bypass_l1) __stcg(p, v);
    else *p = v;
}

// Bytes of the widest access that moves `count` elements in whole accesses; `pointer` must be aligned to it.
template <class Type, int count> constexpr int access_bytes() {
    constexpr int bytes = count * (int)sizeof(Type);
    return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : 2;
}

// x[0 .. count) = pointer[0 .. count) as floats.
template <int count, cache hint = cache::normal, class Type> FORGE_FN void load(const Type* pointer, float* x) {
    constexpr int width = access_bytes<Type, count>();
    constexpr int in_word = 4 / (int)sizeof(Type);
    if constexpr (width == 16) {
#pragma unroll
        for (int i = 0; i < count * (int)sizeof(Type) / 16; ++i) {
            const uint4 v = load_word<hint>(reinterpret_cast<const uint4*>(pointer) + i);
            converter<Type>::unpack(v.x, x + (4 * i + 0) * in_word);
            converter<Type>::unpack(v.y, x + (4 * i + 1) * in_word);
            converter<Type>::unpack(v.z, x + (4 * i + 2) * in_word);
            converter<Type>::unpack(v.w, x + (4 * i + 3) * in_word);
        }
    } else if constexpr (width == 8) {
#pragma unroll
        for (int i = 0; i < count * (int)sizeof(Type) / 8; ++i) {
            const uint2 v = load_word<hint>(reinterpret_cast<const uint2*>(pointer) + i);
            converter<Type>::unpack(v.x, x + (2 * i + 0) * in_word);
            converter<Type>::unpack(v.y, x + (2 * i + 1) * in_word);
        }
    } else if constexpr (width == 4) {
#pragma unroll
        for (int i = 0; i < count * (int)sizeof(Type) / 4; ++i)
            converter<Type>::unpack(load_word<hint>(reinterpret_cast<const unsigned*>(pointer) + i), x + i * in_word);
    } else {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const unsigned short v = load_word<hint>(reinterpret_cast<const unsigned short*>(pointer) + i);
            float two[2];
            converter<Type>::unpack(v, two);
            x[i] = two[0];
        }
    }
}

// pointer[0 .. count) = x[0 .. count), rounded to nearest.
template <int count, cache hint = cache::normal, class Type> FORGE_FN void store(Type* pointer, const float* x) {
    constexpr int width = access_bytes<Type, count>();
    constexpr int in_word = 4 / (int)sizeof(Type);
    if constexpr (width == 16) {
#pragma unroll
        for (int i = 0; i < count * (int)sizeof(Type) / 16; ++i) {
            const float* from = x + 4 * i * in_word;
            const uint4 v = make_uint4(converter<Type>::pack(from), converter<Type>::pack(from + in_word),
                                       converter<Type>::pack(from + 2 * in_word), converter<Type>::pack(from + 3 * in_word));
            store_word<hint>(reinterpret_cast<uint4*>(pointer) + i, v);
        }
    } else if constexpr (width == 8) {
#pragma unroll
        for (int i = 0; i < count * (int)sizeof(Type) / 8; ++i) {
            const float* from = x + 2 * i * in_word;
            const uint2 v = make_uint2(converter<Type>::pack(from), converter<Type>::pack(from + in_word));
            store_word<hint>(reinterpret_cast<uint2*>(pointer) + i, v);
        }
    } else if constexpr (width == 4) {
#pragma unroll
        for (int i = 0; i < count * (int)sizeof(Type) / 4; ++i)
            store_word<hint>(reinterpret_cast<unsigned*>(pointer) + i, converter<Type>::pack(x + i * in_word));
    } else {
#pragma unroll
        for (int i = 0; i < count; ++i) pointer[i] = from_float<Type>(x[i]);
    }
}

// The first `valid` of `count` elements, one access each, no alignment asked; the rest of x becomes `fill`.
template <int count, class Type> FORGE_FN void load_some(const Type* pointer, int valid, float fill, float* x) {
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = i < valid ? to_float(pointer[i]) : fill;
}
template <int count, class Type> FORGE_FN void store_some(Type* pointer, int valid, const float* x) {
#pragma unroll
    for (int i = 0; i < count; ++i)
        if (i < valid) pointer[i] = from_float<Type>(x[i]);
}

// ---- reductions ----------------------------------------------------------------------------------------------------
// A state has `State across(int offset) const` (that of the lane at xor distance `offset`), `void merge(const State&)` and
// `static State none()`. Every lane, or thread, gets the whole result. All lanes must take part.

template <int lanes = 32, class State> FORGE_FN State warp_merge(State state) {
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset >>= 1) state.merge(state.across(offset));
    return state;
}

// Over a block of `threads` (a multiple of 32). `scratch`: shared memory for threads / 32 states; one barrier. The scratch may
// be used again only after another barrier.
template <int threads, class State> FORGE_FN State block_merge(State state, State* scratch) {
    static_assert(threads % 32 == 0 && threads <= 1024, "a block of whole warps");
    state = warp_merge<32>(state);
    if constexpr (threads > 32) {
        constexpr int warps = threads / 32;
        constexpr int lanes = warps <= 2 ? 2 : warps <= 4 ? 4 : warps <= 8 ? 8 : warps <= 16 ? 16 : 32;
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = state;
        __syncthreads();
        const int lane = threadIdx.x % lanes;
        if constexpr (lanes == warps) state = scratch[lane];
        else state = lane < warps ? scratch[lane] : State::none();
        state = warp_merge<lanes>(state);
    }
    return state;
}

struct sum_state {
    float value;
    FORGE_FN sum_state across(int offset) const { return {__shfl_xor_sync(all_lanes, value, offset)}; }
    FORGE_FN void merge(const sum_state& other) { value += other.value; }
    static FORGE_FN sum_state none() { return {0.f}; }
};
// NaN is kept if any thread has one.
struct max_state {
    float value;
    FORGE_FN max_state across(int offset) const { return {__shfl_xor_sync(all_lanes, value, offset)}; }
    FORGE_FN void merge(const max_state& other) {
        value = other.value > value || other.value != other.value ? other.value : value;
    }
    static FORGE_FN max_state none() { return {-__int_as_float(0x7f800000)}; }
};
template <int lanes = 32> FORGE_FN float warp_sum(float v) { return warp_merge<lanes>(sum_state{v}).value; }
template <int lanes = 32> FORGE_FN float warp_max(float v) { return warp_merge<lanes>(max_state{v}).value; }
template <int threads> FORGE_FN float block_sum(float v, float* scratch) {
    return block_merge<threads>(sum_state{v}, reinterpret_cast<sum_state*>(scratch)).value;
}
template <int threads> FORGE_FN float block_max(float v, float* scratch) {
    return block_merge<threads>(max_state{v}, reinterpret_cast<max_state*>(scratch)).value;
}

// Who merges the states of one row: the lanes of a warp, or a whole block by shared memory of as many States as it has warps for each
// `use`; of one use after another no barrier is needed between.
template <int lanes> struct by_lanes {
    template <class State> FORGE_FN State merge(State state, int = 0) const { return warp_merge<lanes>(state); }
};
template <int threads> struct by_block {
    void* scratch;
    template <class State> FORGE_FN State merge(State state, int use = 0) const {
        return block_merge<threads>(state, reinterpret_cast<State*>(scratch) + use * (threads / 32));
    }
};

// Count, mean and sum of squared deviations of a set. Merging sets costs no digits, however large the mean (T. F. Chan,
// G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
struct moments {
    float count, mean, m2;
    FORGE_FN moments across(int offset) const {
        return {__shfl_xor_sync(all_lanes, count, offset), __shfl_xor_sync(all_lanes, mean, offset),
                __shfl_xor_sync(all_lanes, m2, offset)};
    }
    FORGE_FN void merge(const moments& other) {
        const float total = count + other.count;
        const float share = total > 0.f ? __fdividef(other.count, total) : 0.f;   // its error scales `apart`, never the mean
        const float apart = other.mean - mean;
        mean = fmaf(apart, share, mean);
        m2 += fmaf(apart * apart, count * share, other.m2);
        count = total;
    }
    // One more element (Welford).
    FORGE_FN void add(float x) {
        count += 1.f;
        const float apart = x - mean;
        mean += apart / count;
        m2 = fmaf(apart, x - mean, m2);
    }
    static FORGE_FN moments none() { return {0.f, 0.f, 0.f}; }
};
// Moments of the first `valid` of `size` values in registers: two passes, and no division per element.
template <int size> FORGE_FN moments moments_of(const float* x, int valid = size) {
    float part[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < size; ++i)
        if (i < valid) part[i % 4] += x[i];
    const float mean = ((part[0] + part[1]) + (part[2] + part[3])) / (float)(valid > 0 ? valid : 1);
    part[0] = part[1] = part[2] = part[3] = 0.f;
#pragma unroll
    for (int i = 0; i < size; ++i)
        if (i < valid) part[i % 4] = fmaf(x[i] - mean, x[i] - mean, part[i % 4]);
    return {(float)valid, mean, (part[0] + part[1]) + (part[2] + part[3])};
}
// Moments of two sets of the same `count` each become those of their union: no division, the same bits whichever comes first.
FORGE_FN void merge_equal(float& mean, float& m2, float other_mean, float other_m2, float count) {
    const float apart = other_mean - mean;
    mean = 0.5f * (mean + other_mean);
    m2 = fmaf(apart * apart, 0.5f * count, m2 + other_m2);
}

// Maximum of a set and the sum of exponentials relative to it (M. Milakov, N. Gimelshein, "Online normalizer calculation for
// softmax", 2018). A set that is all -infinity has sum 0, one with a NaN has sum NaN.
struct softmax_state {
    float max, sum;
    // What a sum relative to `from` must be multiplied by to be relative to `to` >= `from`. Equal ones, both -infinity included
    // (where the formula says 0 / 0 and nothing is there to scale), need nothing.
    static FORGE_FN float rescale(float from, float to) { return from == to ? 1.f : expf(from - to); }
    FORGE_FN softmax_state across(int offset) const {
        return {__shfl_xor_sync(all_lanes, max, offset), __shfl_xor_sync(all_lanes, sum, offset)};
    }
    FORGE_FN void merge(const softmax_state& other) {
        const float top = fmaxf(max, other.max);
        sum = sum * rescale(max, top) + other.sum * rescale(other.max, top);
        max = top;
    }
    static FORGE_FN softmax_state none() { return {-__int_as_float(0x7f800000), 0.f}; }
};

// 2^x to about 2 units in the last place, subnormals flushed: for who wants it by name, since no fast-math flag is ever set.
FORGE_FN float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// e^x as closely as a result of Type can show: for 16-bit types 2^(x log2(e)) by one instruction, wrong by 2^-22 + |x| 2^-23.
template <class Type> FORGE_FN float exp_for(float x) {
    if constexpr (sizeof(Type) == 2) return exp2_approx(x * 1.4426950408889634f);
    else return expf(x);
}

// ---- copies to shared memory (sm_80) -------------------------------------------------------------------------------

FORGE_FN unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// 4, 8 or 16 bytes, both sides aligned to them; past L1 where 16.
template <int bytes> FORGE_FN void copy_async(void* shared, const void* global) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async moves 4, 8 or 16 bytes");
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)), "l"(global), "n"(bytes) : "memory");
}
FORGE_FN void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `pending` of this thread's groups are still under way. Other threads see the data after a barrier.
template <int pending = 0> FORGE_FN void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

// ---- barriers in shared memory, bulk copies, clusters (sm_90) ------------------------------------------------------
// Order of use: one thread barrier_init and barrier_init_fence, then __syncthreads; one thread barrier_expect and bulk_load;
// everybody barrier_wait with parity 0, then 1, 0, 1 ... for each further use of the barrier.

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
typedef unsigned long long barrier;                         // an mbarrier object, 8-byte aligned, in shared memory

FORGE_FN void barrier_init(barrier* b, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
// Initialized barriers become visible to the copy engine and to the other blocks of the cluster.
FORGE_FN void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
// One arrival, and `bytes` more to come before the phase completes.
FORGE_FN void barrier_expect(barrier* b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
FORGE_FN void barrier_arrive(barrier* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Whether the phase of that parity is complete; may wait a little in hardware.
FORGE_FN bool barrier_test(barrier* b, unsigned parity) {
    unsigned done;
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}" : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    return done != 0;
}
FORGE_FN void barrier_wait(barrier* b, unsigned parity) { while (!barrier_test(b, parity)) {} }

// Copy engine, global to shared; counts on `b`. Addresses and bytes: multiples of 16.
FORGE_FN void bulk_load(void* shared, const void* global, unsigned bytes, barrier* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(b)) : "memory");
}
// The same, with a hint to the L2: `streaming` is let go first, so that data read once does not push out what should stay.
FORGE_FN unsigned long long evict_first() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
template <cache hint> FORGE_FN void bulk_load(void* shared, const void* global, unsigned bytes, barrier* b) {
    if constexpr (hint == cache::normal) return bulk_load(shared, global, bytes, b);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(b)),
                   "l"(hint == cache::streaming ? evict_first() : evict_last()) : "memory");
}
// Copy engine, shared to global; before it: the writers' bulk_store_fence, then a barrier. Commit, and wait before the shared
// memory is written again (wait_read) or the kernel depends on the data being there (wait).
FORGE_FN void bulk_store_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FORGE_FN void bulk_store(void* global, const void* shared, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(global), "r"(shared_address(shared)), "r"(bytes) : "memory");
}
FORGE_FN void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending = 0> FORGE_FN void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
template <int pending = 0> FORGE_FN void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory"); }

FORGE_FN int cluster_rank() { unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return (int)r; }
FORGE_FN int cluster_size() { unsigned r; asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(r)); return (int)r; }
FORGE_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Orders no memory: only says "my barriers are there", after barrier_init_fence.
FORGE_FN void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
FORGE_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
FORGE_FN void cluster_sync() { cluster_arrive(); cluster_wait(); }
// Send 8 bytes to `slot` in the shared memory of the block `rank`; they count on that block's barrier `b`.
FORGE_FN void cluster_send(unsigned long long* slot, barrier* b, int rank, unsigned long long v) {
    asm volatile("{\n\t.reg .b32 there, bar;\n\tmapa.shared::cluster.u32 there, %0, %2;\n\tmapa.shared::cluster.u32 bar, %1, %2;\n\t"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [there], %3, [bar];\n\t}"
                 ::"r"(shared_address(slot)), "r"(shared_address(b)), "r"(rank), "l"(v) : "memory");
}
#endif

// ---- the whole grid of a cooperative launch ------------------------------------------------------------------------
// What cooperative_groups' this_grid().sync() compiles to (cooperative_groups/details/driver_abi.h and sync.h of CUDA 12 and 13),
// without that header, which multiplies the time of a build. Every thread of every block must take part.

// In two halves: one thread of each block arrives, after a __syncthreads() with those whose writes it speaks for; whoever holds
// what it got may wait. Each block arrives as often as every other.
struct grid_arrival {
    const unsigned* count;
    unsigned before;
};
FORGE_FN grid_arrival grid_arrive() {
    unsigned low, high, before;
    asm volatile("mov.u32 %0, %%envreg2;" : "=r"(low));
    asm volatile("mov.u32 %0, %%envreg1;" : "=r"(high));
    unsigned* arrived = reinterpret_cast<unsigned*>((unsigned long long)high << 32 | low) + 1;
    const unsigned step = (blockIdx.x | blockIdx.y | blockIdx.z) == 0
        ? 0x80000000u - (gridDim.x * gridDim.y * gridDim.z - 1) : 1u;       // all of them together turn over the top bit
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrived), "r"(step) : "memory");
    return {arrived, before};
}
FORGE_FN void grid_wait(grid_arrival own) {
    unsigned now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(own.count) : "memory");
    } while (((own.before ^ now) & 0x80000000u) == 0);
}
FORGE_FN void grid_sync() {
    __syncthreads();
    if ((threadIdx.x | threadIdx.y | threadIdx.z) == 0) grid_wait(grid_arrive());
    __syncthreads();
}

// Two floats as one 64-bit word, for messages between blocks.
FORGE_FN unsigned long long pack2(float low, float high) {
    return (unsigned long long)__float_as_uint(high) << 32 | __float_as_uint(low);
}
FORGE_FN float2 unpack2(unsigned long long word) {
    return make_float2(__uint_as_float((unsigned)word), __uint_as_float((unsigned)(word >> 32)));
}

}  // namespace forge
