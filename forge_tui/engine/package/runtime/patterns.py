"""What one stored argument must be in a real call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_FORMATS = {str(item): item for item in (torch.channels_last, torch.channels_last_3d, torch.contiguous_format,
                                         torch.preserve_format)}


class Tensor:
    """Stands for a tensor in a pattern."""


class Anything:
    """Stands for an argument that is not compared: the module of a region."""


class Never:
    """Stands for an argument that cannot be stored: no real one equals it."""


def pattern_of(value: Any) -> Any:
    """A stored argument as real ones are compared with it: `Tensor`, a tuple for any sequence, the value itself."""
    if not isinstance(value, dict):
        return _FORMATS.get(value, value) if isinstance(value, str) else value
    if value["type"] == "tensor":
        return Tensor
    if value["type"] == "anything":
        return Anything
    if value["type"] == "dtype":
        return getattr(torch, value["name"], Never)  # one that this torch has not
    if value["type"] == "items":
        return tuple(pattern_of(item) for item in value["items"])
    return Never


def flatten(values: Any) -> Iterator[Any]:
    """Sequences opened, depth first; each leaves its length behind, so that `[[a], b]` and `[a, [b]]` differ."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield len(value)
            yield from flatten(value)
        else:
            yield value
