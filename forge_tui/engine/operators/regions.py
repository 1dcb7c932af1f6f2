"""Regions: module classes, functions of a model's own, and parts of a forward as operators that one kernel may replace.

- A module class (norms, gated activations: leaves that take tensors): `package.module.Class`. Arguments are forward's tensors, the first
  called `input`, then the module's own parameters, buffers and plain attributes.
- A function of the model's own (rotary embedding): `package.module.function`. Arguments are its parameters, defaults included.
- Operations in a row (`silu(gate) * up`, `relu(norm(conv(x)))`, `norm(a + b)`): `first+second`. Arguments are those of the first, then
  those of the second without its `input` (after a convolution, a norm's weight and bias are `norm_weight` and `norm_bias`);
  `returns_sum` says of a sum that it is a result too.

The reference is the class's own forward, run on an object that has these attributes and the class's methods; the function itself;
the one operation after the other. What needs anything else cannot be run alone, and is not offered.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from forge_tui.engine.package.runtime.callees import PLAIN, USER_FILE, kind_of, like_its_class, path_of, resolve, source_of, state_names
from forge_tui.engine.package.runtime.rows import RETURNS_SUM, in_a_row  # noqa: F401  (RETURNS_SUM is part of an operator's arguments)

MODULES = re.compile(r"norm|glu|and_?mul|apply_?rot|apply_?rope", re.IGNORECASE)
"""Names of module classes that are offered: norms and gates written out as several small operators."""
FUNCTIONS = re.compile(r"rotary|rope", re.IGNORECASE)
"""Names of functions of the model's own that are offered."""


def is_region(operator: str) -> bool:
    return "+" in operator or not operator.startswith("torch.")


def findable(item: Any) -> bool:
    """Whether another process can import a class or function by its path, and its source can be had."""
    path = path_of(item)
    module = sys.modules.get(item.__module__)
    return (item.__module__.partition(".")[0] not in ("torch", "__main__", "builtins") and "<locals>" not in path
            and getattr(module, item.__qualname__, None) is item and bool(source_of(item)))


def region_name(module: nn.Module) -> str | None:
    """The operator that a module's forward is, or None: modules of torch's are the functions they call, modules with
    children are more than a leaf, and classes that nothing but this process knows cannot be found again."""
    kind = kind_of(module)
    if not MODULES.search(kind.__name__) or next(module.children(), None) is not None or not findable(kind):
        return None
    return path_of(kind)


def region_arguments(module: nn.Module, args: tuple[Any, ...]) -> dict[str, Any] | None:
    """Arguments of one call by name; None where the call is not of tensors alone, or the module is in training or
    has something of its own that cannot be compared."""
    if not args or module.training or not all(isinstance(item, torch.Tensor) and item.dtype != torch.float64 for item in args):
        return None
    names = forward_names(kind_of(module))
    if names is None or len(args) > len(names):
        return None
    given = dict(zip(["input", *names[1:]], args, strict=False))
    state = {name: getattr(module, name) for name in state_names(module)}
    if not like_its_class(module, frozenset(state)):
        return None
    return {**given, **state} if given.keys().isdisjoint(state) else None


@functools.cache
def forward_names(kind: type) -> list[str] | None:
    """What forward's positional parameters are called; None where it takes any number."""
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]  # type: ignore[attr-defined]
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(item.kind is inspect.Parameter.VAR_POSITIONAL for item in parameters):
        return None
    return [item.name for item in parameters if item.kind in plain]


def bind_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a call of a model's own function by parameter, defaults included; None where one is neither a tensor nor plain."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:  # the function itself says what is wrong
        return None
    bound.apply_defaults()
    kinds = {item.kind for item in bound.signature.parameters.values()}
    fits = all(isinstance(value, torch.Tensor) or type(value) in PLAIN for value in bound.arguments.values())
    any_number = kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return dict(bound.arguments) if fits and not any_number else None


def imported(operator: str) -> Any:
    """The class or function of a region's path; None where this environment has none."""
    module, _, name = operator.rpartition(".")
    try:
        found = sys.modules[module] if module.startswith(USER_FILE) and module in sys.modules else importlib.import_module(module)
    except ImportError:
        return None
    return getattr(found, name, None)


def region_function(operator: str) -> Callable[..., Any] | None:
    """The region as a function of its arguments by name; None where this environment does not have it.

    It raises whatever the model's own code does where something is missing.
    """
    if "+" in operator:
        return _in_a_row(operator)
    item = imported(operator)
    if isinstance(item, type) and issubclass(item, nn.Module):
        return _forward_of(item)
    if not callable(item):
        return None

    def function(**arguments: Any) -> Any:
        if _wide(*arguments.values()):
            with _InFloat64():
                return item(**arguments)
        return item(**arguments)

    return function


@functools.cache
def _forward_of(kind: type) -> Callable[..., Any]:
    methods = {name: value for base in reversed(kind.__mro__) if base not in (nn.Module, object)
               for name, value in vars(base).items() if callable(value) or isinstance(value, (staticmethod, classmethod))}
    methods.pop("__init__", None)
    alone = type(kind.__name__, (), methods)
    names = ["input", *(forward_names(kind) or [])[1:]]

    def forward(**arguments: Any) -> Any:
        module = alone()
        given = [arguments.pop(name) for name in names if name in arguments]
        for name, value in arguments.items():
            setattr(module, name, value)
        module.training = False
        if _wide(given[0]):
            with _InFloat64():
                return module.forward(*given)
        return module.forward(*given)

    return forward


def _in_a_row(operator: str) -> Callable[..., Any] | None:
    """`first+second` as one function. Raises what they raise."""
    steps = {path: _step(path) for path in operator.split("+")}
    if None in steps.values():
        return None
    return lambda **arguments: in_a_row(operator, arguments, lambda path, value, rest: steps[path](value, **rest))  # type: ignore[misc]


def _step(path: str) -> Callable[..., Any] | None:
    if path.startswith("torch."):
        return resolve(path)
    region = region_function(path)
    return None if region is None else lambda value, **rest: region(input=value, **rest)


def _wide(*values: Any) -> bool:
    wide = any([isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in values])
    return wide and not torch.compiler.is_compiling()


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
