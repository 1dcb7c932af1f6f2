"""Races between blocks in global memory: found with their line, beside twins that order the blocks and must run."""

from __future__ import annotations

import pytest
import torch
from hostkit import fault, launch, line_of, needs_nvrtc, run

from forge_tui.cuda.program import Launch, Workspace

pytestmark = needs_nvrtc

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

CASES = {
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


def plan(source: str, blocks: int) -> Launch:
    return launch("k", blocks, 64, "input", "out", "scratch", "count", 64 * blocks, cooperative=GRID in source)


def tensors(blocks: int) -> dict[str, torch.Tensor]:
    return {"input": torch.rand(64 * blocks) + 1, "out": torch.zeros(64 * blocks)}


def scratch(blocks: int) -> dict[str, object]:
    return {"workspaces": (Workspace("scratch", "float32", (64 * blocks,), 0), Workspace("count", "int32", (1,), 0))}


FAR_APART = ("two blocks store to one place", "the neighbour's element is read while it is replaced",
             "the last block sums without a fence", "an atomic total is read at once", "overlapping tiles")
"""Also with blocks that do not run together."""


@pytest.mark.parametrize(("name", "blocks"), [*((name, 4) for name in CASES), *((name, 1100) for name in FAR_APART)])
def test_planted_race_and_its_ordered_twin(name: str, blocks: int) -> None:
    source, wrong, right = CASES[name]
    text = source.replace("@", wrong)
    found = fault(text, tensors(blocks), plan(text, blocks), **scratch(blocks))
    assert (found.kind, found.line) == ("race", line_of(text, "// here")), str(found)
    assert "in the same launch" in found.message
    text = source.replace("@", right)
    run(text, tensors(blocks), plan(text, blocks), **scratch(blocks))


def test_the_other_block_is_named() -> None:
    source = HEAD + INDEX + "  if (t == 0 && (b == 2 || b == 5)) { if (b == 5) for (int j = 0; j < n; j++) atomicAdd(count, 1u);\n  scratch[9] = b; } }"
    found = fault(source, tensors(8), plan(source, 8), **scratch(8))
    assert (found.block, found.message) == (5, "global store to scratch over what block 2 stored in the same launch: "
                                            "nothing orders the two blocks")


def test_launches_are_in_order() -> None:
    source = HEAD + INDEX + "  float v = scratch[n - 1 - i]; out[n - 1 - i] = v + input[i]; }\n" \
        'extern "C" __global__ void first(const float* input, float* scratch) { int i = blockIdx.x * 64 + threadIdx.x; scratch[i] = input[i]; }'
    values = tensors(8)
    run(source, values, launch("first", 8, 64, "input", "scratch"), plan(source, 8), **scratch(8))
    assert torch.equal(values["out"], (values["input"] + values["input"].flip(0)).flip(0))


def test_every_block_storing_the_same_is_no_race() -> None:
    source = HEAD + INDEX + "  out[t] = input[t]; scratch[0] = 1; }"
    run(source, tensors(1100), plan(source, 1100), **scratch(1100))


def test_a_grid_barrier_in_a_loop_orders_every_turn() -> None:
    source = GRID + HEAD + INDEX + """  auto grid = cooperative_groups::this_grid(); float v = input[i];
    for (int j = 0; j < 6; j++) { scratch[i] = v; grid.sync(); v += scratch[(i + 64) % n]; grid.sync(); }
    out[i] = v; }"""
    values = tensors(6)
    run(source, values, plan(source, 6), **scratch(6))
    want = values["input"].clone()
    for _ in range(6):
        want = want + want.roll(-64)
    assert torch.allclose(values["out"], want)
