"""Norm modules in the forms that models write them: weight after the cast, weight + 1, no weight."""

from __future__ import annotations

import torch
from torch import nn

from region_functions import apply_rotary_to_one


class LateRMSNorm(nn.Module):
    """The weight multiplies what has been cast back, as in Llama."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)
        self.variance_epsilon = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon)).to(dtype)


class OneMoreRMSNorm(nn.Module):
    """Times one and the weight, as in the first Gemma models, by a method of its own."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(dim) * 0.2)

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self._norm(x.float()) * (1.0 + self.weight.float())).type_as(x)


class BareRMSNorm(nn.Module):
    """Without a weight, or with one (`with_scale`)."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.with_scale = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x.float()
        normed = normed * torch.pow(normed.pow(2).mean(-1, keepdim=True) + self.eps, -0.5)
        return normed.type_as(x)


class Stack(nn.Module):
    """The norms one after the other, and a linear layer that takes the last."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.late, self.more, self.bare = LateRMSNorm(dim), OneMoreRMSNorm(dim), BareRMSNorm(dim)
        self.head = nn.Linear(dim, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.bare(self.more(self.late(x))))


class HandLayerNorm(nn.Module):
    """Layer norm written out, its parameters under the names of the paper."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.rand(dim) + 0.5), nn.Parameter(torch.randn(dim))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.gamma * (x - mean) / torch.sqrt(variance + self.eps) + self.beta


class GatedRMSNorm(nn.Module):
    """As in Qwen's linear attention."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(dim) + 0.5), eps

    def forward(self, hidden: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        hidden = self.weight * hidden.to(dtype)
        return (hidden * nn.functional.silu(gate.to(torch.float32))).to(dtype)


class ChannelsNorm(nn.Module):
    """Over the channels of an image, as in ConvNeXt."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return self.weight[:, None, None] * ((x - mean) / torch.sqrt(variance + self.eps)) + self.bias[:, None, None]


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.GELU(approximate="tanh")

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.act(x) * other


class Activated(nn.Module):
    """As residual blocks of VAEs begin, the steps on lines of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.nonlinearity = nn.GroupNorm(4, 16), nn.SiLU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(hidden)
        hidden = self.nonlinearity(hidden)
        return hidden


class Residual(nn.Module):
    """As decoder layers go on: the sum is kept, its norm goes further."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = LateRMSNorm(32)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x = residual + x
        residual = x
        x = self.norm(x)
        return residual + 2 * x


class PostNorm(nn.Module):
    """As BERT's layers end."""

    def __init__(self) -> None:
        super().__init__()
        self.LayerNorm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(x + residual)


class Turned(nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return apply_rotary_to_one(x, cos, sin, unsqueeze_dim=2)


class Switched(nn.Module):
    """A norm and an activation that private attributes switch off."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.norm, self.act = SwitchedRMSNorm(dim), SwitchedReLU()

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        total = self.act(x + residual)
        return self.norm(total)


class SwitchedRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self._off = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._off:
            return x
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class SwitchedReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._off = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self._off else torch.relu(x)
