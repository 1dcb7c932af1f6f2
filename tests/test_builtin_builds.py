"""Every builtin kernel at the corners of its settings, on the host target; and what no small call reaches."""

from __future__ import annotations

import msgspec
import pytest
import torch
import torch.nn.functional as F

from forge_tui.cuda.device import H200
from forge_tui.engine.builtin.catalog import BuiltinKernel, kernels_for
from forge_tui.engine.builtin.families import pointwise
from forge_tui.engine.builtin.registry import template_names
from forge_tui.specs import Call, Items, TensorSpec
from tests.builtin_cases import FAMILIES
from tests.kernels import Sample, assert_right, bound, build, check, corners, draw, run, sample, settings_of

MINE = ("pointwise", "avgpool", "adaptive", "pool2d", "embedding", "pad")
"""First words of the templates of these families."""


def _one_case_each() -> dict[str, tuple[BuiltinKernel, Sample]]:
    """For every kernel of every operator the first case it is offered for."""
    found: dict[str, tuple[BuiltinKernel, Sample]] = {}
    for cases in FAMILIES.values():
        for make in cases.values():
            item = make(torch.float32)
            for kernel in kernels_for(item.call):
                found.setdefault(f"{kernel.name} {item.call.operator.rpartition('.')[2]}", (kernel, item))
    return found


CASES = _one_case_each()


@pytest.mark.parametrize("case", CASES)
def test_corners_of_the_settings_build_and_are_right(case: str) -> None:
    kernel, item = CASES[case]
    for settings in corners(settings_of(kernel, item.call)):
        assert_right(run(kernel, item, settings), item, f"{case} {settings}")


def test_resident_blocks_go_round_and_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "MANY", 1)
    device = msgspec.structs.replace(H200, sm_count=1)
    for size in (1, 4096, 9001, 24576):
        item = sample(F.silu, draw(size, dtype=torch.float16), inplace=True, aliases={"out": "input"})
        resident = [kernel for kernel in kernels_for(item.call) if kernel.name == "pointwise_persistent"]
        assert check(resident, item, every_corner=size == 9001, device=device)


def _huge() -> list[Call]:
    """More than 2^30 elements: indices have 64 bits."""
    long = TensorSpec("bfloat16", (3, 1 << 29), (1 << 29, 1))
    row = TensorSpec("bfloat16", (3, 1), (1, 1))
    image = TensorSpec("float32", (1 << 12, 64, 128, 128), (1 << 20, 1 << 14, 128, 1))
    half = TensorSpec("float32", (1 << 12, 64, 64, 64), (1 << 18, 1 << 12, 64, 1))
    whole = TensorSpec("float32", (1 << 12, 64, 1, 1), (64, 1, 1, 1))
    two, none, one = Items((2, 2)), Items((0, 0)), Items((1, 1))
    window = {"input": image, "kernel_size": two, "stride": two, "padding": none}
    return [
        Call("torch.nn.functional.silu", {"input": long}, (long,)),
        Call("torch.mul", {"input": long, "other": row}, (long,)),
        Call("torch.nn.functional.adaptive_avg_pool2d", {"input": image, "output_size": one}, (whole,)),
        Call("torch.nn.functional.max_pool2d", {**window, "dilation": one, "ceil_mode": False, "return_indices": False}, (half,)),
        Call("torch.nn.functional.embedding",
             {"input": TensorSpec("int64", (1 << 21,), (1,)), "weight": TensorSpec("bfloat16", (5000, 1024), (1024, 1)),
              "max_norm": None}, (TensorSpec("bfloat16", (1 << 21, 1024), (1024, 1)),)),
        Call("torch.nn.functional.pad", {"input": image, "pad": one, "mode": "constant", "value": None},
             (TensorSpec("float32", (1 << 12, 64, 128, 130), (64 * 128 * 130, 128 * 130, 130, 1)),)),
    ]


def test_calls_of_more_than_32_bits_build_and_say_so() -> None:
    wide = 0
    for call in _huge():
        for kernel in kernels_for(call):
            settings = settings_of(kernel, call)[0]
            assert build(kernel, call, settings)
            wide += ("WIDE", "1") in bound(kernel, call, settings).macros
    assert wide >= len(_huge())


def test_every_template_is_offered_somewhere() -> None:
    offered = {kernel.name for kernel, _ in CASES.values()} | {kernel.name for call in _huge() for kernel in kernels_for(call)}
    assert offered >= {name for name in template_names() if name.startswith(MINE)}
