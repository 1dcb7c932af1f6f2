"""Inputs of the captured shapes that capture never saw, from an unpredictable, recorded seed."""

from __future__ import annotations

from typing import Any

import torch

from forge_tui.engine.inputs import ModelInput

TOKENS = ("input_ids", "decoder_input_ids")
"""Integer inputs that are drawn anew; others (masks, positions) keep their meaning only as they are."""


def held_out(item: ModelInput, seed: int) -> ModelInput:
    """The same shapes, strides and kinds of values: floating-point tensors and token ids with their elements shuffled."""
    generator = torch.Generator().manual_seed(seed)
    return ModelInput(tuple(_shuffled("", value, generator) for value in item.args),
                      {name: _shuffled(name, value, generator) for name, value in item.kwargs.items()},
                      label=f"{item.label or 'inputs'}, shuffled by seed {seed}")


def _shuffled(name: str, value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, torch.Tensor):
        if not (value.is_floating_point() or name in TOKENS) or not value.numel():
            return value
        order = torch.randperm(value.numel(), generator=generator).to(value.device)
        fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return fresh.copy_(value.reshape(-1)[order].reshape(value.shape))
    if isinstance(value, dict):
        return {key: _shuffled(key, item, generator) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_shuffled("", item, generator) for item in value)
    return value


def tokens_of(item: ModelInput) -> torch.Tensor | None:
    """The token ids of a language model's input, [batch, positions]; None where it has none."""
    found = item.kwargs.get("input_ids")
    if found is None and item.args and isinstance(item.args[0], torch.Tensor) and item.args[0].dtype == torch.int64:
        found = item.args[0]
    return found if isinstance(found, torch.Tensor) and found.dim() == 2 else None
