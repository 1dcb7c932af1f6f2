"""Binding of one call's arguments to the operator's own parameter names, defaults filled, whatever the spelling."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .names import DUNDERS, base_name, canonical, is_in_place, out_of_place
from .regions import is_region

RENAMED = {"self": "input", "_input": "input", "x": "input", "x1": "input", "x2": "other", "axis": "dim",
           "keepdims": "keepdim"}
"""Parameter spellings that torch accepts or its schemas use, and the documented name."""

DROPPED = frozenset({"inplace", "_stacklevel", "cudnn_enable", "cudnn_enabled", "non_blocking", "copy"})
"""Parameters that do not change what is computed. In-place is stated by `Call.aliases` instead."""

CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64,
         "int": torch.int32, "long": torch.int64, "short": torch.int16, "bool": torch.bool}


class BindError(Exception):
    """The arguments fit no known signature of the operator. Capture lists such calls; it is never a user's error."""


class Parameter(NamedTuple):
    """One parameter of an operator, under its documented name."""

    name: str
    default: Any
    """`inspect.Parameter.empty` when required."""
    keyword_only: bool = False
    variadic: bool = False


def bind(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of one call by the canonical operator's parameter names, defaults filled, in signature order.

    The first tensor is `input`, the second of a binary operator `other`. Raises BindError.
    """
    name = canonical(func)
    if name is None:
        raise BindError(f"{func!r} is no operator of torch")
    base = base_name(func)
    if name == "torch.Tensor.to":
        return _bind_cast(base, args, kwargs)
    if base == "__rmatmul__":
        args = (args[1], args[0])
    if base == "__rpow__":
        return {"input": args[1], "exponent": args[0]}
    if base.startswith("__r") and name.startswith("torch.Tensor.__r"):
        return {"input": args[0], "other": args[1]}
    if name == "torch.einsum":
        return _bind_einsum(args, kwargs)
    given = _bind_signature(func, base, args, kwargs)
    if base.endswith("_with_indices"):
        given["return_indices"] = True
    if name == "torch.nn.functional.embedding" and "indices" in given:  # torch.embedding(weight, indices, padding_idx=-1)
        given["input"] = given.pop("indices")
        given["padding_idx"] = given["padding_idx"] if given["padding_idx"] >= 0 else None
    if name == "torch.split" and "split_size" in given:
        given["split_size_or_sections"] = given.pop("split_size")
    return _spell_out_sizes(name, _complete(name, given))


def writes_input(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call overwrites its first tensor: `x.add_(y)`, `x += y`, `F.relu(x, inplace=True)`."""
    if is_in_place(func) or kwargs.get("inplace"):
        return True
    own = _python_parameters(func) or ()
    position = next((index for index, parameter in enumerate(own) if parameter.name == "inplace"), None)
    return position is not None and position < len(args) and bool(args[position])


def parameters(name: str) -> tuple[Parameter, ...] | None:
    """The signature of a canonical operator that is a Python function; None for those implemented in C++."""
    owner, _, attribute = name.rpartition(".")
    target = {"torch.nn.functional": F, "torch": torch}.get(owner)
    return _python_parameters(getattr(target, attribute)) if target is not None else None


def positional_names(name: str, arguments: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Which of the bound arguments are given by position, in order, and whether each is spread (`einsum`'s operands)."""
    if name == "torch.einsum":
        return [("equation", False), ("operands", True)]
    if name == "torch.Tensor.to":
        return [("input", False)]
    if is_region(name):
        return []
    declared = parameters(name)
    if declared is None:
        base = name.rpartition(".")[2]
        if base.startswith("__"):
            return [(key, False) for key in arguments]
        for signature in _schemas(base):
            names = {item.parameter.name for item in signature} - DROPPED
            if names == set(arguments) and _types_fit(signature, arguments):
                return [(item.parameter.name, False) for item in signature
                        if not item.parameter.keyword_only and item.parameter.name not in DROPPED]
        return [(key, False) for key in list(arguments)[:1]]
    given = []
    for item in declared:  # up to the first one that is left out or keyword-only: its name may be ours, not torch's
        if item.keyword_only or item.name not in arguments:
            break
        given.append((item.name, item.variadic))
    return given


def _complete(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Reorder to the canonical signature, drop what it does not have, fill what the spelling left out."""
    declared = parameters(name)
    if declared is None:
        return {key: value for key, value in given.items() if key not in DROPPED}
    given = {key: value for key, value in given.items() if key != "out" or value is not None}
    names = {parameter.name for parameter in declared}
    unknown = [key for key in given if key not in names and key not in DROPPED]
    if unknown:
        raise BindError(f"{name} has no parameter {unknown[0]!r}")
    complete: dict[str, Any] = {}
    for parameter in declared:
        if parameter.name in DROPPED or (parameter.name == "out" and "out" not in given):
            continue
        if parameter.name in given:
            complete[parameter.name] = given[parameter.name]
        elif parameter.default is not inspect.Parameter.empty:
            complete[parameter.name] = parameter.default
        else:
            raise BindError(f"{name} needs {parameter.name!r}")
    return complete


def _bind_signature(func: Callable[..., Any], base: str, args: Sequence[Any],
                    kwargs: Mapping[str, Any]) -> dict[str, Any]:
    own = _python_parameters(func)
    if own is not None:
        bound = _match(own, args, kwargs)
        if bound is not None:
            return bound
    for candidate in dict.fromkeys((_schema_name(base), getattr(func, "__name__", base))):
        for signature in _schemas(candidate):
            bound = _match_schema(signature, args, kwargs)
            if bound is not None:
                return bound
    raise BindError(f"arguments of {canonical(func)} fit none of its signatures")


def _schema_name(base: str) -> str:
    if base.startswith("__") and base.endswith("__"):
        return DUNDERS.get(base[2:-2], base).removesuffix("_")
    if base in ("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"):
        return base
    return out_of_place(base)


@functools.cache
def _python_parameters(func: Any) -> tuple[Parameter, ...] | None:
    """Parameters of a function written in Python, or of a dispatching one by torch's own override table."""
    signature = _signature(func)
    if signature is None:
        return None
    found = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return None
        variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        name = "input" if parameter.name == "tensor" and not variadic else RENAMED.get(parameter.name, parameter.name)
        found.append(Parameter(name, parameter.default, parameter.kind is inspect.Parameter.KEYWORD_ONLY, variadic))
    return tuple(found)


def _signature(func: Any) -> inspect.Signature | None:
    if getattr(func, "__qualname__", "").startswith("boolean_dispatch"):
        table = torch.overrides.get_testing_overrides()
        return inspect.signature(table[func]) if func in table else None
    if not inspect.isfunction(func):
        return None
    try:
        signature = inspect.signature(func)
    except ValueError:  # Python around a C method (`Tensor.__pow__`), which has no signature: its schema knows better
        return None
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return None if inspect.Parameter.VAR_KEYWORD in kinds else signature


def _match(declared: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
           ) -> dict[str, Any] | None:
    named = {RENAMED.get(key, key): value for key, value in kwargs.items()}
    if "tensor" in named and any(parameter.name == "input" for parameter in declared):
        named["input"] = named.pop("tensor")
    bound: dict[str, Any] = {}
    rest = list(args)
    for parameter in declared:
        if parameter.variadic:
            listed = len(rest) == 1 and isinstance(rest[0], (list, tuple))
            bound[parameter.name] = tuple(rest[0]) if listed else tuple(rest)
            rest = []
        elif rest and not parameter.keyword_only:
            bound[parameter.name] = rest.pop(0)
        elif parameter.name in named:
            bound[parameter.name] = named.pop(parameter.name)
        elif parameter.default is not inspect.Parameter.empty:
            bound[parameter.name] = parameter.default
        else:
            return None
    return None if rest or named else bound


class _SchemaParameter(NamedTuple):
    parameter: Parameter
    kind: str
    """torch's type name: `Tensor`, `Optional[int]`, `List[int]`, `number`, ..."""
    broadcast: bool
    """`int[2]` takes one int for both."""


@functools.cache
def _schemas(name: str) -> tuple[tuple[_SchemaParameter, ...], ...]:
    """aten's overloads of a name that compute on tensors, without those that write into `out`."""
    found = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        if any(argument.is_out for argument in schema.arguments):
            continue
        if not any("Tensor" in str(argument.type) for argument in schema.arguments):
            continue
        found.append(tuple(_schema_parameter(argument) for argument in schema.arguments))
    return tuple(found)


def _schema_parameter(argument: Any) -> _SchemaParameter:
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    if argument.name == "memory_format" and default == 0:  # the schema's own number for it
        default = torch.contiguous_format
    kind = str(argument.type)
    optional = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    broadcast = optional.startswith("List[") and argument.N is not None
    # By position, torch takes a third number of `add` for a deprecated overload's `other`.
    keyword_only = argument.kwarg_only or argument.name == "alpha"
    parameter = Parameter(RENAMED.get(argument.name, argument.name), default, keyword_only)
    return _SchemaParameter(parameter, kind, broadcast)


def _match_schema(signature: Sequence[_SchemaParameter], args: Sequence[Any],
                  kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    declared = [item.parameter for item in signature]
    bound = _match(declared, args, kwargs)
    if bound is None or not _types_fit(signature, bound):
        bound = _match(declared, _gather_sizes(signature, args), kwargs)
        if bound is None or not _types_fit(signature, bound):
            return None
    return bound


def _gather_sizes(signature: Sequence[_SchemaParameter], args: Sequence[Any]) -> Sequence[Any]:
    """`x.permute(0, 2, 1)` -> `x.permute((0, 2, 1))`: torch takes a trailing list of ints spelled out."""
    for position, item in enumerate(signature[:len(args)]):
        rest = args[position:]
        if item.kind in ("List[int]", "Optional[List[int]]") and all(isinstance(value, int) for value in rest):
            return [*args[:position], tuple(rest)]
    return args


def _types_fit(signature: Sequence[_SchemaParameter], bound: Mapping[str, Any]) -> bool:
    for item in signature:
        if item.parameter.name not in bound:
            continue
        value = bound[item.parameter.name]
        if value is item.parameter.default:
            continue
        if not _fits(item.kind, value, item.broadcast):
            return False
    return True


def _fits(kind: str, value: Any, broadcast: bool) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(kind[len("Optional["):-1], value, broadcast)
    if kind.startswith("List["):
        inner = kind[len("List["):-1]
        if isinstance(value, (list, tuple)):
            return all(_fits(inner, element, False) for element in value)
        return broadcast and _fits(inner, value, False)
    if kind == "Tensor":
        return isinstance(value, torch.Tensor)
    if kind == "number":
        return isinstance(value, (bool, int, float, complex))
    if kind == "int":  # schemas say int for dtypes, layouts and memory formats too
        return isinstance(value, (int, torch.dtype, torch.memory_format, torch.layout, torch.SymInt))
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    plain = {"bool": bool, "str": str}.get(kind)
    return isinstance(value, plain) if plain else not isinstance(value, torch.Tensor)


_SPATIAL = ("kernel_size", "stride", "padding", "dilation", "output_padding", "output_size")


def _spell_out_sizes(name: str, bound: dict[str, Any]) -> dict[str, Any]:
    """Of convolutions and pools, sizes as one number per spatial dimension, so that `output_size[0]` always exists.

    A pool's missing stride is its kernel size; a missing adaptive output size is the input's.
    """
    rank = int(name[-2]) if name.endswith(("1d", "2d", "3d")) and ("conv" in name or "pool" in name) else 0
    if not rank:
        return bound
    for key in _SPATIAL:
        value = bound.get(key)
        if key == "stride" and "kernel_size" in bound and (value is None or value == []):
            value = bound["kernel_size"]
        if isinstance(value, int) and not isinstance(value, bool):
            value = (value,) * rank
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = tuple(value) * rank
        if key == "output_size" and isinstance(value, (list, tuple)):
            sizes = bound["input"].shape[-rank:]
            value = tuple(own if size is None else size for size, own in zip(value, sizes, strict=True))
        if key in bound:
            bound[key] = tuple(value) if isinstance(value, list) else value
    return bound


def _bind_einsum(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if kwargs or not args or not isinstance(args[0], str):
        raise BindError("torch.einsum is known with an equation in letters only")
    rest = args[1:]
    return {"equation": args[0], "operands": tuple(rest[0]) if isinstance(rest[0], (list, tuple)) else tuple(rest)}


def _bind_cast(base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """`.to(...)`, `.float()`, `.type_as(...)`: input, dtype, memory_format, and device only where it really changes."""
    source = args[0] if args else kwargs["input"]
    dtype, device, memory = source.dtype, source.device, torch.preserve_format
    if base in CASTS:
        dtype = CASTS[base]
    for value in [*args[1:], *kwargs.values()]:
        if isinstance(value, torch.Tensor):
            dtype = value.dtype
            device = value.device if base != "type_as" else device
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, torch.memory_format):
            memory = value
        elif isinstance(value, (str, torch.device)):
            device = torch.device(value)
    bound: dict[str, Any] = {"input": source, "dtype": dtype, "memory_format": memory}
    if device.type != source.device.type or (device.index is not None and device != source.device):
        bound["device"] = device
    return bound
