"""Every builtin kernel builds at the corners of its settings, and every template is reached by some case."""

from __future__ import annotations

import pytest
import torch

from forge_tui.engine.builtin.catalog import BuiltinKernel, kernels_for
from forge_tui.engine.builtin.registry import template_names
from forge_tui.specs import Call, TensorSpec
from tests.builtin_cases import FAMILIES
from tests.kernels import bound, build, corners, settings_of


MINE = ("pointwise", "avgpool", "adaptive", "pool2d", "embedding", "pad")
"""First words of the templates of these families."""


def _large() -> Call:
    """Enough elements for the kernels that small calls are not offered."""
    spec = TensorSpec("bfloat16", (1 << 11, 1 << 12), (1 << 12, 1))
    return Call("torch.nn.functional.silu", {"input": spec}, (spec,))


def _one_case_each() -> dict[str, tuple[BuiltinKernel, Call]]:
    """For every kernel of every operator the first case it is offered for."""
    found: dict[str, tuple[BuiltinKernel, Call]] = {}
    calls = [make(torch.float32).call for cases in FAMILIES.values() for make in cases.values()]
    for call in (*calls, _large()):
        for kernel in kernels_for(call):
            found.setdefault(f"{kernel.name} {call.operator.rpartition('.')[2]}", (kernel, call))
    return found


CASES = _one_case_each()


@pytest.mark.parametrize("case", CASES)
def test_corners_of_the_settings_build(case: str) -> None:
    kernel, call = CASES[case]
    points = settings_of(kernel, call)
    assert points
    for settings in corners(points):
        launched = {launch.kernel for launch in bound(kernel, call, settings).launches}
        ptx = build(kernel, call, settings)
        assert all(f".entry {name}(" in ptx for name in launched)


def test_every_template_is_offered_somewhere() -> None:
    mine = {name for name in template_names() if name.startswith(MINE)}
    assert {kernel.name for kernel, _ in CASES.values()} >= mine
