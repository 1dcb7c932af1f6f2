"""Bytes and arithmetic operations of a call, by formula.

A multiplication, an addition, a comparison and one transcendental function each count as one operation; a fused
multiply-add counts as two. Copies and casts have none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from forge_tui.engine.operators.regions import is_region
from forge_tui.specs import Call, Items, TensorSpec, Value

_F = "torch.nn.functional."

REGION = (("rms", 4), ("norm", 8), ("glu", 5), ("mul", 5), ("rot", 3), ("rope", 3))
"""Operations for each element of the results of a region, by what is in its name: RMSNorm's square, sum, scale and weight; a gate's
activation and product; of a rotation two products and a sum."""

PER_OUTPUT = {
    "add": 1, "sub": 1, "rsub": 1, "mul": 1, "div": 1, "pow": 1, "neg": 1, "abs": 1, "sqrt": 1, "rsqrt": 2, "exp": 1,
    "log": 1, "sin": 1, "cos": 1, "tanh": 1, "erf": 1, "reciprocal": 1, "maximum": 1, "minimum": 1, "clamp": 2,
    "relu": 1, "relu6": 2, "leaky_relu": 2, "sigmoid": 3, "silu": 4, "gelu": 5, "mish": 6, "softplus": 4, "elu": 3,
    "hardswish": 5, "hardsigmoid": 4, "hardtanh": 2, "logsigmoid": 4, "softsign": 3, "square": 1, "remainder": 1,
    "floor_divide": 1, "lt": 1, "le": 1, "gt": 1, "ge": 1, "eq": 1, "ne": 1, "where": 1, "masked_fill": 1,
    "bitwise_and": 1, "bitwise_or": 1, "bitwise_not": 1, "logical_and": 1, "logical_or": 1, "logical_not": 1,
    "addcmul": 3, "addcdiv": 3, "lerp": 3, "atan2": 1, "__rdiv__": 1, "log1p": 2, "expm1": 2, "prelu": 2, "glu": 4,
    # softmax: maximum, subtract, exp, sum, divide; the normalizations: mean 1, variance 3, normalize 2, affine 2.
    "softmax": 5, "log_softmax": 5, "softmin": 6, "layer_norm": 8, "group_norm": 8, "instance_norm": 8, "rms_norm": 4,
    "batch_norm": 4, "normalize": 3, "local_response_norm": 6, "cosine_similarity": 6,
}
"""Operations for each element of the result."""

PER_INPUT = {"sum": 1, "mean": 1, "amax": 1, "amin": 1, "max": 1, "min": 1, "argmax": 1, "argmin": 1, "prod": 1,
             "var": 4, "std": 4, "norm": 2, "cumsum": 1, "logsumexp": 3, "any": 1, "all": 1,
             "adaptive_avg_pool1d": 1, "adaptive_avg_pool2d": 1, "adaptive_avg_pool3d": 1, "adaptive_max_pool2d": 1}
"""Operations for each element of the input."""


def operations(call: Call) -> int:
    """Arithmetic operations of one call; 0 where no formula is known."""
    short = call.operator.rpartition(".")[2]
    if not call.outputs:
        return 0
    if is_region(call.operator):
        first = _SPECIAL.get(call.operator.partition("+")[0].rpartition(".")[2]) if "+" in call.operator else None
        return sum(map(_region_factor, call.operator.split("+"))) * max(spec.numel for spec in call.outputs) + (first(call) if first else 0)
    special = _SPECIAL.get(short)
    if special is not None:
        return special(call)
    if short in PER_OUTPUT:
        return PER_OUTPUT[short] * call.outputs[0].numel
    if short in PER_INPUT:
        return PER_INPUT[short] * max((spec.numel for _, spec in call.tensors()), default=0)
    return 0


def products_summed(call: Call) -> float:
    """Products in one result of a matrix product or a convolution, or of a region that begins with one; 0 for all other operators."""
    short = call.operator.partition("+")[0].rpartition(".")[2]
    if short not in _SPECIAL or "pool" in short or not call.outputs or not call.outputs[0].numel:
        return 0.0
    return _SPECIAL[short](call) / (2 * call.outputs[0].numel)


def _region_factor(path: str) -> int:
    short = path.rpartition(".")[2]
    return PER_OUTPUT.get(short) or next((count for word, count in REGION if word in short.lower()), 0)


def bytes_moved(call: Call) -> int:
    """Bytes of every input read once and every output written once; of a table only as much as its indices reach.

    Broadcast dimensions (stride 0) are read once.
    """
    written = sum(_stored_bytes(spec) for spec in call.outputs)
    return written + sum(_read_bytes(call, name, spec) for name, spec in call.tensors())


def _read_bytes(call: Call, name: str, spec: TensorSpec) -> int:
    table = _TABLES.get(call.operator)
    if table == name and call.outputs:
        return min(_stored_bytes(spec), call.outputs[0].numel * spec.itemsize)
    return _stored_bytes(spec)


_TABLES = {_F + "embedding": "weight", "torch.gather": "input", "torch.index_select": "input"}
"""Operators of which one input is looked into, not read through."""


def _stored_bytes(spec: TensorSpec) -> int:
    return prod(size for size, stride in zip(spec.shape, spec.stride, strict=True) if stride != 0) * spec.itemsize


def _tensor(call: Call, name: str) -> TensorSpec | None:
    value = call.arguments.get(name)
    return value if isinstance(value, TensorSpec) else None


def _bias(call: Call) -> int:
    return call.outputs[0].numel if _tensor(call, "bias") is not None else 0


def _linear(call: Call) -> int:
    source = _tensor(call, "input")
    return 2 * call.outputs[0].numel * source.shape[-1] + _bias(call) if source and source.shape else 0


def _matmul(call: Call) -> int:
    source = _tensor(call, "input")
    return 2 * call.outputs[0].numel * source.shape[-1] if source and source.shape else 0


def _addmm(call: Call) -> int:
    for name in ("mat1", "batch1"):
        source = _tensor(call, name)
        if source and source.shape:
            return (2 * source.shape[-1] + 2) * call.outputs[0].numel
    return 0


def _convolution(call: Call) -> int:
    """weight (out, in / groups, *kernel): each output element is a dot product over the last two groups of sizes."""
    weight = _tensor(call, "weight")
    return 2 * call.outputs[0].numel * prod(weight.shape[1:]) + _bias(call) if weight else 0


def _transposed_convolution(call: Call) -> int:
    """weight (in, out / groups, *kernel): each input element is spread over them."""
    source, weight = _tensor(call, "input"), _tensor(call, "weight")
    return 2 * source.numel * prod(weight.shape[1:]) + _bias(call) if source and weight else 0


def _attention(call: Call) -> int:
    """Two products and a softmax over (batch, heads, queries, keys); a causal mask halves nothing here."""
    query, key, value = (_tensor(call, name) for name in ("query", "key", "value"))
    if not (query and key and value):
        return 0
    scores = prod(query.shape[:-1]) * key.shape[-2]
    return scores * (2 * query.shape[-1] + 2 * value.shape[-1] + 5)


def _pool(call: Call) -> int:
    return call.outputs[0].numel * _window(call)


def _window(call: Call) -> int:
    rank = int(call.operator[-2]) if call.operator[-2:-1].isdigit() else 1
    size: Value = call.arguments.get("kernel_size")
    if isinstance(size, Items):
        sizes = [item for item in size.items if isinstance(item, int)]
        return prod(sizes) if len(sizes) == rank else prod(sizes) ** rank
    return size**rank if isinstance(size, int) else 0


_SPECIAL: dict[str, Callable[[Call], int]] = {
    "linear": _linear, "matmul": _matmul, "mm": _matmul, "bmm": _matmul, "mv": _matmul, "dot": _matmul,
    "addmm": _addmm, "baddbmm": _addmm, "scaled_dot_product_attention": _attention,
    **{f"conv{rank}d": _convolution for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _transposed_convolution for rank in (1, 2, 3)},
    **{f"{kind}_pool{rank}d": _pool for kind in ("avg", "max") for rank in (1, 2, 3)},
}
