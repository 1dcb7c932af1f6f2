"""Draws of large inputs are made in pieces: what one takes besides its result does not grow with the input."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forge_tui.cuda.device import H200
from forge_tui.engine.judge.draws import Drawer
from forge_tui.engine.judge.reference import eager
from forge_tui.engine.judge.selftest import variant_of
from forge_tui.engine.judge.trial import Trial
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.operators import describe, lookup, named_tensors
from forge_tui.engine.statistics import statistics
from judging import PythonTarget
from test_judge import PLAN

MOST = 3
"""Tensors of the input's size that a draw may make, two at a time: rows permuted, elements permuted, all laid out as captured."""


class Large(TorchDispatchMode):
    """Adds up the bytes of new tensors of at least half of `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.total = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {item.untyped_storage().data_ptr() for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        self.total += sum(item.nbytes for item in tree_leaves(result) if isinstance(item, torch.Tensor) and 2 * item.nbytes >= self.size
                          and item.untyped_storage().data_ptr() not in known)
        return result


@pytest.mark.parametrize(("operator", "arguments"), [
    ("torch.nn.functional.softmax", {"dim": -1, "dtype": None}),
    ("torch.nn.functional.relu", {}),
    ("torch.nn.functional.layer_norm", {"normalized_shape": (256,), "weight": torch.rand(256), "bias": None, "eps": 1e-5})])
def test_a_draw_takes_little_besides_its_result(operator: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("memory", "draws", "hardcases"):
        monkeypatch.setattr(f"forge_tui.engine.judge.{module}.PIECE", 1 << 10)
    given = {"input": torch.randn(256, 256), **arguments}
    call = describe(operator, given, lookup(operator).call(given))
    sample = dict(named_tensors(given))
    drawer = Drawer(call, [sample], {name: statistics([tensor]) for name, tensor in sample.items()}, seed=3)
    size = given["input"].nbytes
    for name in drawer.names():
        with Large(size) as large:
            drawer.make(name)
        assert large.total <= MOST * size, f"{name}: {large.total / size:.1f} times the input"


def test_a_draw_is_let_go_when_the_next_one_is_made() -> None:
    """The captured sample is held for the whole judgement; a second draw beside it would be a third of the memory too much."""
    variant, sample = variant_of("torch.nn.functional.relu", {"input": torch.randn(16, 16)})
    file = parse(PLAN.replace("softmax", "relu"), "rows.cu")
    program = file.bind(variant.call, H200, file.points(variant.call, H200, 1)[0])
    target = PythonTarget(rows=lambda source, out, block: out.copy_(source.clamp(min=0)))
    trial = Trial(variant.call, target, seed=1)
    held = []
    for values in (sample, {"input": torch.randn(16, 16)}, {"input": torch.randn(16, 16)}):
        trial.run("a draw", program, target.build(program), values, eager(variant.call, values))
        held.append(weakref.ref(values["input"]))
        del values
    gc.collect()
    assert [item() is None for item in held] == [False, True, True]
