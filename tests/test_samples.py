"""Snapshots: bits, strides and alignment; the byte cap; statistics."""

from __future__ import annotations

import pytest
import torch

from forge_tui.engine.operators import tensor_spec
from forge_tui.engine.samples import SampleKeeper, copy_layout
from forge_tui.engine.statistics import CHUNKS, statistics

_BASE = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))

LAYOUTS = {
    "contiguous": _BASE, "transposed": _BASE.transpose(0, 2), "sliced": _BASE[:, 1:5, 3:], "odd address": _BASE.flatten()[1:9],
    "expanded": _BASE[:, :1].expand(4, 6, 8), "scalar": torch.tensor(3.0), "empty": torch.empty(0, 4),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "bool": _BASE > 0,
    "half": _BASE.half(), "bfloat16": _BASE.bfloat16()[:, :, 1:], "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
    "complex": torch.view_as_complex(_BASE.reshape(4, 6, 4, 2)), "int64": torch.arange(5)[2:], "float8": _BASE.to(torch.float8_e4m3fn),
}


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()) if tensor.ndim else bytes(
        tensor.reshape(1).view(torch.uint8).tolist())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_copy_has_the_same_bits_strides_and_alignment(name: str) -> None:
    source = LAYOUTS[name]
    copy = copy_layout(source)
    assert tensor_spec(copy) == tensor_spec(source) and bits(copy) == bits(source)
    if source.numel():
        assert copy.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()


def test_only_new_samples_are_kept() -> None:
    keeper = SampleKeeper(most=2, byte_cap=1 << 20)
    one, two = {"input": torch.tensor([1.0, float("nan")])}, {"input": torch.tensor([2.0, 0.0])}
    offered = [keeper.offer("a", one, {}), keeper.offer("a", one, {}), keeper.offer("a", one, {"weight": "w"}),
               keeper.offer("a", two, {})]
    assert offered == [True, False, True, False], "the same call again, the same on another weight, one too many"
    assert keeper.used == 16


def test_the_first_sample_of_every_variant_goes_before_second_ones() -> None:
    keeper = SampleKeeper(most=2, byte_cap=1000)
    for value in (0.0, 1.0):
        for key, size in (("big", 100), ("small", 20)):
            keeper.offer(key, {"input": torch.full((size,), value)}, {})
    assert [len(keeper.kept[key]) for key in ("big", "small")] == [2, 2] and keeper.used == 960
    assert keeper.offer("late", {"input": torch.zeros(60)}, {})
    assert [len(keeper.kept[key]) for key in ("big", "small", "late")] == [1, 2, 1], "the largest spare one made room"
    assert keeper.offer("later", {"input": torch.zeros(90)}, {}) and len(keeper.kept["big"]) == 0, "a larger first one did"
    assert len(keeper.kept["small"]) == 1
    assert not keeper.offer("huge", {"input": torch.zeros(300)}, {}) and keeper.used <= 1000


def test_statistics_of_values() -> None:
    found = statistics([torch.tensor([[0.0, 1.0, 2.0], [float("nan"), float("-inf"), 5.0]])])
    assert (found.minimum, found.maximum, found.mean) == (0.0, 5.0, 2.0)
    assert (found.zeros, found.nonfinite) == (pytest.approx(1 / 6), pytest.approx(1 / 3))
    assert found.std == pytest.approx(3.5**0.5) and found.integral and not found.sorted_last


def test_statistics_tell_masks_from_values() -> None:
    scores = torch.tensor([0.5, -3.3895e38, 1.5, -3.3895e38]).bfloat16()
    found = statistics([scores])
    assert found.lowest == 0.5 and found.mean == 1.0 and found.std == 0.5 and found.minimum < -3e38


def test_statistics_of_sorted_and_empty_and_all_nan() -> None:
    assert statistics([torch.tensor([[1, 2], [0, 0]])]).sorted_last
    assert not statistics([torch.tensor([[1, 2], [2, 1]])]).sorted_last
    stepped = torch.arange(2 * CHUNKS["cpu"])
    stepped[CHUNKS["cpu"]:] -= CHUNKS["cpu"]
    assert not statistics([stepped]).sorted_last, "the one step down lies between two pieces"
    assert statistics([torch.empty(0)]).nonfinite == 0.0
    assert statistics([torch.full((3,), float("nan"))]).nonfinite == 1.0


def test_statistics_in_pieces_are_those_of_the_whole() -> None:
    large = torch.arange(3 * (CHUNKS["cpu"] // 2), dtype=torch.float32).reshape(3, -1)
    found = statistics([large, large.t()])
    assert (found.minimum, found.maximum) == (0.0, large.numel() - 1)
    assert found.mean == pytest.approx((large.numel() - 1) / 2)
    assert found.std == pytest.approx(float(large.double().std(correction=0)), rel=1e-9)
    flat = statistics([large.flatten()])
    assert flat.mean == pytest.approx(found.mean) and flat.sorted_last


@pytest.mark.gpu
def test_statistics_of_a_gpus_tensor_are_those_of_the_cpu() -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(3, CHUNKS["cuda"] // 2 + 5, generator=generator).half()
    values[1, 7], values[2, 9] = float("inf"), float("nan")
    here, there = statistics([values]), statistics([values.cuda()])
    assert (there.minimum, there.maximum, there.zeros, there.nonfinite) == (here.minimum, here.maximum, here.zeros, here.nonfinite)
    assert there.mean == pytest.approx(here.mean, abs=1e-12) and there.std == pytest.approx(here.std, rel=1e-12)


def test_statistics_of_a_broadcast_look_once() -> None:
    assert statistics([torch.tensor([[1.0], [3.0]]).expand(2, 1 << 40)]).mean == 2.0
