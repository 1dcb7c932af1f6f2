"""How tensors lie in memory, in Python for choosing a template and as kernel-file expressions for guarding it."""

from __future__ import annotations

from collections.abc import Iterable

from forge_tui.specs import TensorSpec

FLOATS = ("float32", "float16", "bfloat16")
"""Element types the templates load through float32."""


def quoted(expressions: Iterable[str]) -> str:
    """Expressions as the inside of a TOML list."""
    return ", ".join(f'"{expression}"' for expression in expressions)


def dense_order(spec: TensorSpec) -> list[int] | None:
    """Dimensions from the outermost to the innermost in memory when the tensor fills a span without gaps or overlaps, else
    None. Sizes of 1 come first: their strides mean nothing."""
    dims = sorted(range(spec.ndim), key=lambda dim: (spec.shape[dim] != 1, -spec.stride[dim], dim))
    expected = 1
    for dim in reversed(dims):
        if spec.shape[dim] != 1:
            if spec.stride[dim] != expected:
                return None
            expected *= spec.shape[dim]
    return dims


def same_dense_order(*specs: TensorSpec) -> bool:
    """Whether all have one shape and are dense in one order, so that a flat index means the same element in all."""
    first = specs[0]
    if any(spec.shape != first.shape for spec in specs):
        return False
    if first.numel == 0 or all(spec.contiguous for spec in specs):
        return True
    orders = [dense_order(spec) for spec in specs]
    return orders[0] is not None and all(order == orders[0] for order in orders)


def dense_guards(name: str, spec: TensorSpec, *others: str) -> list[str]:
    """Expressions saying that tensor `name` is dense in the order `spec` has, and that `others` lie exactly like it.

    Contiguous tensors get the short form; other orders are spelled out stride by stride.
    """
    if spec.contiguous:
        return [f"{name}.contiguous", *(f"{other}.contiguous" for other in others),
                *(f"{other}.numel == {name}.numel" for other in others)]
    guards = []
    inner: list[str] = []
    for dim in reversed(dense_order(spec) or []):
        expected = " * ".join(inner) or "1"
        guards.append(f"{name}.shape[{dim}] == 1 or {name}.stride[{dim}] == {expected}")
        inner.append(f"{name}.shape[{dim}]")
    for other in others:
        for dim in range(spec.ndim):
            guards.append(f"{other}.shape[{dim}] == {name}.shape[{dim}]")
            guards.append(f"{name}.shape[{dim}] == 1 or {other}.stride[{dim}] == {name}.stride[{dim}]")
    return guards
