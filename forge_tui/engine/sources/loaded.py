"""A model that was loaded, with what capture and inputs need to know of where it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@dataclass
class LoadedModel:
    """An unmodified model in eval mode on the CPU."""

    model: nn.Module
    description: str
    """One line: source, class, parameters, dtype, and `random weights` where they are."""
    sample_inputs: Callable[[], Any] | None = None
    """The source's own inputs (`sample_inputs`, `get_inputs`): a tuple or list of arguments, a dict of keywords, or one
    tensor."""
    folder: str | None = None
    """What tokenizers and processors are loaded from: a local folder, or a hub name with what the hub cache holds."""
    own_file: Path | None = None
    """The user's Python file, for messages about their own lines."""
    weight_files: tuple[Path, ...] = ()
    """Safetensors files the weights were read from: capture refers to them instead of copying."""
    explicit_dtype: torch.dtype | None = None
    """Asked for by the user: floating-point inputs follow it."""
    notes: list[str] = field(default_factory=list)
    """What a person should know: random weights, unused tensors of a checkpoint."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the first floating-point parameter; float32 without one."""
        return next((item.dtype for item in self.model.parameters() if item.is_floating_point()), torch.float32)


def describe_model(source: str, model: nn.Module, note: str = "") -> str:
    known = [item for item in model.parameters() if not is_lazy(item)]
    count = sum(item.numel() for item in known)
    dtype = next((str(item.dtype).removeprefix("torch.") for item in known if item.is_floating_point()), "")
    parts = [f"{source}: {type(model).__name__}", f"{_count(count)} parameters", dtype, note]
    return ", ".join(part for part in parts if part)


def _count(number: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
