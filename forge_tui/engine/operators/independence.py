"""Dimensions along which an operator's results do not depend on each other.

A call may be cut along such a dimension, inputs and outputs together, and is then the same operator on less: this is
how large calls are verified on reduced proxies, with their inner sizes unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from forge_tui.engine.operators.formulas import PER_OUTPUT
from forge_tui.engine.operators.regions import is_region
from forge_tui.engine.package.runtime.rows import CONVOLUTION
from forge_tui.specs import Call, Items, TensorSpec


class IndependentDim(Struct, frozen=True):
    """One dimension of the problem that may be cut."""

    size: int
    inputs: dict[str, int]
    """Input tensor by kernel-file name -> which of its dimensions (from 0) this is; inputs not named stay whole."""
    outputs: tuple[int, ...]
    """For each output in order, which of its dimensions this is."""


def independent_dims(call: Call) -> list[IndependentDim]:
    """Cuttable dimensions, outermost first. Empty for operators that are not known, and dimensions of size 1 are left out.

    Where the operator's other arguments state a size (`expand`, `reshape`), the dimension is not cuttable.
    """
    rule = _region if is_region(call.operator) else _RULES.get(call.operator)
    if call.operator in _ELEMENTWISE or (call.operator in ("torch.max", "torch.min") and "other" in call.arguments):
        rule = _elementwise
    if rule is None or not call.outputs:
        return []
    return [dim for dim in rule(call) if dim.size > 1]


def _spec(call: Call, name: str = "input") -> TensorSpec | None:
    value = call.arguments.get(name)
    return value if isinstance(value, TensorSpec) else None


def _same(call: Call, dims: range | list[int], extra: dict[str, int] | None = None) -> list[IndependentDim]:
    """Dimensions that `input` and every output share by position; `extra`: other tensors cut with them."""
    source = _spec(call)
    if source is None:
        return []
    kept = [dim for dim in dims if all(dim < out.ndim and out.shape[dim] == source.shape[dim] for out in call.outputs)]
    return [IndependentDim(source.shape[dim], {"input": dim, **(extra or {})}, (dim,) * len(call.outputs)) for dim in kept]


def _region(call: Call) -> list[IndependentDim]:
    """Of operators in a row what both allow; of norm modules of the last dimension everything before it; of rotations the
    leading dimension that all tensors share."""
    first, _, second = call.operator.partition("+")
    if second == "torch.mul":
        return _elementwise(call) if first in _ELEMENTWISE else []
    if first == "torch.add" and second in _ELEMENTWISE:
        return _elementwise(call)
    if first == "torch.add":
        return [dim for dim in _elementwise(call) if dim.outputs[0] in _normed_apart(call, second)]
    if first.startswith(CONVOLUTION):  # batch_norm of one image is what it is among others, once it has running statistics
        apart = call.arguments.get("training") is False or second.partition("+")[0] != _F + "batch_norm"
        return independent_dims(Call(first, call.arguments, call.outputs)) if apart else []
    if second:
        return independent_dims(Call(first, call.arguments, call.outputs)) if second in _ELEMENTWISE else []
    source = _spec(call)
    if source is not None and _norm_of_last(call, call.operator):
        others = {name: spec for name, spec in call.tensors() if name != "input" and spec.shape == source.shape}
        return [dim for index in range(source.ndim - 1) for dim in _same(call, [index], dict.fromkeys(others, index))]
    return _leading(call) if call.operator.rpartition(".")[2].lower().find("rot") >= 0 else []


def _norm_of_last(call: Call, operator: str) -> bool:
    """Whether a norm module works on the last dimension, as one whose parameters have its size does."""
    source = _spec(call)
    if source is None or not source.ndim or "norm" not in operator.rpartition(".")[2].lower():
        return False
    vectors = [spec for name, spec in call.tensors() if spec.shape != source.shape]
    return all(spec.shape in (source.shape[-1:], (1,)) for spec in vectors) and source.shape[-1:] not in (
        source.shape[index:index + 1] for index in range(1, source.ndim - 1))


def _normed_apart(call: Call, norm: str) -> range:
    """Dimensions of a sum's results that the norm after it leaves apart."""
    rank = call.outputs[0].ndim
    shape = call.arguments.get("normalized_shape")
    if norm.startswith("torch."):
        return range(rank - len(shape.items)) if isinstance(shape, Items) else range(0)
    sizes = {spec.shape for name, spec in call.tensors() if name not in ("input", "other")}
    last = call.outputs[0].shape[-1:]
    return range(rank - 1) if last and sizes <= {last, (1,)} else range(0)


