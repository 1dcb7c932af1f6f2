"""Guard bands to the byte: what lies beside a tensor is seen whatever its alignment and length."""

from __future__ import annotations

import pytest
import torch

from forge_tui.engine.judge.memory import GUARD, Arena, Guarded, Patterns
from forge_tui.specs import Call, TensorSpec


@pytest.mark.parametrize("align", [1, 2, 5, 8, 11, 256])
@pytest.mark.parametrize("length", [1, 3, 8, 13, 40])
def test_single_bytes(align: int, length: int) -> None:
    buffer = Guarded("out", TensorSpec("uint8", (length,), (1,), align), "cpu")
    assert buffer.dense and buffer.begin >= GUARD
    buffer.poison(b"abcdefgh")
    buffer.raw[buffer.begin : buffer.end] = 7
    assert not bool(buffer.stray()) and buffer.overrun() == ""
    for at in (0, buffer.begin - 9, buffer.begin - 1, buffer.end, buffer.end + 1, buffer.end + 8, len(buffer.raw) - 1):
        kept = int(buffer.raw[at])
        buffer.raw[at] = kept ^ 0x80
        assert bool(buffer.stray()) and buffer.overrun(), at
        buffer.raw[at] = kept
    assert not bool(buffer.stray())


def test_overlapping_and_gapped_layouts() -> None:
    assert Guarded("x", TensorSpec("float32", (3, 4), (0, 1), 16), "cpu").dense
    assert Guarded("x", TensorSpec("float32", (4, 3), (1, 4), 16), "cpu").dense
    gapped = Guarded("x", TensorSpec("float32", (3, 4), (6, 1), 16), "cpu")
    gapped.poison(b"abcdefgh")
    gapped.tensor.fill_(1.0)
    assert not gapped.dense and not bool(gapped.stray())
    gapped.raw[gapped.begin + 4 * 4] ^= 1
    assert bool(gapped.stray()) and "gap" in gapped.overrun()


@pytest.mark.parametrize(("numel", "align", "step"), [(100, 64, 512), (1 << 19, 64, 2 << 20), (100, 4, 8), (1 << 19, 16, 32)])
def test_tensors_lie_as_an_allocator_puts_them_or_exactly_as_promised(numel: int, align: int, step: int) -> None:
    spec = TensorSpec("float32", (numel,), (1,), align)
    as_allocated, exact = Guarded("x", spec, "cpu", True), Guarded("x", spec, "cpu")
    assert as_allocated.tensor.data_ptr() % step == (0 if align == 64 else align)
    assert exact.tensor.data_ptr() % (2 * align) == align
    for buffer in (as_allocated, exact):
        buffer.poison(b"abcdefgh")
        buffer.tensor.fill_(1.0)
        assert not bool(buffer.stray())
        buffer.raw[buffer.end] ^= 1
        assert bool(buffer.stray())


@pytest.mark.parametrize("outputs_first", [True, False])
def test_outputs_lie_before_inputs_or_behind_them(outputs_first: bool) -> None:
    specs = {"input": TensorSpec("float32", (1001,), (1,), 4), "other": TensorSpec("float16", (7,), (1,), 2)}
    arena = Arena(Call("torch.add", dict(specs), (TensorSpec("float32", (1001,), (1,), 64),), {}), "cpu", outputs_first=outputs_first)
    assert arena.outputs_first == outputs_first
    out = arena.outputs["out"].tensor.data_ptr()
    assert all((out < buffer.tensor.data_ptr()) == outputs_first for buffer in arena.inputs.values())
    assert out % 256 == 0 and all(buffer.tensor.data_ptr() % (2 * specs[name].align) == specs[name].align
                                  for name, buffer in arena.inputs.items())
    values = {"input": torch.randn(1001), "other": torch.ones(7, dtype=torch.float16)}
    arena.begin(values, Patterns(torch.Generator().manual_seed(1)))
    arena.outputs["out"].tensor.fill_(1.0)
    assert arena.problem(values) == ""
    arena.outputs["out"].raw[-1] ^= 1
    assert "past the last element of out" in arena.problem(values)


def test_one_look_finds_a_changed_input_first() -> None:
    spec = TensorSpec("float32", (10,), (1,), 4)
    arena = Arena(Call("torch.relu", {"input": spec}, (spec,), {}), "cpu")
    values = {"input": torch.randn(10)}
    patterns = Patterns(torch.Generator().manual_seed(1))
    arena.begin(values, patterns)
    assert arena.problem(values) == ""
    arena.inputs["input"].tensor[3] = float("nan")
    arena.outputs["out"].raw[0] ^= 1
    assert "input was changed" in arena.problem(values)
    arena.begin(values, patterns)
    arena.outputs["out"].raw[0] ^= 1
    assert "before the first element of out" in arena.problem(values)
