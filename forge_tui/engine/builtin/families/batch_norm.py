"""batch_norm in inference: every channel is an affine function of its own."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from forge_tui.engine.builtin.families.axes import product
from forge_tui.engine.builtin.families.elementwise import activation_of, after, after_function
from forge_tui.engine.builtin.families.layout import FLOATS, memory_order, quoted, same_dense_guards, same_dense_order
from forge_tui.engine.builtin.families.rows import STREAM_BYTES, part
from forge_tui.engine.builtin.registry import Recipe, offers
from forge_tui.specs import Call, TensorSpec

MANY = 1 << 20
"""Elements from which a device is full even when every thread makes several accesses."""


@offers("torch.nn.functional.batch_norm", *after("batch_norm"))
def batch_norm(call: Call) -> Iterator[Recipe]:
    source, out = call.arguments.get("input"), call.outputs[0]
    names = [name for name in ("running_mean", "running_var", "weight", "bias") if call.arguments.get(name) is not None]
    tensors = [source, out, *(call.arguments[name] for name in names)]
    if not all(isinstance(spec, TensorSpec) and spec.dtype in FLOATS for spec in tensors):
        return
    if source.ndim < 2 or call.arguments.get("training") or "running_mean" not in names or "running_var" not in names:
        return
    if not same_dense_order(source, out) or any(not spec.contiguous for spec in tensors[2:]):
        return
    guards = ["not training", f"input.ndim == {source.ndim}", *same_dense_guards({"input": source, "out": out})]
    guards += [f"input.shape[{dim}] == 1" for dim in range(2, source.ndim) if source.shape[dim] == 1]
    guards += [f"present({name})" if name in names else f"not present({name})" for name in ("weight", "bias")]
    guards += [f"{name}.contiguous" for name in names]
    shared = {
        "GUARD": quoted(guards), "CHANNEL": _channel(names, activation_of(call.operator)),
        "PARAMETERS": _parameters(names), "PASS": "".join(f", {name}" for name in (*names, "eps")),
        "ARGS": "".join(f', "{name}"' for name in names) + ', { float = "eps" }',
        "STREAM_TUNE": "[0, 2, 1]" if out.numel * out.itemsize >= STREAM_BYTES else "[0]",
    }
    yield from _layouts(source, out, shared)


def _layouts(source: TensorSpec, out: TensorSpec, shared: dict[str, str]) -> Iterator[Recipe]:
    many = source.numel >= MANY
    spatial = [dim for dim in range(2, source.ndim) if source.shape[dim] != 1]
    order = memory_order(source)
    channels_inside = not spatial or order.index(1) > max(order.index(dim) for dim in spatial)
    plane_now = prod(source.shape[2:])
    # Elements of one channel in a row: the plane, or one where channels are innermost.
    plane = "1" if channels_inside and source.shape[1] != 1 else product([f"input.shape[{dim}]" for dim in range(2, source.ndim)])
    if channels_inside and source.shape[1] != 1:
        yield Recipe("batch_rows", "access", "channels' numbers stay in registers while a thread walks down the rows", {
            **shared, "LANES_TUNE": _lanes(source.shape[1]), "ROWS_TUNE": "[4, 2, 8]" if many else "[1, 2, 4]"})
    elif plane_now >= 32 and order.index(1) < min((order.index(dim) for dim in spatial), default=source.ndim):
        yield Recipe("batch_planes", "vectorization", "lanes on a plane, its channel's numbers read once", {
            **shared, "PLANE": plane, "LANES_TUNE": _lanes(plane_now), "DEPTH_TUNE": "[4, 2, 8, 1, 16]",
            "ITEMS_TUNE": "[2, 4, 1]" if many else "[1, 2]"})
    elif not channels_inside and order.index(1) > min(order.index(dim) for dim in spatial):
        return                                              # channels in the midst of the plane: no template
    yield Recipe("batch_flat", "access", "a flat run of any layout, a channel looked up for every access",
                 {**shared, "PLANE": plane})


def _lanes(size: int) -> str:
    """Threads side by side, best guess first: enough for one access of 8 bytes or more each."""
    sizes = [8, 16, 32, 64, 128, 256]
    best = next((n for n in sizes if n * 8 >= size), 256)
    return str(sorted(sizes, key=lambda n: (abs(sizes.index(n) - sizes.index(best)), -n))[:3])


def _parameters(names: list[str]) -> str:
    return "".join(f", const DTYPE_{name}* __restrict__ {name}" for name in names) + ", float eps"


def _channel(names: list[str], activation: str) -> str:
    """activation: C++ statements of what follows the norm, empty for the norm alone."""
    scale = "rstd * forge::to_float(weight[c])" if "weight" in names else "rstd"
    shift = "forge::to_float(bias[c])" if "bias" in names else "0.f"
    result = "fmaf(x - mean, scale, shift)"
    text = after_function(activation) + part("channel")
    for word, value in (("PARAMETERS", _parameters(names)), ("SCALE", scale), ("SHIFT", shift),
                        ("RESULT", f"after({result})" if activation else result)):
        text = text.replace(f"@{word}@", value)
    return text
