"""A function mode for what no namespace holds: methods and operators of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .private import function_modes, function_modes_on

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
    return function_modes_on() and any(type(mode) is not Mode for mode in function_modes())


def under_mode(mode: Mode, forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` with the mode active; inside torch.compile tensor methods keep their originals, which the compiler fuses."""

    @functools.wraps(forward)
    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return forward(self, *args, **kwargs)
        with mode:
            return forward(self, *args, **kwargs)

    return under
