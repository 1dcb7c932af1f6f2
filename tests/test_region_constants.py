"""Constants that a region's code reads, and does not hold: a kernel was judged with those of the capture."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hostkit import needs_nvrtc
from region_kit import package_of

from forge_tui.engine.package.runtime.callees import described, source_of

TEXT = """
import functools
import torch
SCALE, SIZES, OTHER = 1.0, (1, 2), 5

def scaled(x, by=SCALE):
    return x * by

def made(gain):
    def inner(x):
        return x * gain
    return inner

class Norm(torch.nn.Module):
    GAIN = 1.0

    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))
        self.eps = 1e-6

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)) * SCALE

class Other(torch.nn.Module):
    GAIN = 1.0

    def forward(self, x):
        return scaled(x) * self.GAIN
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = f"constants_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def test_a_digest_goes_by_the_constants_that_are_read(code: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(item: Any, owner: Any, name: str, value: Any) -> bool:
        before = source_of(item)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            found = source_of(item) != before
        assert source_of(item) == before, "back again"
        return found

    assert changed(code.Norm, code, "SCALE", 3.0) and changed(code.Norm, code, "SCALE", 1), "1 is another constant than 1.0"
    assert not changed(code.Norm, code, "OTHER", 6) and not changed(code.Norm, code, "SIZES", (3,))
    assert changed(code.Norm, code.Norm, "GAIN", 2.0), "an attribute of the class"
    assert changed(code.Other, code.scaled, "__defaults__", (3.0,)), "a default of what it calls"
    assert source_of(code.made(1.0)) != source_of(code.made(2.0)) and source_of(code.made(1.0)) == source_of(code.made(1.0))


def test_plain_values_of_other_types_are_described_apart() -> None:
    assert described((1, 1)) == "(1, 1)" and described((True, 1)) is None and described((1.0, 1)) is None


@needs_nvrtc
def test_a_kernel_is_for_the_constants_of_the_capture(code: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    model, plain = (torch.nn.Sequential(code.Norm(16)).eval().requires_grad_(False) for _ in range(2))
    package = package_of(model, tmp_path / "project", x)

    def ran() -> int:
        return sum(kernel["calls"] for kernel in package.report()["kernels"] if "Norm" in kernel["operator"])

    for scale, runs in ((1.0, 1), (3.0, 0), (1.0, 1)):
        monkeypatch.setattr(code, "SCALE", scale)
        before = ran()
        with package.optimized(model):
            assert torch.allclose(model(x), plain(x), rtol=1e-5)
        assert ran() - before == runs, scale
