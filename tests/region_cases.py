"""Calls of regions that builtin kernels must serve: operators in a row, norm modules, functions of a model's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_tui.engine.operators import describe, lookup
from tests.kernels import Sample, draw

Case = Callable[[torch.dtype], Sample]
F = "torch.nn.functional."
OWN = "region_functions."


def region(operator: str, **arguments: Any) -> Sample:
    torch.set_num_threads(1)
    eager = lookup(operator).call(dict(arguments))
    return Sample(describe(operator, arguments, eager), arguments, eager)


def gate(act: str, *shape: int, dtype: torch.dtype, **more: Any) -> Sample:
    return region(f"{F}{act}+torch.mul", input=4 * draw(*shape, dtype=dtype), **more, other=draw(*shape, dtype=dtype, seed=3))


def halves(act: str, dtype: torch.dtype) -> Sample:
    """The two halves of one matrix, as a fused projection gives them."""
    first, second = draw(6, 128, dtype=dtype).chunk(2, dim=-1)
    return region(f"{F}{act}+torch.mul", input=first, other=second)


def affine(size: int, dtype: torch.dtype, bias: bool = True) -> dict[str, Any]:
    return {"weight": draw(size, dtype=dtype, seed=7), "bias": draw(size, dtype=dtype, seed=8) if bias else None}


def normed(*shape: int, groups: int, dtype: torch.dtype, act: str = "silu", shift: float = 0.0) -> Sample:
    image = (draw(*shape) + shift).to(dtype)
    return region(f"{F}group_norm+{F}{act}", input=image, num_groups=groups, **affine(shape[1], dtype), eps=1e-6)


def batch_normed(image: torch.Tensor, act: str = "relu") -> Sample:
    size, kind = image.shape[1], torch.float32
    statistics = {"running_mean": draw(size, dtype=kind, seed=5), "running_var": draw(size, seed=6).abs().to(kind) + 0.1}
    return region(f"{F}batch_norm+{F}{act}", input=image, **statistics, **affine(size, kind), training=False, momentum=0.1, eps=1e-5)


def summed(norm: str, *shape: int, dtype: torch.dtype, both: bool = True, other: torch.dtype | None = None, **arguments: Any) -> Sample:
    return region(f"torch.add+{norm}", input=draw(*shape, dtype=dtype), other=3 * draw(*shape, dtype=other or dtype, seed=4),
                  **arguments, returns_sum=both)


def added(act: str, *shape: int, dtype: torch.dtype, both: bool = False) -> Sample:
    return region(f"torch.add+{F}{act}", input=draw(*shape, dtype=dtype), other=draw(*shape, dtype=dtype, seed=4), returns_sum=both)


def layer(*shape: int, dtype: torch.dtype, both: bool = True, bias: bool = True, other: torch.dtype | None = None) -> Sample:
    return summed(F + "layer_norm", *shape, dtype=dtype, both=both, other=other, normalized_shape=shape[-1:],
                  **affine(shape[-1], other or dtype, bias), eps=1e-5)


def tables(positions: int, width: int, dtype: torch.dtype, batch: int = 1) -> dict[str, torch.Tensor]:
    angles = draw(batch, positions, width, seed=9) * 3
    return {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}


def heads(batch: int, count: int, positions: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """As attention has them: a view of (batch, positions, heads, width)."""
    return draw(batch, positions, count, width, dtype=dtype, seed=count).transpose(1, 2)


REGIONS: dict[str, Case] = {
    "swiglu": lambda d: gate("silu", 3, 5, 64, dtype=d),
    "swiglu odd": lambda d: gate("silu", 7, 11, 3, dtype=d),
    "swiglu halves": lambda d: halves("silu", d),
    "geglu": lambda d: gate("gelu", 4, 96, dtype=d, approximate="none"),
    "geglu tanh": lambda d: gate("gelu", 4, 96, dtype=d, approximate="tanh"),
    "sigmoid gate, broadcast": lambda d: region(F + "sigmoid+torch.mul", input=draw(9, 1, dtype=d), other=draw(9, 64, dtype=d)),
    "softplus gate": lambda d: gate("softplus", 5, 16, dtype=d, beta=1, threshold=20),
    "mish gate": lambda d: gate("mish", 5, 16, dtype=d),
    "group norm silu": lambda d: normed(2, 16, 6, 6, groups=4, dtype=d),
    "group norm silu, shifted": lambda d: normed(1, 8, 5, 7, groups=2, dtype=d, shift=100.0),
    "group norm mish": lambda d: normed(2, 8, 4, 4, groups=8, dtype=d, act="mish"),
    "batch norm relu": lambda d: batch_normed(draw(2, 6, 8, 12, dtype=d)),
    "batch norm relu, 7x7": lambda d: batch_normed(draw(2, 5, 7, 7, dtype=d)),
    "batch norm silu, channels last": lambda d: batch_normed(
        draw(2, 24, 5, 6, dtype=d).contiguous(memory_format=torch.channels_last), "silu"),
    "layer norm relu": lambda d: region(f"{F}layer_norm+{F}relu", input=draw(5, 40, dtype=d), normalized_shape=(40,),
                                        **affine(40, d), eps=1e-5),
    "add relu": lambda d: added("relu", 3, 5, 7, dtype=d),
    "add relu, both": lambda d: added("relu", 3, 5, 7, dtype=d, both=True),
    "add silu, both, channels last": lambda d: region(
        f"torch.add+{F}silu", returns_sum=True, **{name: draw(2, 8, 5, 6, dtype=d, seed=seed).contiguous(memory_format=torch.channels_last)
                                                   for name, seed in (("input", 0), ("other", 4))}),
    "add hardswish, broadcast": lambda d: region(f"torch.add+{F}hardswish", input=4 * draw(9, 64, dtype=d), other=draw(64, dtype=d, seed=3),
                                                 returns_sum=False),
    "add layer norm": lambda d: layer(2, 9, 64, dtype=d),
    "add layer norm alone": lambda d: layer(3, 72, dtype=d, both=False),
    "add layer norm, odd": lambda d: layer(5, 37, dtype=d, bias=False),
    "add layer norm, long": lambda d: layer(3, 1536, dtype=d),
    "add layer norm, two types": lambda d: layer(4, 64, dtype=d, both=False, other=torch.float32),
    "add layer norm, transposed": lambda d: region(
        f"torch.add+{F}layer_norm", input=draw(2, 40, 21, dtype=d).transpose(1, 2), other=draw(2, 21, 40, dtype=d, seed=4),
        normalized_shape=(40,), **affine(40, d), eps=1e-5, returns_sum=True),
    "add rms_norm": lambda d: summed(F + "rms_norm", 4, 48, dtype=d, normalized_shape=(48,), weight=None, eps=None),
    "add late": lambda d: summed("region_models.LateRMSNorm", 2, 5, 64, dtype=d, weight=draw(64, dtype=d), variance_epsilon=1e-6),
    "add one more": lambda d: summed("region_models.OneMoreRMSNorm", 7, 80, dtype=d, weight=draw(80, dtype=d), eps=1e-6),
    "add bare": lambda d: summed("region_models.BareRMSNorm", 7, 33, dtype=d, both=False, eps=1e-6, with_scale=False),
    "gated": lambda d: region("region_models.GatedRMSNorm", input=draw(9, 32, dtype=d), gate=4 * draw(9, 32, dtype=d, seed=2),
                              weight=draw(32, dtype=d), variance_epsilon=1e-6),
    "centred": lambda d: region("region_models.HandLayerNorm", input=draw(6, 64, dtype=d) + 5, gamma=draw(64, dtype=d),
                                beta=draw(64, dtype=d, seed=2), eps=1e-6),
    "channels": lambda d: region("region_models.ChannelsNorm", input=draw(2, 12, 5, 6, dtype=d), **affine(12, d), eps=1e-6),
    "rotary": lambda d: region(OWN + "apply_rotary_pos_emb", q=heads(2, 4, 5, 32, d), k=heads(2, 2, 5, 32, d),
                               **tables(5, 32, d, 2), unsqueeze_dim=1),
    "rotary, one token": lambda d: region(OWN + "apply_rotary_pos_emb", q=heads(1, 4, 1, 64, d), k=heads(1, 1, 1, 64, d),
                                          **tables(1, 64, d), unsqueeze_dim=1),
    "rotary, one table": lambda d: region(OWN + "apply_rotary_pos_emb", q=heads(2, 3, 4, 12, d), k=heads(2, 3, 4, 12, d),
                                          **tables(4, 12, d), unsqueeze_dim=1),
    "rotary of one": lambda d: region(OWN + "apply_rotary_to_one", x=draw(2, 7, 3, 16, dtype=d), **tables(7, 16, d, 2), unsqueeze_dim=2),
    "rotary, float32 tables": lambda d: region(OWN + "apply_rotary_to_one", x=draw(1, 7, 3, 16), **tables(7, 16, torch.float32),
                                               unsqueeze_dim=2),
    "partial rotary": lambda d: region(OWN + "apply_partial_rotary", q=heads(1, 4, 6, 32, d), k=heads(1, 2, 6, 32, d),
                                       **tables(6, 16, d), unsqueeze_dim=1),
    "rotary of neighbours": lambda d: region(OWN + "apply_rotary_neighbours", x=heads(2, 3, 6, 16, d),
                                             **{name: table[0] for name, table in tables(6, 16, d).items()}),
}