def _leading(call: Call) -> list[IndependentDim]:
    """The first dimension, where every tensor has it at the same size."""
    specs = dict(call.tensors())
    sizes = {spec.shape[:1] for spec in [*specs.values(), *call.outputs]}
    size = next(iter(sizes)) if len(sizes) == 1 else ()
    return [IndependentDim(size[0], dict.fromkeys(specs, 0), (0,) * len(call.outputs))] if size else []


def _along_dim(call: Call) -> list[IndependentDim]:
    """softmax and others that work along `dim` and keep the rank."""
    source, dim = _spec(call), call.arguments.get("dim")
    if source is None or not isinstance(dim, int) or not source.ndim:
        return []
    return _same(call, [index for index in range(source.ndim) if index != dim % source.ndim])


def _normalized(call: Call) -> list[IndependentDim]:
    source, shape = _spec(call), call.arguments.get("normalized_shape")
    if source is None or not isinstance(shape, Items):
        return []
    return _same(call, range(source.ndim - len(shape.items)))


def _channels(call: Call) -> list[IndependentDim]:
    """batch_norm at inference: the batch, the channels with their weights, and every pixel."""
    source = _spec(call)
    if source is None or call.arguments.get("training"):
        return []
    vectors = {name: 0 for name in ("running_mean", "running_var", "weight", "bias") if _spec(call, name) is not None}
    return [*_same(call, [0]), *_same(call, [1], vectors), *_same(call, range(2, source.ndim))]


def _batch(call: Call) -> list[IndependentDim]:
    return _same(call, [0])


def _planes(rank: int) -> Callable[[Call], list[IndependentDim]]:
    """Pools: everything before the last `rank` dimensions."""
    def rule(call: Call) -> list[IndependentDim]:
        source = _spec(call)
        return _same(call, range(source.ndim - rank)) if source else []
    return rule


def _convolution(rank: int) -> Callable[[Call], list[IndependentDim]]:
    def rule(call: Call) -> list[IndependentDim]:
        source = _spec(call)
        return _same(call, [0]) if source and source.ndim == rank + 2 else []
    return rule


def _elementwise(call: Call) -> list[IndependentDim]:
    """Any dimension of the output, with every input that has it; broadcast inputs stay whole."""
    out = call.outputs[0]
    if any(other.shape != out.shape for other in call.outputs):
        return []
    found = []
    for dim in range(out.ndim):
        inputs = {}
        for name, spec in call.tensors():
            own = dim - (out.ndim - spec.ndim)
            if own >= 0 and spec.shape[own] == out.shape[dim]:
                inputs[name] = own
        found.append(IndependentDim(out.shape[dim], inputs, (dim,) * len(call.outputs)))
    return found


def _embedding(call: Call) -> list[IndependentDim]:
    source = _spec(call)
    return _same(call, range(source.ndim)) if source and call.arguments.get("max_norm") is None else []


