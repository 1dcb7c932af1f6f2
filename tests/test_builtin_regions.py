"""Builtin kernels of regions: right in every float type at the corners of their settings; sizes of real models build for sm_90."""

from __future__ import annotations

import pytest
import torch
from hostkit import needs_nvrtc

from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.device import H200
from forge_tui.engine.builtin.catalog import BuiltinKernel, kernels_for
from forge_tui.specs import Call, TensorSpec
from tests.kernels import FLOATS, assert_right, bound, corners, parsed, run, settings_of
from tests.region_cases import OWN, REGIONS

pytestmark = needs_nvrtc
FN = "torch.nn.functional."


def readings(name: str) -> str | None:
    """What the names of the kernels end with that read this case's code as it is."""
    if name == "add one more":
        return "plus_one"
    return "pairs" if name == "rotary of neighbours" else None


def right_ones(name: str, dtype: torch.dtype) -> list[BuiltinKernel]:
    ending = readings(name)
    return [kernel for kernel in kernels_for(REGIONS[name](dtype).call) if (kernel.name.endswith(ending) if ending else not kernel.name.endswith(("plus_one", "pairs")))]


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


def _spec(dtype: str, *shape: int, order: tuple[int, ...] | None = None) -> TensorSpec:
    """order: dimensions from the outermost in memory to the innermost; None: contiguous."""
    stride, step = [0] * len(shape), 1
    for dim in reversed(order or range(len(shape))):
        stride[dim] = step
        step *= shape[dim]
    return TensorSpec(dtype, shape, tuple(stride))


def _group(*shape: int) -> Call:
    image, channels = _spec("bfloat16", *shape), _spec("bfloat16", shape[1])
    return Call(f"{FN}group_norm+{FN}silu", {"input": image, "num_groups": 32, "weight": channels, "bias": channels, "eps": 1e-6}, (image,))


def _gate(act: str, *shape: int) -> Call:
    rows = _spec("bfloat16", *shape)
    return Call(f"{FN}{act}+torch.mul", {"input": rows, **({"approximate": "tanh"} if act == "gelu" else {}), "other": rows}, (rows,))


def _sum(rows: int, cols: int) -> Call:
    x = _spec("bfloat16", 1, rows, cols)
    return Call("torch.add+region_models.LateRMSNorm", {"input": x, "other": x, "weight": _spec("bfloat16", cols),
                                                        "variance_epsilon": 1e-6, "returns_sum": True}, (x, x))


def _turn(positions: int, heads: int, kv: int, width: int, table: int) -> Call:
    q, k = (_spec("bfloat16", 1, count, positions, width, order=(0, 2, 1, 3)) for count in (heads, kv))
    angles = _spec("bfloat16", 1, positions, table)
    name = "apply_rotary_pos_emb" if table == width else "apply_partial_rotary"
    return Call(OWN + name, {"q": q, "k": k, "cos": angles, "sin": angles, "unsqueeze_dim": 1}, (q, k))


def _left_behind(*shape: int) -> Call:
    x = _spec("float32", *shape)
    return Call(f"torch.add+{FN}relu", {"input": x, "other": x, "returns_sum": True}, (x, x), {"out0": "input"})


LARGE = {
    "add_act": [_left_behind(32, 256, 56, 56), _left_behind(32, 2048, 7, 7)],
    "group_cluster": [_group(1, 512, 128, 128)],
    "group_relay": [_group(1, 512, 256, 256), _group(1, 512, 512, 512), _group(1, 256, 1024, 1024), _group(1, 128, 1024, 1024)],
    "pointwise_dense": [_gate("gelu", 1, 512, 6144), _gate("gelu", 1, 1, 12288), _gate("silu", 1, 512, 14336), _gate("silu", 512, 512)],
    "add_norm": [_sum(512, 1536), _sum(1, 1536), _sum(512, 4096), _sum(512, 2048)],
    "rotary": [_turn(512, 32, 8, 128, 128), _turn(1, 32, 8, 128, 128), _turn(512, 16, 2, 256, 64)],
}
"""Regions of the models of the reference study at their sizes: ResNet-50, SD3.5's VAE at 1024 pixels, Gemma 4 E2B, Llama 3.1 8B, Qwen3.5 35B, by
the kernel that comes first."""


@pytest.mark.parametrize("first", LARGE)
def test_regions_of_real_sizes_come_with_a_kernel_of_wide_accesses(first: str) -> None:
    for call in LARGE[first]:
        kernel = kernels_for(call)[0]
        assert kernel.name == first
        settings = settings_of(kernel, call)
        program = bound(kernel, call, settings[0])
        code = compile_program(program, kind="ptx", arch="sm_90").code.decode()
        assert compile_program(program, kind="cubin", arch="sm_90").code
        assert first.startswith("group_") or {"ld.global.v4", "ld.global.nc.v4", "ld.global.L1::no_allocate.v4"} & {
            word.rpartition(".")[0] for word in code.split() if word.startswith("ld.global")}, f"{first}: no access of 16 bytes"
        most = max(launch.grid[0] * launch.grid[1] * launch.block[0] for launch in program.launches)
        assert most >= min(call.outputs[0].numel // 32, 132 * 256) or first.startswith("group_"), "threads for every multiprocessor"
