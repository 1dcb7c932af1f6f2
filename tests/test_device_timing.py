"""What of a GPU's timing needs no GPU: the baselines call torch's function as the model does."""

from __future__ import annotations

import pytest
import torch

from forge_tui.engine.judge.device_timing import COPIES, COPIES_BYTES, _copies
from forge_tui.engine.operators import describe, lookup, materialize, named_tensors
from forge_tui.specs import Call, TensorSpec


@pytest.mark.parametrize(("operator", "arguments"), [
    ("torch.nn.functional.softmax", {"input": torch.randn(3, 5), "dim": -1, "dtype": torch.float64}),
    ("torch.nn.functional.layer_norm", {"input": torch.randn(3, 8), "normalized_shape": (8,), "weight": torch.randn(8), "bias": None, "eps": 1e-5}),
    ("torch.cat", {"tensors": (torch.randn(2, 3), torch.randn(4, 3)), "dim": 0}),
    ("torch.add", {"input": torch.randn(4), "other": 2, "alpha": 3}),
])
def test_baselines_call_the_operator_itself(operator: str, arguments: dict):
    expected = lookup(operator).call(arguments)
    call = describe(operator, arguments, expected)
    positional, keywords = lookup(operator).split(materialize(call, dict(named_tensors(arguments))))
    assert torch.equal(lookup(operator).function(*positional, **keywords), expected[0])


def test_as_many_sets_of_tensors_as_memory_allows():
    def call(elements: int) -> Call:
        spec = TensorSpec("float32", (elements,), (1,))
        return Call("torch.relu", {"input": spec}, (spec,))

    assert _copies(call(1000)) == COPIES
    assert _copies(call(COPIES_BYTES // 16)) == 2             # input and output: half of it
    assert _copies(call(COPIES_BYTES)) == 1
