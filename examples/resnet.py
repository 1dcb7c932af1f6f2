"""A small ResNet from transformers, random weights: convolutions, batch norm, pooling on images in channels-last memory.

    forge-tui --run examples/resnet.py --device host --ops batch_norm --ops relu
"""

from __future__ import annotations

import torch
from transformers import ResNetConfig, ResNetForImageClassification


def build_model() -> torch.nn.Module:
    """ResNet with basic blocks, 16 to 64 channels. Random weights from a fixed seed; running statistics as after training."""
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64], depths=[1, 1, 1], layer_type="basic", num_labels=10)
    model = ResNetForImageClassification(config).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.to(memory_format=torch.channels_last)


def sample_inputs() -> dict[str, torch.Tensor]:
    """Two images of 64 x 64."""
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": images.to(memory_format=torch.channels_last)}
