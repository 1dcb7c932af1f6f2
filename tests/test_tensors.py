"""Tensors on disk: every dtype, stride and alignment comes back, nothing is written through, damage is named."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from forge_tui.errors import ProjectError
from forge_tui.store.tensors import MAGIC, load_tensors, save_tensors

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool,
          torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64,
          torch.complex64, torch.complex128]


def filled(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Every byte different from its neighbours (bools stay 0 or 1)."""
    data = torch.arange(count * dtype.itemsize, dtype=torch.int64)
    data = data % 2 if dtype is torch.bool else data * 37 % 251
    return data.to(torch.uint8).view(dtype)


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit, with dtype, shape, stride, and address modulo 256."""
    if (got.dtype, got.shape, got.stride()) != (expected.dtype, expected.shape, expected.stride()):
        return False
    if expected.numel() and got.data_ptr() % 256 != expected.data_ptr() % 256:
        return False
    return torch.equal(got.contiguous().view(-1).view(torch.uint8), expected.contiguous().view(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_layout_and_alignment(tmp_path: Path, dtype: torch.dtype) -> None:
    base = filled(dtype, 4096)
    tensors = {
        "plain": base[:60].view(3, 4, 5), "transposed": base[:60].view(3, 20).t(), "offset": base[16 // dtype.itemsize:][:7],
        "one off": base[1:8], "expanded": base[5:8].view(3, 1).expand(3, 1000), "scalar": base[9],
        "overlapping": base.as_strided((5, 4), (1, 2), 3), "gaps": base[::7], "empty": base[:0].view(0, 5),
        "last": base[-1:], "channels last": base[:96].view(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_tensors(tmp_path / "t", tensors, {"operator": "softmax", "dims": [1, 2]})
        loaded, meta = load_tensors(tmp_path / "t")
    assert meta == {"operator": "softmax", "dims": [1, 2]}
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        assert same(loaded[name], tensor), name


def test_repeats_are_not_stored(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"mask": torch.ones(1).expand(1 << 20)})
    assert (tmp_path / "t").stat().st_size < 1024
    assert load_tensors(tmp_path / "t")[0]["mask"].shape == (1 << 20,)


def test_writing_to_a_loaded_tensor_stays_out_of_the_file(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"a": torch.arange(1000.0)})
    load_tensors(tmp_path / "t")[0]["a"].zero_()
    assert load_tensors(tmp_path / "t")[0]["a"][999] == 999


def test_parameters_and_lazily_conjugated_tensors_are_plain_memory(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    lazy = torch.view_as_complex(torch.arange(8.0).view(4, 2)).conj()
    save_tensors(tmp_path / "t", {"weight": weight, "lazy": lazy, "negative": lazy.imag})
    loaded = load_tensors(tmp_path / "t")[0]
    assert not loaded["weight"].requires_grad and torch.equal(loaded["weight"], weight.detach())
    assert torch.equal(loaded["lazy"], lazy) and torch.equal(loaded["negative"], lazy.imag)


def test_tensors_without_memory_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    for tensor in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(ValueError, match="^odd: "):
            save_tensors(tmp_path / "t", {"odd": tensor})
    assert list(tmp_path.iterdir()) == []


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    save_tensors(path, {"a": torch.arange(1000.0)})
    whole = path.read_bytes()
    for data, said in ((whole[:-1], "cut short"), (whole[:20], "header"), (whole[:4], "not a file of tensors"),
                       (b"", "cannot be read"), (b"x" * 999, "not a file of tensors"),
                       (MAGIC + b"\x02" + whole[9:], "format 2")):
        path.write_bytes(data)
        with pytest.raises(ProjectError, match=said) as caught:
            load_tensors(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ProjectError, match="no such file|No such file"):
        load_tensors(tmp_path / "none")


def test_empty_tensors_alone_and_at_the_end(tmp_path: Path) -> None:
    for tensors in ({"a": torch.zeros(0, 5)}, {"a": torch.ones(3), "b": torch.zeros(2, 0, dtype=torch.bfloat16)}):
        save_tensors(tmp_path / "t", tensors)
        loaded, _ = load_tensors(tmp_path / "t")
        assert {name: (item.shape, item.dtype, item.stride()) for name, item in loaded.items()} == {
            name: (item.shape, item.dtype, item.stride()) for name, item in tensors.items()}
