"""How tensors lie in memory, in Python for choosing a template and as kernel-file expressions for guarding it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from msgspec import Struct

from forge_tui.specs import TensorSpec

FLOATS = ("float32", "float16", "bfloat16")
"""Element types the templates load through float32."""


def quoted(expressions: Iterable[str]) -> str:
    """Expressions as the inside of a TOML list."""
    return ", ".join(f'"{expression}"' for expression in expressions)


def product(factors: Sequence[str]) -> str:
    """A product as an expression; 1 when empty."""
    return " * ".join(factors) or "1"


def dense_order(spec: TensorSpec) -> list[int] | None:
    """Dimensions from the outermost to the innermost in memory when the tensor fills a span without gaps or overlaps, else
    None. Sizes of 1 come first: their strides mean nothing."""
    dims = memory_order(spec)
    expected = 1
    for dim in reversed(dims):
        if spec.shape[dim] != 1:
            if spec.stride[dim] != expected:
                return None
            expected *= spec.shape[dim]
    return dims


def memory_order(spec: TensorSpec) -> list[int]:
    """Dimensions from the outermost to the innermost in memory, those of size 1 first."""
    return sorted(range(spec.ndim), key=lambda dim: (spec.shape[dim] != 1, -spec.stride[dim], dim))


def same_dense_order(*specs: TensorSpec) -> bool:
    """Whether all have one shape and are dense in one order, so that a flat index means the same element in all."""
    first = specs[0]
    if any(spec.shape != first.shape for spec in specs):
        return False
    if all(spec.contiguous for spec in specs):
        return True
    orders = [dense_order(spec) for spec in specs]
    return orders[0] is not None and all(order == orders[0] for order in orders)


def same_dense_guards(specs: dict[str, TensorSpec]) -> list[str]:
    """Expressions saying that the tensors have one shape and are dense in the first one's order.

    Contiguous tensors get the short form; other orders are spelled out stride by stride.
    """
    names = list(specs)
    first, spec = names[0], specs[names[0]]
    shapes = [f"{name}.shape[{dim}] == {first}.shape[{dim}]" for name in names[1:] for dim in range(spec.ndim)]
    if all(item.contiguous for item in specs.values()):
        return [f"{name}.contiguous" for name in names] + shapes
    guards = []
    inner: list[str] = []
    for dim in reversed(dense_order(spec) or []):
        guards += [f"{first}.shape[{dim}] == 1 or {name}.stride[{dim}] == {product(inner)}" for name in names]
        inner.append(f"{first}.shape[{dim}]")
    return guards + shapes


class Strided(Struct, frozen=True):
    """Tensors of one broadcast shape as few common dimensions: sizes and strides as expressions, outermost first."""

    sizes: tuple[str, ...]
    strides: dict[str, tuple[str, ...]]
    """By tensor name, in elements; `0` where the tensor is broadcast."""
    guards: tuple[str, ...]
    """What must hold for these expressions to be right for another call."""
    counts: tuple[int, ...]
    """The sizes of this call."""
    steps: dict[str, tuple[int, ...]]
    """The strides of this call."""

    @property
    def rank(self) -> int:
        return len(self.sizes)


def common_dimensions(out: TensorSpec, operands: dict[str, TensorSpec]) -> Strided:
    """Describe `out` and operands broadcast to it, in the order `out` has in memory, neighbours merged where every tensor
    allows it. At least one dimension, also for a scalar."""
    tensors = {**operands, "out": out}
    guards = [f"{name}.ndim == {spec.ndim}" for name, spec in tensors.items()]
    groups: list[list[int]] = []
    for dim in memory_order(out):
        if out.shape[dim] == 1:
            guards.append(f"out.shape[{dim}] == 1")
            continue
        for name, spec in operands.items():
            own = dim - out.ndim + spec.ndim
            if own >= 0:
                guards.append(f"{name}.shape[{own}] == {1 if spec.shape[own] == 1 else f'out.shape[{dim}]'}")
        if groups and all(_merges(spec, out, groups[-1][-1], dim) for spec in tensors.values()):
            for name, spec in tensors.items():
                guards += _merge_guard(name, spec, out, groups[-1][-1], dim)
            groups[-1].append(dim)
        else:
            groups.append([dim])
    sizes = tuple(product([f"out.shape[{dim}]" for dim in group]) for group in groups) or ("out.numel",)
    strides = {name: tuple(_stride(name, spec, out, group[-1]) for group in groups) or ("1" if name == "out" else "0",)
               for name, spec in tensors.items()}
    counts = tuple(prod(out.shape[dim] for dim in group) for group in groups) or (out.numel,)
    steps = {name: tuple(_step(spec, out, group[-1]) for group in groups) or (int(name == "out"),)
             for name, spec in tensors.items()}
    return Strided(sizes, strides, tuple(guards), counts, steps)


def _own(spec: TensorSpec, out: TensorSpec, dim: int) -> int | None:
    """The operand's dimension that runs along `dim` of the output; None where it is broadcast."""
    own = dim - out.ndim + spec.ndim
    return None if own < 0 or (spec.shape[own] == 1 and out.shape[dim] != 1) else own


def _stride(name: str, spec: TensorSpec, out: TensorSpec, dim: int) -> str:
    own = _own(spec, out, dim)
    return "0" if own is None else f"{name}.stride[{own}]"


def _step(spec: TensorSpec, out: TensorSpec, dim: int) -> int:
    own = _own(spec, out, dim)
    return 0 if own is None else spec.stride[own]


def _merges(spec: TensorSpec, out: TensorSpec, outer: int, inner: int) -> bool:
    """Whether the tensor's `outer` dimension steps over exactly its whole `inner` one (or neither moves it)."""
    first, second = _own(spec, out, outer), _own(spec, out, inner)
    if first is None or second is None:
        return first is second
    return spec.stride[first] == spec.stride[second] * spec.shape[second]


def _merge_guard(name: str, spec: TensorSpec, out: TensorSpec, outer: int, inner: int) -> list[str]:
    first, second = _own(spec, out, outer), _own(spec, out, inner)
    if first is None or second is None:
        return []
    return [f"{name}.stride[{first}] == {name}.stride[{second}] * {name}.shape[{second}]"]
