"""How far two outputs of a model are apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a model's output, in order: mappings, sequences and dataclass-like outputs are walked."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_of(value)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over norm of `expected`, in float64; inf where shape, dtype or non-finite pattern differ."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if not expected.is_floating_point():
        return 0.0 if torch.equal(got, expected) else float("inf")
    same = (got == expected) | (got.isnan() & expected.isnan())
    finite = got.isfinite() & expected.isfinite()
    if not bool((same | finite).all()):
        return float("inf")
    difference = torch.where(finite, got.double() - expected.double(), 0.0).norm()
    norm = torch.where(finite, expected.double(), 0.0).norm()
    if norm == 0:
        return 0.0 if difference == 0 else float("inf")
    return float(difference / norm)
