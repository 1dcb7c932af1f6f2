"""Module classes as operators: a module's forward is a region that one kernel may replace.

A region's arguments are forward's one tensor, called `input`, then the module's own parameters and buffers, then its plain
attributes (`eps`, `with_scale`), all by their names. Its reference is the class's own forward, run on an object that has these
attributes and the class's methods; a module that needs anything else cannot be run alone, and is not offered.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

OFFERED = re.compile(r"RMS_?Norm$", re.IGNORECASE)
"""Names of classes that are offered: norms written out as several small operators."""
PLAIN = (bool, int, float, str, type(None))


def region_name(module: nn.Module) -> str | None:
    """The operator that a module's forward is, or None: modules of torch's are the functions they call, modules with
    children are more than a leaf, and classes of a user's file cannot be found again in another process."""
    kind = type(module)
    known = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
    if (not known or kind.__module__.partition(".")[0] in ("torch", "__main__") or kind.__module__.startswith("forge_user_")
            or not OFFERED.search(kind.__name__) or next(module.children(), None) is not None):
        return None
    return f"{kind.__module__}.{kind.__qualname__}"


def is_region(operator: str) -> bool:
    return not operator.startswith("torch.") and bool(OFFERED.search(operator))


def region_arguments(module: nn.Module, args: tuple[Any, ...]) -> dict[str, Any] | None:
    """Arguments of one call by name; None where the call is not one tensor, or the module is in training."""
    if len(args) != 1 or not isinstance(args[0], torch.Tensor) or module.training or args[0].dtype == torch.float64:
        return None
    state = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    plain = {name: value for name, value in sorted(vars(module).items())
             if type(value) in PLAIN and not name.startswith("_") and name != "training"}
    arguments = {"input": args[0], **state, **plain}
    return arguments if len(arguments) == 1 + len(state) + len(plain) else None


def region_class(operator: str) -> type | None:
    """The class of a region's name, imported; None where this environment has none."""
    module, _, name = operator.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


@functools.cache
def region_function(kind: type) -> Callable[..., torch.Tensor]:
    """The class's forward as a function of its arguments by name. Raises whatever forward does where something is missing."""
    methods = {name: value for base in reversed(kind.__mro__) if base not in (nn.Module, object)
               for name, value in vars(base).items() if callable(value) or isinstance(value, (staticmethod, classmethod))}
    methods.pop("__init__", None)
    alone = type(kind.__name__, (), methods)

    def forward(input: torch.Tensor, **attributes: Any) -> torch.Tensor:
        module = alone()
        for name, value in attributes.items():
            setattr(module, name, value)
        module.training = False
        if input.dtype == torch.float64 and not torch.compiler.is_compiling():
            with _InFloat64():
                return module.forward(input)
        return module.forward(input)

    return forward


class _InFloat64(TorchFunctionMode):
    """The reference in float64: casts to float32 that the module makes for accuracy are casts to float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            return args[0].double()
        if func is torch.Tensor.to:
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in kwargs.items()}
        return func(*args, **kwargs)
