"""KernelBench's form of a task: `Model`, `get_init_inputs()`, `get_inputs()`. A normalized, scaled mish over features.

    forge-tui --run examples/kernelbench.py --device host
"""

import torch
from torch import nn


class Model(nn.Module):
    """x -> group norm -> mish by its definition -> a learned scale per channel."""

    def __init__(self, channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x):
        x = self.norm(x)
        return x * torch.tanh(nn.functional.softplus(x)) * self.scale


def get_inputs():
    return [torch.randn(4, 32, 24, 24)]


def get_init_inputs():
    return [32, 8]
