"""Calls of the row-wise operators and batch_norm that builtin kernels must serve: lengths, layouts, options and values."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tests.kernels import Sample, draw, sample

Case = Callable[[torch.dtype], Sample]
INF = float("inf")


def _masked(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Scores with a mask: some -inf, the finite kind of masking, one row all -inf, one with NaN, one with +inf, one constant."""
    scores = 4 * draw(*shape, dtype=torch.float32)
    scores[draw(*shape, seed=5) > 0.8] = -INF
    flat = scores.view(-1, shape[-1])
    flat[0] = -INF
    flat[1, 0] = float("nan")
    flat[2, -1] = INF
    flat[3] = 2.5
    flat[4, ::2] = -3.3e38 if dtype != torch.float16 else -6e4
    flat[5, :-1] = -INF
    return scores.to(dtype)


def _shifted(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A mean far from zero: what E[x^2] - E[x]^2 gets wrong."""
    return (draw(*shape) + 300).to(dtype)


def _cut(rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """An address off by one element."""
    return draw(rows * cols + 1, dtype=dtype)[1:].view(rows, cols)


def _nhwc(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return draw(*shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def _affine(size: int, dtype: torch.dtype, bias: bool = True) -> dict[str, torch.Tensor]:
    found = {"weight": draw(size, dtype=dtype, seed=7)}
    return found | ({"bias": draw(size, dtype=dtype, seed=8)} if bias else {})


SOFTMAX: dict[str, Case] = {
    "masked": lambda d: sample(F.softmax, _masked(2, 3, 4, 40, dtype=d), dim=-1),
    "masked, odd": lambda d: sample(F.softmax, _masked(11, 37, dtype=d), dim=1),
    "masked, block": lambda d: sample(F.softmax, _masked(9, 520, dtype=d), dim=-1),
    "to float32": lambda d: sample(F.softmax, _masked(3, 5, 64, dtype=d), dim=-1, dtype=torch.float32),
    "to bfloat16": lambda d: sample(F.softmax, draw(7, 33, dtype=d), dim=-1, dtype=torch.bfloat16),
    "one": lambda d: sample(F.softmax, draw(5, 1, dtype=d), dim=1),
    "two": lambda d: sample(F.softmax, draw(2, 2, dtype=d), dim=1),
    "scalar": lambda d: sample(F.softmax, draw(dtype=d), dim=0),
    "vector": lambda d: sample(F.softmax, draw(257, dtype=d), dim=0),
    "513": lambda d: sample(F.softmax, draw(1, 3, 1, 513, dtype=d), dim=-1),
    "few rows": lambda d: sample(F.softmax, draw(2, 2048, dtype=d), dim=-1),
    "long": lambda d: sample(F.softmax, draw(1, 9001, dtype=d), dim=-1),
    "long, aligned": lambda d: sample(F.softmax, draw(1, 9216, dtype=d), dim=-1),
    "misaligned": lambda d: sample(F.softmax, _cut(4, 48, d), dim=-1),
    "no rows": lambda d: sample(F.softmax, draw(0, 5, dtype=d), dim=-1),
    "no columns": lambda d: sample(F.softmax, draw(3, 0, dtype=d), dim=-1),
    "channels": lambda d: sample(F.softmax, draw(2, 21, 5, 8, dtype=d), dim=1),
    "channels, odd": lambda d: sample(F.softmax, draw(2, 3, 7, 5, dtype=d), dim=1),
    "first": lambda d: sample(F.softmax, draw(40, 40, dtype=d), dim=0),
    "inner, masked": lambda d: sample(F.softmax, _masked(40, 16, dtype=d), dim=0),
    "heads swapped": lambda d: sample(F.softmax, draw(2, 6, 3, 32, dtype=d).transpose(1, 2), dim=-1),
    "transposed": lambda d: sample(F.softmax, draw(3, 24, 10, dtype=d).transpose(1, 2), dim=-1),
    "channels_last": lambda d: sample(F.softmax, _nhwc(2, 24, 3, 4, dtype=d), dim=1),
    "cut columns": lambda d: sample(F.softmax, draw(6, 64, dtype=d)[:, 8:40], dim=-1),
}

LOG_SOFTMAX: dict[str, Case] = {
    "masked": lambda d: sample(F.log_softmax, _masked(2, 4, 40, dtype=d), dim=-1),
    "vocabulary": lambda d: sample(F.log_softmax, draw(1, 5003, dtype=d), dim=-1),
    "long": lambda d: sample(F.log_softmax, draw(1, 9216, dtype=d), dim=-1),
    "to float32": lambda d: sample(F.log_softmax, draw(7, 96, dtype=d), dim=-1, dtype=torch.float32),
    "channels": lambda d: sample(F.log_softmax, draw(2, 21, 4, 6, dtype=d), dim=1),
    "one": lambda d: sample(F.log_softmax, draw(4, 1, dtype=d), dim=-1),
}

LAYER_NORM: dict[str, Case] = {
    "384": lambda d: sample(F.layer_norm, draw(2, 9, 384, dtype=d), (384,), **_affine(384, d)),
    "odd": lambda d: sample(F.layer_norm, draw(5, 77, dtype=d), (77,), **_affine(77, d)),
    "far from zero": lambda d: sample(F.layer_norm, _shifted(6, 256, dtype=d), (256,), **_affine(256, d)),
    "constant": lambda d: sample(F.layer_norm, torch.full((3, 64), 1.7).to(d), (64,), **_affine(64, d)),
    "no bias": lambda d: sample(F.layer_norm, draw(3, 96, dtype=d), (96,), **_affine(96, d, bias=False)),
    "bare": lambda d: sample(F.layer_norm, draw(3, 1000, dtype=d), (1000,), eps=1e-3),
    "one": lambda d: sample(F.layer_norm, draw(3, 1, dtype=d), (1,)),
    "two dims": lambda d: sample(F.layer_norm, draw(3, 6, 10, dtype=d), (6, 10), weight=draw(6, 10, dtype=d, seed=7)),
    "long": lambda d: sample(F.layer_norm, draw(1, 9000, dtype=d), (9000,), **_affine(9000, d)),
    "whole": lambda d: sample(F.layer_norm, _shifted(1, 9001, dtype=d), (1, 9001)),
    "misaligned": lambda d: sample(F.layer_norm, _cut(4, 48, d), (48,), **_affine(48, d)),
    "misaligned weight": lambda d: sample(F.layer_norm, draw(4, 48, dtype=d), (48,), weight=draw(49, dtype=d, seed=7)[1:]),
    "permuted": lambda d: sample(F.layer_norm, draw(2, 24, 3, 5, dtype=d).permute(0, 2, 3, 1), (24,), **_affine(24, d)),
    "tokens swapped": lambda d: sample(F.layer_norm, draw(3, 4, 40, dtype=d).transpose(0, 1), (40,), **_affine(40, d)),
    "channels_last whole": lambda d: sample(F.layer_norm, _nhwc(2, 6, 4, 5, dtype=d), (6, 4, 5), weight=draw(6, 4, 5, dtype=d, seed=7)),
    "no rows": lambda d: sample(F.layer_norm, draw(0, 8, dtype=d), (8,)),
}

RMS_NORM: dict[str, Case] = {
    "576": lambda d: sample(F.rms_norm, draw(2, 5, 576, dtype=d), (576,), draw(576, dtype=d, seed=7), 1e-6),
    "no eps": lambda d: sample(F.rms_norm, 1e-3 * draw(4, 64, dtype=d), (64,)),
    "odd": lambda d: sample(F.rms_norm, draw(3, 131, dtype=d), (131,), eps=1e-5),
    "zeros": lambda d: sample(F.rms_norm, torch.zeros(3, 32, dtype=d), (32,), eps=1e-5),
    "long": lambda d: sample(F.rms_norm, draw(2, 8192, dtype=d), (8192,), draw(8192, dtype=d, seed=7), 1e-6),
    "heads": lambda d: sample(F.rms_norm, draw(2, 3, 5, 16, dtype=d).transpose(1, 2), (16,), draw(16, dtype=d, seed=7), 1e-6),
}

GROUP_NORM: dict[str, Case] = {
    "planes": lambda d: sample(F.group_norm, draw(2, 12, 8, 8, dtype=d), 3, **_affine(12, d)),
    "7x7": lambda d: sample(F.group_norm, draw(2, 8, 7, 7, dtype=d), 2, **_affine(8, d)),
    "instance": lambda d: sample(F.group_norm, draw(2, 5, 6, 7, dtype=d), 5, **_affine(5, d)),
    "one group": lambda d: sample(F.group_norm, draw(2, 6, 33, dtype=d), 1, **_affine(6, d, bias=False)),
    "far from zero": lambda d: sample(F.group_norm, _shifted(2, 8, 16, 16, dtype=d), 2, **_affine(8, d)),
    "bare": lambda d: sample(F.group_norm, draw(3, 6, 5, dtype=d), 2, eps=1e-3),
    "no space": lambda d: sample(F.group_norm, draw(4, 24, dtype=d), 3, **_affine(24, d)),
    "video": lambda d: sample(F.group_norm, draw(1, 4, 3, 4, 5, dtype=d), 2, **_affine(4, d)),
    "long": lambda d: sample(F.group_norm, draw(1, 16, 32, 32, dtype=d), 2, **_affine(16, d)),
    "channels_last": lambda d: sample(F.group_norm, _nhwc(2, 16, 5, 6, dtype=d), 4, **_affine(16, d)),
    "channels_last, odd": lambda d: sample(F.group_norm, _nhwc(2, 9, 5, 3, dtype=d), 3, **_affine(9, d)),
    "channels_last, long": lambda d: sample(F.group_norm, _nhwc(1, 32, 24, 24, dtype=d), 2, **_affine(32, d)),
    "nothing": lambda d: sample(F.group_norm, draw(0, 6, 4, 4, dtype=d), 2),
}


def _batch(x: torch.Tensor, affine: bool = True, kind: torch.dtype = torch.float32) -> Sample:
    size = x.shape[1]
    named = {"weight": draw(size, dtype=kind, seed=7), "bias": draw(size, dtype=kind, seed=8)} if affine else {}
    return sample(F.batch_norm, x, draw(size, dtype=kind, seed=5), draw(size, seed=6).abs().to(kind) + 0.1, **named)


BATCH_NORM: dict[str, Case] = {
    "planes": lambda d: _batch(draw(2, 6, 8, 12, dtype=d)),
    "7x7": lambda d: _batch(draw(2, 5, 7, 7, dtype=d)),
    "small planes": lambda d: _batch(draw(2, 5, 3, 3, dtype=d)),
    "bare": lambda d: _batch(draw(2, 4, 8, 8, dtype=d), affine=False),
    "one type": lambda d: _batch(draw(2, 4, 8, 8, dtype=d), kind=d),
    "channels_last": lambda d: _batch(_nhwc(2, 24, 5, 6, dtype=d)),
    "channels_last, odd": lambda d: _batch(_nhwc(2, 7, 5, 3, dtype=d)),
    "matrix": lambda d: _batch(draw(9, 40, dtype=d)),
    "1x1": lambda d: _batch(draw(3, 10, 1, 1, dtype=d)),
    "one channel": lambda d: _batch(draw(3, 1, 9, 9, dtype=d)),
    "sequence": lambda d: _batch(draw(2, 6, 50, dtype=d)),
    "nothing": lambda d: _batch(draw(0, 6, 4, 4, dtype=d)),
    "misaligned": lambda d: _batch(_cut(6, 64, d).view(1, 6, 8, 8)),
    "large plane": lambda d: _batch(draw(1, 2, 64, 72, dtype=d)),
}

FAMILIES: dict[str, dict[str, Case]] = {
    "softmax": SOFTMAX, "log_softmax": LOG_SOFTMAX, "layer_norm": LAYER_NORM, "rms_norm": RMS_NORM, "group_norm": GROUP_NORM,
    "batch_norm": BATCH_NORM,
}
