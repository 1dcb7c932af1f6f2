"""Models of the reference study at their true size with random weights, from the architecture files of a folder of JSON.

Each is a `build(folder) -> model` and `inputs(model) -> arguments`; `benchmarks.models` writes a project around one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

SEED = 0


def architecture(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def _transformers(folder: Path, name: str, attention: str = "eager", **changes: Any) -> nn.Module:
    """The whole model of an architecture file, its weights drawn from SEED."""
    import transformers

    record = architecture(folder, name)
    config = getattr(transformers, record["config_class"])(**{**record["config"], **changes})
    dtype = getattr(torch, record["dtype"].split()[0])
    torch.manual_seed(SEED)
    kind = getattr(transformers, record["transformers_class"])
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # billions of random numbers take a CPU a minute
        return kind._from_config(config, attn_implementation=attention, dtype=dtype).eval()


class Logits(nn.Module):
    """A language model without a cache: token ids to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.model(input_ids=input_ids, use_cache=False).logits}


class Decode(nn.Module):
    """One token after `context` others: the cache is cut back after each step, so that every step is the same."""

    def __init__(self, model: nn.Module, context: int) -> None:
        super().__init__()
        self.model, self.context = model, context
        self._cache: Any = None

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """`input_ids`: [batch, 1]."""
        if self._cache is None or self._cache_key != (input_ids.device, self.model.dtype):
            before = torch.arange(self.context, device=input_ids.device).expand(input_ids.shape[0], -1) % 1000
            self._cache = self.model(input_ids=before, use_cache=True).past_key_values
            self._cache_key = (input_ids.device, self.model.dtype)
        result = self.model(input_ids=input_ids, past_key_values=self._cache, use_cache=True)
        self._cache.crop(-input_ids.shape[1])
        return {"logits": result.logits}

    def __deepcopy__(self, memo: dict[int, Any]) -> Decode:
        import copy

        return Decode(copy.deepcopy(self.model, memo), self.context)


class Block(nn.Module):
    """Two norms, activations and convolutions beside a shortcut."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels, eps=1e-6), nn.Conv2d(channels, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, out, eps=1e-6), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(hidden)))


class Attention(nn.Module):
    """One head over all positions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x.flatten(2)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(self.q(rows)[:, None], self.k(rows)[:, None], self.v(rows)[:, None])
        return x + self.out(mixed[:, 0]).transpose(1, 2).reshape(x.shape)


class Up(nn.Module):
    """Blocks, then twice the size."""

    def __init__(self, channels: int, out: int, blocks: int, larger: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(channels if not number else out, out) for number in range(blocks)))
        self.conv = nn.Conv2d(out, out, 3, padding=1) if larger else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(x)
        return x if self.conv is None else self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class VaeDecoder(nn.Module):
    """The decoder of an AutoencoderKL, written out from its architecture file."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        sizes = list(reversed(config["block_out_channels"]))
        self.conv_in = nn.Conv2d(config["latent_channels"], sizes[0], 3, padding=1)
        self.middle = nn.Sequential(Block(sizes[0], sizes[0]), Attention(sizes[0]), Block(sizes[0], sizes[0]))
        self.up = nn.Sequential(*(Up(sizes[max(at - 1, 0)], size, config["layers_per_block"] + 1, at + 1 < len(sizes))
                                  for at, size in enumerate(sizes)))
        self.norm = nn.GroupNorm(config["norm_num_groups"], sizes[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(sizes[-1], config["out_channels"], 3, padding=1)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """`latent`: [batch, latent channels, height / 8, width / 8]; the result: [batch, 3, height, width]."""
        return self.conv_out(F.silu(self.norm(self.up(self.middle(self.conv_in(latent))))))


def vae_decoder(folder: Path) -> nn.Module:
    torch.manual_seed(SEED)
    return VaeDecoder(architecture(folder, "stable-diffusion-3.5-medium-vae")["config"]).to(torch.bfloat16).eval()


def gemma(folder: Path) -> nn.Module:
    """Its attention scales by nothing and leaves that to the query norm's weights. Drawn as ones they make each softmax pick one position
    and every rounding grow to the size of the outputs; 1 over the root of the head's size is the usual scale."""
    model = _transformers(folder, "gemma-4-E2B")
    for name, parameter in model.named_parameters():
        if name.endswith("q_norm.weight"):
            parameter.data.fill_(parameter.numel() ** -0.5)
    return model


def whisper_encoder(folder: Path) -> nn.Module:
    return _transformers(folder, "whisper-large-v3").model.encoder


def _tokens(*shape: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"input_ids": torch.randint(0, 1000, shape, generator=torch.Generator().manual_seed(1))}


def _numbers(dtype: torch.dtype, *shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype),)


MODELS: dict[str, tuple[Callable[[Path], nn.Module], Callable[[], Any], float | None]] = {
    "vae-decode-1024": (vae_decoder, _numbers(torch.bfloat16, 1, 16, 128, 128), 1.5),
    "gemma-4-e2b-prefill-512": (lambda folder: Logits(gemma(folder)), _tokens(1, 512), 1.5),
    "gemma-4-e2b-decode": (lambda folder: Decode(gemma(folder), 256), _tokens(1, 1), None),
    "resnet-50-batch-1": (lambda folder: _transformers(folder, "resnet-50"), _numbers(torch.float32, 1, 3, 224, 224), 1.3),
    "resnet-50-batch-32": (lambda folder: _transformers(folder, "resnet-50"), _numbers(torch.float32, 32, 3, 224, 224), None),
    "whisper-large-v3-encoder": (whisper_encoder, _numbers(torch.float16, 1, 128, 3000), None),
    "qwen3.5-35b-a3b-prefill-512": (lambda folder: Logits(_transformers(folder, "Qwen3.5-35B-A3B")), _tokens(1, 512), None),
}
"""By name: model, arguments of one forward, and the goal over eager on one H200, where there is one."""
