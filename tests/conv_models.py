"""Convolutions, norms and activations as models write them in a row, and as they must not be taken for one."""

from __future__ import annotations

import torch
from torch import nn


def normed(channels: int) -> nn.BatchNorm2d:
    """With statistics of no special value."""
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight, 1.0, 0.2)
    nn.init.normal_(norm.bias)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


class ConvLayer(nn.Module):
    """As in the ResNets of transformers."""

    def __init__(self, act: nn.Module | None = None, **more: object) -> None:
        super().__init__()
        self.convolution, self.normalization = nn.Conv2d(4, 4, 3, padding=1, **{"bias": False, **more}), normed(4)
        self.activation = act or nn.ReLU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.convolution(hidden)
        hidden = self.normalization(hidden)
        hidden = self.activation(hidden)
        return hidden


class Nested(ConvLayer):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.activation(self.normalization(self.convolution(hidden)))


class Block(nn.Module):
    """As in torchvision: one ReLU in place after each norm and after the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), normed(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), normed(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        out += identity
        out = self.relu(out)
        return out


class Used(ConvLayer):
    """What lies between is used elsewhere too."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        between = self.convolution(hidden)
        result = self.normalization(between)
        return self.activation(result) + 2 * result + between


class UsedAgain(ConvLayer):
    """A second name for what lies between."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.convolution(hidden)
        kept = hidden
        hidden = self.normalization(hidden)
        return hidden + kept


class Listed(ConvLayer):
    """A loop that Python code of torch's runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(self.convolution, self.normalization, self.activation)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.layers(hidden)


class Spatial(nn.Module):
    """In three dimensions, for which no kernel ships."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv3d(2, 3, 1), nn.BatchNorm3d(3), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)))


class Summed(nn.Module):
    """The sum stays where it is; the activation's result is another tensor, as in the ResNets of transformers."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.activation = act or nn.ReLU()

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        hidden += residual
        hidden = self.activation(hidden)
        return hidden


class SummedAnew(Summed):
    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        hidden = hidden + residual
        hidden = self.activation(hidden)
        return hidden
