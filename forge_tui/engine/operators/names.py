"""One canonical name for every spelling of an operator: functions, tensor methods, Python operators, in-place forms."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

DUNDERS = {
    "add": "add", "radd": "add", "iadd": "add_", "sub": "sub", "rsub": "rsub", "isub": "sub_",
    "mul": "mul", "rmul": "mul", "imul": "mul_", "matmul": "matmul", "rmatmul": "matmul", "imatmul": "matmul_",
    "truediv": "div", "div": "div", "itruediv": "div_", "idiv": "div_", "rdiv": "rdiv", "rtruediv": "rdiv",
    "floordiv": "floor_divide", "ifloordiv": "floor_divide_", "rfloordiv": "rfloordiv",
    "mod": "remainder", "imod": "remainder_", "rmod": "rmod", "pow": "pow", "rpow": "rpow", "ipow": "pow_",
    "and": "bitwise_and", "rand": "bitwise_and", "iand": "bitwise_and_", "or": "bitwise_or", "ror": "bitwise_or",
    "ior": "bitwise_or_", "xor": "bitwise_xor", "rxor": "bitwise_xor", "ixor": "bitwise_xor_",
    "invert": "bitwise_not", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "ilshift": "bitwise_left_shift_", "irshift": "bitwise_right_shift_",
    "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne",
    "neg": "neg", "pos": "positive", "abs": "abs",
}
"""Python's operator methods without their underscores, and the torch operator that each is."""

REFLECTED = {"rdiv": "torch.Tensor.__rdiv__", "rfloordiv": "torch.Tensor.__rfloordiv__", "rmod": "torch.Tensor.__rmod__",
             "rpow": "torch.pow"}
"""Reflected operators whose torch function would take a Python number where it demands a tensor: they stay themselves,
with `input` the tensor and `other` the number (`other / input`). `torch.pow` takes a number as `input`."""

SYNONYMS = {
    "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "concat": "cat", "concatenate": "cat",
    "absolute": "abs", "negative": "neg", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "not_equal": "ne", "clip": "clamp", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "arccos": "acos", "arcsin": "asin", "arctan": "atan", "max_pool2d_with_indices": "max_pool2d",
    "max_pool1d_with_indices": "max_pool1d", "max_pool3d_with_indices": "max_pool3d",
    "float": "to", "half": "to", "bfloat16": "to", "double": "to", "int": "to", "long": "to", "short": "to",
    "bool": "to", "type_as": "to", "special_expit": "sigmoid", "special_softmax": "softmax",
    "special_log_softmax": "log_softmax",
}
"""Second names that torch documents as aliases, and dtype casts, which are all `torch.Tensor.to`."""

NOT_THE_FUNCTIONAL = frozenset({"unfold", "upsample", "assert_int_or_pair", "boolean_dispatch", "handle_torch_function"})
"""Names in `torch.nn.functional` that do not mean what the tensor method or function of the same name means."""


def is_attribute(func: Callable[..., Any]) -> bool:
    """Whether a torch-function hook sees an attribute access (`x.shape`, `x.T`) and no call."""
    return getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__")


def base_name(func: Callable[..., Any]) -> str:
    """The last part of the called function's name, e.g. `add_`, `__radd__`, `softmax`; of an attribute, its own."""
    if is_attribute(func):
        return getattr(getattr(func, "__self__", None), "__name__", "")
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _operator_packet(func).__name__
    known = _functional_names().get(func) if _hashable(func) else None
    return known or getattr(func, "__name__", "") or getattr(type(func), "__name__", "")


