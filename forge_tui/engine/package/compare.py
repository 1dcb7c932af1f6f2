"""How far two outputs of a model are apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a model's output, in order: mappings, sequences and dataclasses are walked, however deep, each once."""
    waiting, seen = [output], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield value
            continue
        if isinstance(value, dict):
            inner = list(value.values())
        elif isinstance(value, (list, tuple)):
            inner = list(value)
        elif is_dataclass(value) and not isinstance(value, type):
            inner = [getattr(value, item.name, None) for item in fields(value)]
        else:
            continue
        if id(value) not in seen:  # a list may hold itself
            seen.add(id(value))
            waiting += reversed(inner)


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
