"""A function mode for what no namespace holds: methods and operators of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

Substitutes = dict[Any, Callable[..., Any]]
"""Function to what stands in its place."""


class Mode(TorchFunctionMode):
    """Sees every torch call of the model while its forward runs."""

    def __init__(self, substitutes: Substitutes) -> None:
        super().__init__()
        self._substitutes = substitutes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._substitutes.get(func, func)(*args, **(kwargs or {}))


def foreign_mode() -> bool:
    """Whether a function mode is active that is none of ours, and has to see the call."""
    return torch._C._is_torch_function_mode_enabled() and any(
        type(mode) is not Mode for mode in _get_current_function_mode_stack())


def under_mode(mode: Mode, call: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # tensor methods keep their originals there: the compiler fuses them
            return call(self, *args, **kwargs)
        with mode:
            return call(self, *args, **kwargs)

    return __call__
