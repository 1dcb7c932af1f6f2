"""Races between blocks in global memory: found with their line, beside twins that order the blocks and must run."""

from __future__ import annotations

import pytest
import torch
from hostkit import fault, launch, line_of, needs_nvrtc, run

from benchmarks.hostset.races import GRID, HEAD, INDEX, RACES
from forge_tui.cuda.program import Launch, Workspace

pytestmark = needs_nvrtc

def plan(source: str, blocks: int) -> Launch:
    return launch("k", blocks, 64, "input", "out", "scratch", "count", 64 * blocks, cooperative=GRID in source)


def tensors(blocks: int) -> dict[str, torch.Tensor]:
    return {"input": torch.rand(64 * blocks) + 1, "out": torch.zeros(64 * blocks)}


def scratch(blocks: int) -> dict[str, object]:
    return {"workspaces": (Workspace("scratch", "float32", (64 * blocks,), 0), Workspace("count", "int32", (1,), 0))}


FAR_APART = ("two blocks store to one place", "the neighbour's element is read while it is replaced",
             "the last block sums without a fence", "an atomic total is read at once", "overlapping tiles")
"""Also with blocks that do not run together."""


@pytest.mark.parametrize(("name", "blocks"), [*((name, 4) for name in RACES), *((name, 1100) for name in FAR_APART)])
def test_planted_race_and_its_ordered_twin(name: str, blocks: int) -> None:
    source, wrong, right = RACES[name]
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
