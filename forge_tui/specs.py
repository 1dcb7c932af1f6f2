"""What one operator call is, without torch: tensor specs, argument values, and the call that binds them to names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Union

from msgspec import Struct

ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}
"""Bytes of one element, by torch's dtype name without the `torch.` prefix."""

MAX_ALIGN = 64
"""Alignment is told apart no further than torch's CPU allocator guarantees it (64 bytes; its CUDA allocator gives 512), so
that the same call at another address is the same variant. Outputs and workspaces are always 256-byte aligned."""


class TensorSpec(Struct, frozen=True, tag="tensor"):
    """One tensor of a call: everything a guard or a launch plan may depend on, and no data."""

    dtype: str
    """torch's name without the prefix: `bfloat16`."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements, as torch has it."""
    align: int = 64
    """Largest power of two, at most MAX_ALIGN, that divides the address of the first element, in bytes."""
    weight: str | None = None
    """Qualified name of the model parameter or buffer this tensor is, e.g. `encoder.layer.0.bias`; None for activations.
    Not part of a variant's identity: the same call on another layer's weight is the same variant."""

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def contiguous(self) -> bool:
        """As torch's `is_contiguous()`: sizes of 1 put no demand on their stride, empty tensors are contiguous."""
        if self.numel == 0:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1:
                if stride != expected:
                    return False
                expected *= size
        return True

    @property
    def span(self) -> int:
        """Bytes from the first to past the last element that the strides reach; 0 when empty. Strides are never negative."""
        if self.numel == 0:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.itemsize


class Dtype(Struct, frozen=True, tag="dtype"):
    """A `torch.dtype` argument, e.g. softmax's `dtype`."""

    name: str


class Opaque(Struct, frozen=True, tag="opaque"):
    """An argument that no kernel can use and no capture can store (a device, a generator, an object): its repr."""

    text: str


class Items(Struct, frozen=True, tag="items"):
    """A list or tuple argument, nested ones included (`torch.cat`'s tensors, `output_size`)."""

    items: tuple[Value, ...]


Value = Union[TensorSpec, Dtype, Opaque, Items, None, bool, int, float, str]
"""One bound argument."""


class Call(Struct, frozen=True):
    """One operator call: the canonical operator, its arguments by the operator's own parameter names, its results."""

    operator: str
    """Canonical name, e.g. `torch.nn.functional.softmax`, or a module class for regions."""
    arguments: dict[str, Value]
    """Every parameter, defaults included, in signature order."""
    outputs: tuple[TensorSpec, ...]
    """Eager's results, flattened. One result is called `out` in kernel files, several are `out0`, `out1`, ..."""
    aliases: dict[str, str] = {}
    """Results that are an input's own memory (in-place operators): `{"out": "input"}`."""

    def output_names(self) -> list[str]:
        return ["out"] if len(self.outputs) == 1 else [f"out{i}" for i in range(len(self.outputs))]

    def tensors(self) -> Iterator[tuple[str, TensorSpec]]:
        """Input tensors as kernel files name them: `input`, `tensors[0]`."""
        for name, value in self.arguments.items():
            yield from _tensors(name, value)


def short_name(operator: str) -> str:
    """`torch.nn.functional.softmax` -> `softmax`, `torch.nn.functional.silu+torch.mul` -> `silu+mul`."""
    return "+".join(part.rpartition(".")[2] for part in operator.split("+"))


def _tensors(name: str, value: Value) -> Iterator[tuple[str, TensorSpec]]:
    if isinstance(value, TensorSpec):
        yield name, value
    elif isinstance(value, Items):
        for index, item in enumerate(value.items):
            yield from _tensors(f"{name}[{index}]", item)
