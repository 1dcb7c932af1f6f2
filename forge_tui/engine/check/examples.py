"""Example calls of operators: small, of usual shapes, in the dtypes that kernels are written for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from forge_tui.engine.operators import bind, lookup
from forge_tui.engine.package.runtime.rows import CONVOLUTION, RENAMED, RETURNS_SUM

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ROWS = ((64, 1024), (8, 4096), (64, 256), (256, 64), (48, 768), (37, 67), (1000,), (4, 16, 128, 128), (2, 8, 16, 32))
"""Shapes of one operand: rows of powers of two and of none, a vector, batches of rows."""
PLANES = ((2, 64, 16, 16), (4, 32, 28, 28), (1, 128, 7, 7), (2, 64, 1024))

Given = dict[str, Any]


def examples(operator: str) -> Iterator[Given]:
    """Arguments by name of calls of this operator, the likeliest first; none where nothing is known of it, or of a part of it."""
    name = operator.rpartition(".")[2]
    make = _in_a_row(*operator.split("+")) if "+" in operator else MAKERS.get(name)
    if make is None:
        make = _unary if operator.startswith("torch.") and "+" not in operator else None
    if make is None:
        return
    for dtype in DTYPES:
        yield from make(dtype)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _unary(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ROWS:
        yield {"input": draw(*shape, dtype=dtype)}


def _binary(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ROWS:
        yield {"input": draw(*shape, dtype=dtype), "other": draw(*shape, dtype=dtype, seed=1)}


def _along(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ROWS:
        yield {"input": draw(*shape, dtype=dtype), "dim": -1}
    if dtype != torch.float32:
        for shape in ROWS[:3]:
            yield {"input": draw(*shape, dtype=dtype), "dim": -1, "dtype": torch.float32}


def _reduced(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ROWS:
        yield {"input": draw(*shape, dtype=dtype), "dim": -1}
        yield {"input": draw(*shape, dtype=dtype), "dim": (-1,)}
        yield {"input": draw(*shape, dtype=dtype)}


def _layer_norm(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ROWS:
        size = shape[-1]
        yield {"input": draw(*shape, dtype=dtype), "normalized_shape": (size,), "weight": draw(size, dtype=dtype, seed=1),
               "bias": draw(size, dtype=dtype, seed=2)}
        yield {"input": draw(*shape, dtype=dtype), "normalized_shape": (size,)}


def _rms_norm(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ROWS:
        yield {"input": draw(*shape, dtype=dtype), "normalized_shape": (shape[-1],), "weight": draw(shape[-1], dtype=dtype, seed=1), "eps": 1e-6}


def _group_norm(dtype: torch.dtype) -> Iterator[Given]:
    for shape in (*PLANES, (1, 128, 128, 128)):
        yield {"input": draw(*shape, dtype=dtype), "num_groups": 32 if shape[1] % 32 == 0 else 8,
               "weight": draw(shape[1], dtype=dtype, seed=1), "bias": draw(shape[1], dtype=dtype, seed=2)}


def _batch_norm(dtype: torch.dtype) -> Iterator[Given]:
    for shape in PLANES:
        c = shape[1]
        yield {"input": draw(*shape, dtype=dtype), "running_mean": draw(c, dtype=dtype, seed=1), "running_var": draw(c, dtype=dtype, seed=2).abs(),
               "weight": draw(c, dtype=dtype, seed=3), "bias": draw(c, dtype=dtype, seed=4), "training": False}


def _pool(dtype: torch.dtype) -> Iterator[Given]:
    for shape in PLANES[:3]:
        yield {"input": draw(*shape, dtype=dtype), "kernel_size": 2}
        yield {"input": draw(*shape, dtype=dtype), "kernel_size": 3, "stride": 2, "padding": 1}


def _adaptive(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ((2, 64, 7, 7), *PLANES[:3]):
        for size in ((1, 1), 1, (7, 7)):
            yield {"input": draw(*shape, dtype=dtype), "output_size": size}


def _linear(dtype: torch.dtype) -> Iterator[Given]:
    for m, n, k in ((64, 128, 256), (128, 128, 64), (32, 64, 48)):
        yield {"input": draw(m, k, dtype=dtype), "weight": draw(n, k, dtype=dtype, seed=1), "bias": draw(n, dtype=dtype, seed=2)}
        yield {"input": draw(m, k, dtype=dtype), "weight": draw(n, k, dtype=dtype, seed=1)}


def _matmul(second: str) -> Callable[[torch.dtype], Iterator[Given]]:
    def make(dtype: torch.dtype) -> Iterator[Given]:
        for m, n, k in ((128, 128, 128), (64, 128, 256), (33, 65, 48)):
            yield {"input": draw(m, k, dtype=dtype), second: draw(k, n, dtype=dtype, seed=1)}
        yield {"input": draw(4, 64, 64, dtype=dtype), second: draw(4, 64, 64, dtype=dtype, seed=1)}
    return make


def _convolution(spatial: int) -> Callable[[torch.dtype], Iterator[Given]]:
    def make(dtype: torch.dtype) -> Iterator[Given]:
        side = {1: (128,), 2: (28, 28), 3: (8, 12, 12)}[spatial]
        for groups, padding in ((1, 1), (1, 0), (16, 1)):
            yield {"input": draw(2, 16, *side, dtype=dtype), "weight": draw(32, 16 // groups, *(3,) * spatial, dtype=dtype, seed=1),
                   "bias": draw(32, dtype=dtype, seed=2), "stride": 1, "padding": padding, "groups": groups}
            yield {"input": draw(2, 16, *side, dtype=dtype), "weight": draw(32, 16 // groups, *(3,) * spatial, dtype=dtype, seed=1),
                   "stride": 1, "padding": padding, "groups": groups}
    return make


def _embedding(dtype: torch.dtype) -> Iterator[Given]:
    for kind in (torch.int64, torch.int32):
        for width in (64, 256, 768):
            yield {"input": torch.randint(0, 500, (4, 64), generator=torch.Generator().manual_seed(0)).to(kind),
                   "weight": draw(500, width, dtype=dtype, seed=1)}


def _attention(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ((1, 4, 128, 64), (2, 2, 64, 32), (1, 2, 96, 128)):
        for causal in (False, True):
            yield {**{name: draw(*shape, dtype=dtype, seed=seed) for seed, name in enumerate(("query", "key", "value"))}, "is_causal": causal}


def _topk(dtype: torch.dtype) -> Iterator[Given]:
    for shape in ROWS:
        yield {"input": draw(*shape, dtype=dtype), "k": min(8, shape[-1]), "dim": -1}


def _cat(dtype: torch.dtype) -> Iterator[Given]:
    for dim in (-1, 0):
        yield {"tensors": [draw(64, 256, dtype=dtype), draw(64, 256, dtype=dtype, seed=1)], "dim": dim}


def _in_a_row(first: str, *rest: str) -> Callable[[torch.dtype], Iterator[Given]] | None:
    """Of operators in a row (`engine/operators/regions.py`): as capture has them, every argument there."""
    steps = [first, *rest]
    if any(not step.startswith("torch.") for step in steps):
        return None

    def make(dtype: torch.dtype) -> Iterator[Given]:
        if first.startswith(CONVOLUTION):
            for given in _whole(first, dtype):
                norm = next(_whole(rest[0], dtype, given["weight"].shape[0]), None)
                if norm is not None:
                    yield given | {RENAMED.get(name, name): value for name, value in norm.items() if name != "input"}
        elif first == "torch.add":
            for given in _whole(rest[0], dtype):
                both = {"input": given["input"], "other": draw(*given["input"].shape, dtype=dtype, seed=9), **given}
                yield from (both | {RETURNS_SUM: too} for too in ((False, True)))
        else:
            for given in _whole(first, dtype):
                yield given | ({"other": draw(*given["input"].shape, dtype=dtype, seed=9)} if rest == ("torch.mul",) else {})

    return make


def _whole(operator: str, dtype: torch.dtype, channels: int | None = None) -> Iterator[Given]:
    """Calls of one operator with every argument, defaults too. channels: of a batch norm behind a convolution of as many."""
    for given in MAKERS.get(operator.rpartition(".")[2], _unary)(dtype):
        if channels is None or channels == given["input"].shape[1]:
            yield bind(lookup(operator).function, (), given)


MAKERS: dict[str, Callable[[torch.dtype], Iterator[Given]]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "pow", "maximum", "minimum"), _binary),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "sort", "argsort", "argmax", "argmin", "logsumexp"), _along),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "norm"), _reduced),
    **dict.fromkeys(("max_pool2d", "avg_pool2d"), _pool),
    "layer_norm": _layer_norm, "rms_norm": _rms_norm, "group_norm": _group_norm, "batch_norm": _batch_norm,
    "adaptive_avg_pool2d": _adaptive, "linear": _linear, "matmul": _matmul("other"), "mm": _matmul("mat2"), "bmm": _matmul("mat2"),
    "conv1d": _convolution(1), "conv2d": _convolution(2), "conv3d": _convolution(3), "embedding": _embedding,
    "scaled_dot_product_attention": _attention, "topk": _topk, "cat": _cat,
}
