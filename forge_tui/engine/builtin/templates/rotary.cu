/*forge
format = 1
operator = "@OPERATOR@"

# Rotary position embedding. A place is what the tables of cosines and sines tell apart, a head what they do not. A thread takes
# one part of the last dimension (VEC elements of each half, or VEC neighbours, or VEC elements that are only copied) at one
# place, reads its angles once, and turns HEADS heads by them. Elements of a half type are turned in float32 and rounded once.

[let]
places = "@PLACES@"
last = "@LAST@"
width = "@WIDTH@"
first_heads = "@FIRST_HEADS@"
heads = "first_heads + @SECOND_HEADS@"
@LET@
even = "min(@EVEN@)"
reach = "min(even, @REACH@)"

[tune]
BLOCK = [128, 256, 64]
HEADS = @HEADS_TUNE@                    # heads of a thread
VEC = [8, 4, 2, 1]                      # elements of one access

[require]
call = [@GUARD@]
aligned = "VEC <= reach and (width // 2) % VEC == 0 and (last - width) % VEC == 0"
worth = "VEC * 4 > reach or (width // 2) % (VEC * 2) != 0 or (last - width) % (VEC * 2) != 0"
few = "places * last < 2 ** 31"

[define]
PLACES = "places"
FIRST_HEADS = "first_heads"
ALL_HEADS = "heads"
WIDTH = "width"
TURNED = "width // (2 * VEC)"           # parts of a head that are turned
PARTS = "width // (2 * VEC) + (last - width) // VEC"
@DEFINE@

[[launch]]
kernel = "rotary"
grid = ["ceil_div(places * (width // (2 * VEC) + (last - width) // VEC), BLOCK)", "ceil_div(heads, HEADS)"]
block = ["BLOCK"]
args = [@ARGS@]
*/
#include <forge.cuh>

#define PAIRS @PAIRS@
@OFFSETS@

struct angles {
    float cos[2][VEC], sin[2][VEC];     // of the first and of the second half (or neighbours: one after the other)
};

// Where the two runs of VEC elements begin that a part is made of.
__device__ __forceinline__ int run(int part, int which) {
    return PAIRS ? (part * 2 + which) * VEC : part * VEC + which * (WIDTH / 2);
}

template <class In, class Out>
__device__ __forceinline__ void turn(const In* from, Out* to, int part, const angles& angle) {
    if (part >= TURNED) {
        float x[VEC];
        const int at = WIDTH + (part - TURNED) * VEC;
        forge::load<VEC, forge::cache::streaming>(from + at, x);
        forge::store<VEC>(to + at, x);
        return;
    }
    float x[2 * VEC], y[2 * VEC];
    forge::load<VEC, forge::cache::streaming>(from + run(part, 0), x);
    forge::load<VEC, forge::cache::streaming>(from + run(part, 1), x + VEC);
#pragma unroll
    for (int i = 0; i < 2 * VEC; ++i) {
        const float other = PAIRS ? (i % 2 ? x[i - 1] : -x[i + 1]) : (i < VEC ? -x[i + VEC] : x[i - VEC]);
        y[i] = x[i] * angle.cos[i / VEC][i % VEC] + other * angle.sin[i / VEC][i % VEC];
    }
    forge::store<VEC>(to + run(part, 0), y);
    forge::store<VEC>(to + run(part, 1), y + VEC);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
rotary(@PARAMETERS@) {
    const int own = blockIdx.x * BLOCK + threadIdx.x;
    if (own >= PLACES * PARTS) return;
    const int place = own / PARTS, part = own % PARTS;
    angles angle;
    if (part < TURNED) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            forge::load<VEC, forge::cache::read_only>(cos + cos_place(place) + run(part, which), angle.cos[which]);
            forge::load<VEC, forge::cache::read_only>(sin + sin_place(place) + run(part, which), angle.sin[which]);
        }
    }
    const int begin = blockIdx.y * HEADS;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        const int head = begin + h;
        if (head >= ALL_HEADS) return;
@BODY@
    }
}
