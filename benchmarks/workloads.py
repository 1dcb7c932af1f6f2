"""Operator calls of real models at their true size: ResNet-50, the SD3.5 VAE decoder, Gemma 4 E2B, Qwen3.5-35B-A3B, Whisper, Llama 3.1."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

MASKED = -3.3895e38
"""What transformers adds to masked bfloat16 scores: the dtype's lowest value, not minus infinity."""


@dataclass(frozen=True)
class Workload:
    """One call: a function of torch on tensors of the real shape, dtype and kind of values."""

    model: str
    function: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[torch.Tensor], tuple[tuple[Any, ...], dict[str, Any]]]
    """Positional and keyword arguments from the main input."""
    values: str = "normal"
    """`normal`, `positive` (after a ReLU) or `causal` (scores with the upper triangle masked)."""

    @property
    def label(self) -> str:
        dtype = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[str(self.dtype).removeprefix("torch.")]
        name = getattr(self.function, "__name__", "call")
        return f"{name} {dtype} {tuple(self.shape)}"

    def arguments(self, device: str, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(self.shape, generator=generator, device=device, dtype=torch.float32)
        if self.values == "positive":
            x = x.relu_()
        elif self.values == "causal":
            x = x.masked_fill_(torch.ones(self.shape[-2:], device=device, dtype=torch.bool).triu(1), MASKED)
        return self.make(x.to(self.dtype))


def _plain(x: torch.Tensor, *rest: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (x, *rest), keywords


def _affine(x: torch.Tensor, channels: int, *, offset: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator(x.device).manual_seed(1)
    found = [torch.randn(channels, generator=generator, device=x.device) * 0.1 + base for base in (1.0, 0.0)]
    return [tensor.to(x.dtype) for tensor in found[:2 if offset else 1]]


def _group_norm(x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (x, 32, *_affine(x, x.shape[1]), 1e-6), {}


def _layer_norm(x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (x, (x.shape[-1],), *_affine(x, x.shape[-1]), 1e-5), {}


def _rms_norm(x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (x, (x.shape[-1],), *_affine(x, x.shape[-1], offset=False), 1e-6), {}


def _batch_norm(x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    scale, shift = (tensor.float().to(x.dtype) for tensor in _affine(x, x.shape[1]))
    mean, variance = torch.zeros_like(scale) + 0.1, torch.ones_like(scale) * 1.3
    return (x, mean, variance, scale, shift, False, 0.1, 1e-5), {}


def _rows(model: str, function: Callable[..., Any], dtype: torch.dtype, make: Any, *shapes: tuple[int, ...],
          values: str = "normal") -> list[Workload]:
    return [Workload(model, function, shape, dtype, make, values) for shape in shapes]


_to_float = functools.partial(_plain, dim=-1, dtype=torch.float32)
_same = functools.partial(_plain, dim=-1)
_half, _bf16, _float = torch.float16, torch.bfloat16, torch.float32

WORKLOADS: list[Workload] = [
    *_rows("ResNet-50", F.adaptive_avg_pool2d, _float, lambda x: _plain(x, (1, 1)),
           (1, 2048, 7, 7), (32, 2048, 7, 7), (1, 2048, 12, 12), (32, 2048, 12, 12), values="positive"),
    *_rows("ResNet-50", F.adaptive_avg_pool2d, _half, lambda x: _plain(x, (1, 1)), (32, 2048, 7, 7), values="positive"),
    *_rows("ResNet-50", F.relu, _float, _plain, (32, 256, 56, 56)),
    *_rows("ResNet-50", F.batch_norm, _float, _batch_norm, (32, 64, 112, 112), (32, 2048, 7, 7)),
    *_rows("ResNet-50", F.max_pool2d, _float, lambda x: _plain(x, 3, 2, 1), (32, 64, 112, 112), values="positive"),
    *_rows("SD3.5 VAE", F.group_norm, _bf16, _group_norm, (1, 512, 128, 128), (1, 512, 16384), (1, 512, 256, 256),
           (1, 512, 512, 512), (1, 256, 512, 512), (1, 256, 1024, 1024), (1, 128, 1024, 1024)),
    *_rows("SD3.5 VAE", F.group_norm, _half, _group_norm, (1, 512, 64, 64), (2, 512, 128, 128), (2, 256, 512, 512)),
    *_rows("SD3.5 VAE", F.silu, _bf16, _plain, (1, 128, 1024, 1024)),
    *_rows("Gemma 4 E2B", F.softmax, _bf16, _to_float, (1, 8, 512, 512), (1, 8, 2048, 2048), values="causal"),
    *_rows("Gemma 4 E2B", F.softmax, _bf16, _to_float, (1, 8, 1, 513), (1, 8, 1, 2049)),
    *_rows("Gemma 4 E2B", F.gelu, _bf16, lambda x: _plain(x, approximate="tanh"), (1, 512, 6144)),
    *_rows("Gemma 4 E2B", F.rms_norm, _bf16, _rms_norm, (1, 512, 1536), (16384, 8192)),
    *_rows("Qwen3.5-35B-A3B", F.softmax, _bf16, _to_float, (512, 256), (2048, 256)),
    *_rows("Qwen3.5-35B-A3B", F.softmax, _bf16, _to_float, (1, 16, 2048, 2048), values="causal"),
    *_rows("Qwen3.5-35B-A3B", F.silu, _bf16, _plain, (512, 8192)),
    *_rows("Whisper base", F.softmax, _float, _same, (1, 8, 1500, 1500)),
    *_rows("Whisper base", F.layer_norm, _float, _layer_norm, (1, 1500, 512)),
    *_rows("Whisper large-v3", F.softmax, _half, _same, (1, 20, 1500, 1500)),
    *_rows("Whisper large-v3", F.layer_norm, _half, _layer_norm, (1, 1500, 1280)),
    *_rows("Whisper large-v3", F.gelu, _half, _plain, (1, 1500, 5120)),
    *_rows("Llama 3.1 8B", F.softmax, _bf16, _to_float, (1, 32, 512, 512), (1, 32, 2048, 2048), values="causal"),
    *_rows("study", F.softmax, _bf16, _same, (8, 16, 512, 2048), (8, 8, 4096, 4096), (1, 8, 512, 512)),
    *_rows("study", F.layer_norm, _bf16, _layer_norm, (16384, 8192)),
]
