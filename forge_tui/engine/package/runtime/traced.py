"""Matching while torch.compile traces: plain loops and comparisons only, and nothing of the real tensors but what is guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .patterns import Tensor
from .private import DUAL_LEVELS, UNKNOWABLE, interpreters

if TYPE_CHECKING:
    from .forms import Form


def transformed() -> bool:
    """Whether what is traced is inside a functorch transform, or nobody can tell."""
    return bool(UNKNOWABLE) or interpreters() is not None


# as `torch.compiler.assume_constant_result` does, which takes seconds to import: asked while tracing. torch guards what it
# compiled against other transforms.
transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def traced_tensors(form: Form, args: Any, kwargs: Any, device_type: str) -> Any:
    """The operator's arguments in order, or None."""
    if torch.is_autocast_enabled(device_type) or transformed() or DUAL_LEVELS["_current_level"] >= 0:
        return None
    values = _traced_values(form, args, kwargs)
    flat: list[Any] = []
    if values is None or not _traced_flat(form.patterns, values, flat):
        return None
    found = []
    for place, pattern in zip(form.pattern_order, form.entry.inputs, strict=True):
        tensor = flat[place]
        if (tuple(tensor.shape) != pattern.shape or tensor.dtype != pattern.dtype or tensor.stride() != pattern.stride
                or tensor.device.type != device_type or (torch.is_grad_enabled() and tensor.requires_grad)):
            return None
        found.append(tensor)
    return found


def _traced_values(form: Form, args: Any, kwargs: Any) -> list[Any] | None:
    """The call's values in the order of the form's patterns."""
    if form.parameters is None:
        exact = len(args) == len(form.positional) and list(kwargs) == list(form.named)
        return [*args, *kwargs.values()] if exact else None
    values = list(args)
    if len(args) > len(form.parameters):
        return None
    for name in form.parameters[len(args):]:
        if name in kwargs:
            values.append(kwargs[name])
        elif name in form.defaults:
            values.append(form.defaults[name])
        else:
            return None
    return values if len(args) + len(kwargs) <= len(values) and all([name in form.parameters for name in kwargs]) else None


def _traced_flat(patterns: Any, values: Any, flat: list[Any]) -> bool:
    """Collect the tensors; false where anything else differs."""
    for pattern, value in zip(patterns, values, strict=True):
        if isinstance(pattern, type):  # before `is`: torch 2.6 cannot compare a number that it made dynamic with a class
            if pattern is Tensor:
                if not isinstance(value, torch.Tensor):
                    return False
                flat.append(value)
        elif isinstance(pattern, tuple):
            if not isinstance(value, (list, tuple)) or len(value) != len(pattern) or not _traced_flat(pattern, value, flat):
                return False
        elif isinstance(value, torch.Tensor) or type(value) is not type(pattern) or value != pattern:
            return False
    return True