def _pad(call: Call) -> list[IndependentDim]:
    """Dimensions that `pad`, which names them from the last one backwards in pairs, does not reach or leaves alone."""
    source, pad = _spec(call), call.arguments.get("pad")
    known = call.arguments.get("mode") in ("constant", "reflect", "replicate")
    if source is None or not isinstance(pad, Items) or not known:
        return []
    amounts = list(pad.items)
    padded = {source.ndim - 1 - index // 2 for index, amount in enumerate(amounts) if amount != 0}
    if call.arguments["mode"] != "constant":
        padded |= {source.ndim - 1 - index // 2 for index in range(len(amounts))}
    return _same(call, [dim for dim in range(source.ndim) if dim not in padded])


def _linear(call: Call) -> list[IndependentDim]:
    source, weight, out = _spec(call), _spec(call, "weight"), call.outputs[0]
    if source is None or weight is None or weight.ndim != 2:
        return []
    features = {"weight": 0, **({"bias": 0} if _spec(call, "bias") is not None else {})}
    return [*_same(call, range(source.ndim - 1)), IndependentDim(weight.shape[0], features, (out.ndim - 1,))]


def _matmul(call: Call) -> list[IndependentDim]:
    """Batch dimensions (broadcast as torch does), rows of `input`, columns of `other`; both need two dimensions."""
    left, right = _spec(call), _spec(call, "other") or _spec(call, "mat2")
    if left is None or right is None or left.ndim < 2 or right.ndim < 2:
        return []
    second = "other" if _spec(call, "other") is not None else "mat2"
    out = call.outputs[0]
    found = []
    for dim in range(out.ndim - 2):
        inputs = {}
        for name, spec in (("input", left), (second, right)):
            own = dim - (out.ndim - spec.ndim)
            if own >= 0 and spec.shape[own] == out.shape[dim]:
                inputs[name] = own
        found.append(IndependentDim(out.shape[dim], inputs, (dim,)))
    rows = IndependentDim(left.shape[-2], {"input": left.ndim - 2}, (out.ndim - 2,))
    columns = IndependentDim(right.shape[-1], {second: right.ndim - 1}, (out.ndim - 1,))
    return [*found, rows, columns]


def _attention(call: Call) -> list[IndependentDim]:
    """Batch and heads where query, key and value agree on them, and queries where no causal mask ties them to keys."""
    specs = {name: _spec(call, name) for name in ("query", "key", "value")}
    mask, out = _spec(call, "attn_mask"), call.outputs[0]
    if any(spec is None or spec.ndim != out.ndim for spec in specs.values()):
        return []
    last = out.ndim - 2
    found = []
    for dim in range(last + 1):
        if dim == last and call.arguments.get("is_causal"):
            continue
        names = ["query"] if dim == last else list(specs)
        if any(specs[name].shape[dim] != out.shape[dim] for name in names):
            continue
        inputs = {name: dim for name in names}
        own = dim - (out.ndim - mask.ndim) if mask else -1
        if mask and own >= 0 and mask.shape[own] == out.shape[dim]:
            inputs["attn_mask"] = own
        found.append(IndependentDim(out.shape[dim], inputs, (dim,)))
    return found


def _reduction(call: Call) -> list[IndependentDim]:
    """sum, mean, amax ... along `dim`: every other dimension."""
    source, dim = _spec(call), call.arguments.get("dim")
    dims = [dim] if isinstance(dim, int) else list(dim.items) if isinstance(dim, Items) else []
    if source is None or not dims or not all(isinstance(item, int) for item in dims):
        return []
    reduced = {item % source.ndim for item in dims}
    keep = bool(call.arguments.get("keepdim"))
    found, position = [], 0
    for index in range(source.ndim):
        if index in reduced:
            position += keep
            continue
        found.append(IndependentDim(source.shape[index], {"input": index}, (position,) * len(call.outputs)))
        position += 1
    return found


def _concatenation(call: Call) -> list[IndependentDim]:
    dim, out = call.arguments.get("dim"), call.outputs[0]
    names = dict(call.tensors())
    if not isinstance(dim, int) or any(spec.ndim != out.ndim for spec in names.values()):
        return []
    return [IndependentDim(out.shape[index], {name: index for name in names}, (index,))
            for index in range(out.ndim) if index != dim % out.ndim]


_F = "torch.nn.functional."
_NOT_ELEMENTWISE = {"softmax", "log_softmax", "softmin", "layer_norm", "group_norm", "instance_norm", "rms_norm",
                    "batch_norm", "normalize", "local_response_norm", "cosine_similarity", "prelu", "glu"}
_MORE_ELEMENTWISE = {"logical_xor", "isnan", "isinf", "isfinite", "sign", "floor", "ceil", "round", "trunc", "frac",
                     "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "exp2", "log2", "log10",
                     "bitwise_xor", "softshrink", "hardshrink", "tanhshrink", "threshold", "selu", "celu", "nan_to_num",
                     "fmod", "fmax", "fmin", "hypot", "positive", "clone", "to", "erfc", "sgn", "polar", "complex"}
_ELEMENTWISE = {f"{owner}{name}" for name in (set(PER_OUTPUT) - _NOT_ELEMENTWISE) | _MORE_ELEMENTWISE
                for owner in (_F, "torch.", "torch.Tensor.")}

_RULES: dict[str, Callable[[Call], list[IndependentDim]]] = {
    **{_F + name: _along_dim for name in ("softmax", "log_softmax", "softmin", "normalize", "glu")},
    **{f"torch.{name}": _along_dim for name in ("log_softmax", "cumsum", "cumprod", "sort", "flip")},
    _F + "layer_norm": _normalized, _F + "rms_norm": _normalized,
    _F + "batch_norm": _channels, _F + "group_norm": _batch, _F + "instance_norm": _batch,
    **{f"{_F}{adaptive}{kind}_pool{rank}d": _planes(rank)
       for adaptive in ("", "adaptive_") for kind in ("avg", "max") for rank in (1, 2, 3)},
    **{f"{_F}conv{rank}d": _convolution(rank) for rank in (1, 2, 3)},
    **{f"{_F}conv_transpose{rank}d": _convolution(rank) for rank in (1, 2, 3)},
    _F + "interpolate": _batch, _F + "embedding": _embedding, _F + "pad": _pad, _F + "linear": _linear,
    **{f"torch.{name}": _matmul for name in ("matmul", "mm", "bmm")},
    _F + "scaled_dot_product_attention": _attention, "torch.cat": _concatenation,
    **{f"torch.{name}": _reduction for name in ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var",
                                               "std", "prod", "logsumexp", "any", "all", "norm")},
}
