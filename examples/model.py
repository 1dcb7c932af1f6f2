"""The plain form of a model source: `build_model()` and `sample_inputs()`. Edit nothing else; forge-tui reads this file.

    forge-tui --run examples/model.py --device host
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class GatedBlock(nn.Module):
    """A gated feed-forward block with a normalization in front, as in many speech and vision models."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` and the result: [batch, time, width], float."""
        value, gate = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(F.gelu(value) * torch.sigmoid(gate))


class Classifier(nn.Module):
    """A few gated blocks and a softmax over classes."""

    def __init__(self, width: int = 128, depth: int = 3, classes: int = 40) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(GatedBlock(width) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x`: [batch, time, width]; the result: [batch, time, classes], rows that sum to 1."""
        return F.softmax(self.head(self.blocks(x)), dim=-1)


def build_model() -> nn.Module:
    """The model with its weights, in evaluation mode. Here the weights are random, from a fixed seed."""
    torch.manual_seed(0)
    return Classifier().eval()


def sample_inputs() -> dict[str, torch.Tensor]:
    """Arguments of one forward."""
    return {"x": torch.randn(2, 50, 128, generator=torch.Generator().manual_seed(1))}