@functools.cache
def canonical(func: Callable[..., Any]) -> str | None:
    """The canonical name of what a torch-function hook saw, or None where it is no torch operator.

    `torch.nn.functional.X` where that exists, else `torch.X`, else `torch.Tensor.X`; operators registered by others
    are `torch.ops.NAMESPACE.X`. In-place forms have their out-of-place form's name, where there is one.
    """
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        namespace = _operator_packet(func)._qualified_op_name.partition("::")[0]
        if namespace != "aten":
            return f"torch.ops.{namespace}.{base_name(func)}"
    name = base_name(func)
    if not name:
        return None
    if is_attribute(func):
        return f"torch.Tensor.{name}"
    if name.startswith("__") and name.endswith("__"):
        return _canonical_dunder(name)
    if vars(F).get(name) is func:
        return f"torch.nn.functional.{out_of_place(name)}"
    return _locate(out_of_place(name))


@functools.cache
def function_path(func: Callable[..., Any]) -> str | None:
    """Where a function that a torch-function hook saw can be found again, e.g. `torch.Tensor.add_`; None if nowhere."""
    if isinstance(func, torch._ops.OpOverload):
        return f"torch.ops.{func.namespace}.{func.overloadpacket.__name__}.{func._overloadname}"
    if isinstance(func, torch._ops.OpOverloadPacket):
        return "torch.ops." + func._qualified_op_name.replace("::", ".")
    name = base_name(func)
    for owner, path in ((F, "torch.nn.functional"), (torch, "torch"), (torch.Tensor, "torch.Tensor")):
        for candidate in (name, getattr(func, "__name__", name)):
            if candidate and getattr(owner, candidate, None) is func:
                return f"{path}.{candidate}"
    path = torch.overrides.resolve_name(func)
    return path if path and path.startswith("torch.") else None


def out_of_place(name: str) -> str:
    """`relu_` -> `relu` where torch has `relu`; other names unchanged."""
    if name.endswith("_") and not name.startswith("_"):
        plain = SYNONYMS.get(name[:-1], name[:-1])
        if _locate(plain) is not None:
            return plain
    return SYNONYMS.get(name, name)


def is_in_place(func: Callable[..., Any]) -> bool:
    """Whether the spelling itself writes its first tensor: `add_`, `+=`. (`inplace=True` is an argument.)"""
    name = base_name(func)
    if is_attribute(func):
        return getattr(func, "__name__", "") == "__set__"
    if name.startswith("__") and name.endswith("__"):
        return name == "__setitem__" or DUNDERS.get(name[2:-2], "").endswith("_")
    return name.endswith("_") and not name.endswith("__")


def _canonical_dunder(name: str) -> str:
    meaning = DUNDERS.get(name[2:-2])
    if meaning is None:
        return f"torch.Tensor.{name}"
    if meaning in REFLECTED:
        return REFLECTED[meaning]
    return _locate(out_of_place(meaning)) or f"torch.Tensor.{name}"


def _locate(name: str) -> str | None:
    if name in _functionals() and name not in NOT_THE_FUNCTIONAL:
        return f"torch.nn.functional.{name}"
    if name != "to" and callable(getattr(torch, name, None)) and not inspect.isclass(getattr(torch, name)):
        return f"torch.{name}"
    if callable(getattr(torch.Tensor, name, None)):
        return f"torch.Tensor.{name}"
    module, _, rest = name.partition("_")
    if module in ("linalg", "fft", "special") and callable(getattr(getattr(torch, module), rest, None)):
        return f"torch.{module}.{rest}"
    return None


@functools.cache
def _functionals() -> frozenset[str]:
    return frozenset(name for name, value in vars(F).items()
                     if not name.startswith("_") and callable(value) and not inspect.isclass(value)
                     and "torch_function" not in name)


@functools.cache
def _functional_names() -> dict[Any, str]:
    """Functions of `torch.nn.functional` whose `__name__` is not the public one (`boolean_dispatch` makes `fn`)."""
    names: dict[Any, str] = {}
    for name in _functionals():
        value = getattr(F, name)
        if getattr(value, "__name__", name) != name and _hashable(value):
            names[value] = name
    return names


def _operator_packet(func: Any) -> Any:
    return func.overloadpacket if isinstance(func, torch._ops.OpOverload) else func


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
