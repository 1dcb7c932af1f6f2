"""Builtin kernels of regions: right in every float type at the corners of their settings; sizes of real models build for sm_90."""

from __future__ import annotations

import pytest
import torch
from hostkit import needs_nvrtc

from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.device import H200
from forge_tui.engine.builtin.catalog import BuiltinKernel, kernels_for
from tests.kernels import FLOATS, assert_right, bound, corners, parsed, run, settings_of
from tests.region_cases import OWN, REGIONS, gate, heads, layer, normed, region, summed, tables

pytestmark = needs_nvrtc
GPU_ONLY = ("rows_cluster", "group_stream")
"""The host target says that it cannot interpret them."""


def readings(name: str) -> str | None:
    """What the names of the kernels end with that read this case's code as it is."""
    if name == "add one more":
        return "plus_one"
    return "pairs" if name == "rotary of neighbours" else None


def right_ones(name: str, dtype: torch.dtype) -> list[BuiltinKernel]:
    ending = readings(name)
    kernels = [kernel for kernel in kernels_for(REGIONS[name](dtype).call) if not kernel.name.startswith(GPU_ONLY)]
    return [kernel for kernel in kernels if (kernel.name.endswith(ending) if ending else not kernel.name.endswith(("plus_one", "pairs")))]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", REGIONS)
def test_regions_equal_their_float64(name: str, dtype: torch.dtype) -> None:
    item, ran = REGIONS[name](dtype), 0
    for kernel in right_ones(name, dtype):
        if parsed(kernel.text, kernel.name).refusal(item.call, H200) is None:
            points = settings_of(kernel, item.call)
            for settings in corners(points) if dtype is torch.bfloat16 else points[:1]:
                assert_right(run(kernel, item, settings), item, f"{name}: {kernel.name} {settings}")
                ran += 1
    assert ran, f"no kernel ran for {name}"
