"""Races between blocks of a launch: a kernel with `@`, what makes it wrong there, and what orders the blocks."""

from __future__ import annotations

HEAD = 'extern "C" __global__ void k(const float* __restrict__ input, float* out, float* scratch, unsigned* count, int n) {\n'
INDEX = "  int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x, b = blockIdx.x;\n"
GRID = "#include <cooperative_groups.h>\n"

LAST_BLOCK = HEAD + INDEX + """  __shared__ bool last; __shared__ float s[64]; s[t] = input[i]; __syncthreads();
  if (t == 0) { float v = 0; for (int j = 0; j < 64; j++) v += s[j]; scratch[b] = v;
    @
    last = atomicAdd(count, 1u) == gridDim.x - 1; }
  __syncthreads();
  if (last && t == 0) { float v = 0; for (int j = 0; j < gridDim.x; j++)
    v += scratch[j];  // here
    out[0] = v; } }"""

PHASES = GRID + HEAD + INDEX + """  scratch[i] = input[i] * 2;
  @
  out[i] = scratch[n - 1 - i];  // here
}"""

RACES = {
    "two blocks store to one place": (HEAD + INDEX + "  if (t == 0)\n    out[@] = b;  // here\n}", "0", "b"),
    "a sum by plain addition": (HEAD + INDEX + "  if (t == 0)\n    @;  // here\n}", "scratch[0] += input[i]", "atomicAdd(&scratch[0], input[i])"),
    "the neighbour's element is read while it is replaced": (
        HEAD + INDEX + "  float v = input[i]; scratch[i] = v; __syncthreads();\n  v += scratch[@];  // here\n  out[i] = v; }",
        "(i + 1) % n", "b * 64 + (t + 1) % 64"),
    "the last block sums without a fence": (LAST_BLOCK, "", "__threadfence();"),
    "phases without a grid barrier": (PHASES, "__syncthreads();", "cooperative_groups::this_grid().sync();"),
    "an atomic total is read at once": (
        HEAD + INDEX + "  if (t == 0) { atomicAdd(&scratch[0], input[i]);\n    out[b] = @;  // here\n  } }", "scratch[0]", "atomicAdd(&scratch[0], 0.f)"),
    "one block clears what others add to": (
        HEAD + INDEX + "  if (@) scratch[0] = 0.5f;\n  if (t == 0)\n    atomicAdd(&scratch[0], input[i]);  // here\n}", "i == 0", "i == -1"),
    "overlapping tiles": (HEAD + INDEX + "  int at = b * @ + t; if (at < n)\n    out[at] = i;  // here\n}", "60", "64"),
    "vectors over a neighbour's elements": (
        HEAD + INDEX + "  if (t < 16 && 4 * t + b * @ < n)\n    ((float4*)out)[t + b * @ / 4] = make_float4(i, b, t, 1);  // here\n}", "60", "64"),
    "half a lock": (
        HEAD + INDEX + """  if (t == 0) { while (atomicCAS(count, 0u, 1u) != 0) { }
    __threadfence();
    scratch[0] += input[i];  // here
    @
    atomicExch(count, 0u); } }""", "", "__threadfence();"),
}


