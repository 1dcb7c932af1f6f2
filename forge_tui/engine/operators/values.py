"""Between real arguments and their description: `describe` makes a `Call`, `materialize` turns one back into arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from forge_tui.specs import ITEMSIZE, MAX_ALIGN, Call, Dtype, Items, Opaque, TensorSpec, Value

_FORMATS = {str(item): item for item in (torch.channels_last, torch.channels_last_3d, torch.contiguous_format,
                                         torch.preserve_format)}


def describe(operator: str, arguments: Mapping[str, Any], outputs: tuple[torch.Tensor, ...],
             weight_name: Callable[[torch.Tensor], str | None] = lambda tensor: None,
             aliases: Mapping[str, str] | None = None) -> Call:
    """The `Call` of bound arguments. weight_name: qualified name of a tensor that is a parameter or buffer, else None."""
    return Call(operator, {name: to_value(value, weight_name) for name, value in arguments.items()},
                tuple(tensor_spec(tensor) for tensor in outputs), dict(aliases or {}))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is memory with strides and nothing more: no subclass, no sparse, quantized or meta tensor, none that
    a functorch transform (vmap, grad) has wrapped, no view that conjugates or negates, and of a dtype that kernels know."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and tensor.layout == torch.strided
            and not tensor.is_quantized and tensor.device.type != "meta"
            and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            and not tensor.is_conj() and not tensor.is_neg() and _dtype_name(tensor) in ITEMSIZE)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def tensor_spec(tensor: torch.Tensor, weight: str | None = None) -> TensorSpec:
    return TensorSpec(_dtype_name(tensor), tuple(tensor.shape), tuple(tensor.stride()),
                      alignment(tensor), weight)


def alignment(tensor: torch.Tensor) -> int:
    """Largest power of two that divides the first element's address, at most MAX_ALIGN."""
    address = tensor.data_ptr() if tensor.numel() else 0
    return min(MAX_ALIGN, address & -address) if address else MAX_ALIGN


def to_value(value: Any, weight_name: Callable[[torch.Tensor], str | None] = lambda tensor: None) -> Value:
    """One argument as a record. What no kernel can use becomes `Opaque`."""
    if isinstance(value, torch.Tensor):
        if not is_plain(value):
            return Opaque(f"{type(value).__name__}, {_dtype_name(value)}, {str(value.layout).removeprefix('torch.')}"
                          f"{', conjugated' * value.is_conj()}{', negated' * value.is_neg()}")
        return tensor_spec(value, weight_name(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, torch.dtype):
        return Dtype(str(value).removeprefix("torch."))
    if isinstance(value, torch.memory_format):
        return str(value)
    if isinstance(value, (list, tuple)):
        return Items(tuple(to_value(item, weight_name) for item in value))
    return Opaque(repr(value))


def materialize(call: Call, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Real arguments of a call. tensors: by kernel-file name (`input`, `tensors[0]`). Raises KeyError, ValueError."""
    return {name: _real(name, value, tensors) for name, value in call.arguments.items()}


def _real(name: str, value: Value, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, TensorSpec):
        return tensors[name]
    if isinstance(value, Items):
        return tuple(_real(f"{name}[{index}]", item, tensors) for index, item in enumerate(value.items))
    if isinstance(value, Dtype):
        return getattr(torch, value.name)
    if isinstance(value, Opaque):
        raise ValueError(f"argument {name!r} was {value.text}, which cannot be given again")
    return _FORMATS.get(value, value) if isinstance(value, str) else value


def flatten_outputs(result: Any) -> tuple[torch.Tensor, ...]:
    """Tensors of a result in order: one tensor, tuples, named tuples, lists; anything else is left out."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, (list, tuple)):
        return tuple(tensor for item in result for tensor in flatten_outputs(item))
    return ()


def named_tensors(arguments: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors among bound arguments, as kernel files name them; the real twin of `Call.tensors()`."""
    for name, value in arguments.items():
        yield from _named(name, value)


def _named(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if is_plain(value):
            yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _named(f"{name}[{index}]", item)
