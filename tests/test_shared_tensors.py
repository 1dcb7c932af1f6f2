"""One tensor as several arguments of a captured call: another call of the variant has different ones, each in its own place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conv_models import ConvLayer, Nested
from hostkit import needs_nvrtc
from region_functions import apply_rotary_to_one
from region_kit import captured, package_of
from region_models import HandLayerNorm
from torch import nn
from torch.nn import functional as F

from forge_tui.specs import short_name


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Turned(nn.Module):
    """Keywords in another order than the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.cos, self.sin = nn.Parameter(draw(2, 6, 16, seed=1)), nn.Parameter(draw(2, 6, 16, seed=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return apply_rotary_to_one(x, unsqueeze_dim=2, sin=self.sin, cos=self.cos)


class Attending(nn.Module):
    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, value=other, key=other)


def convolutions(make: Callable[..., nn.Module]) -> nn.Sequential:
    layers = nn.Sequential(make(bias=True), make(bias=True))
    for at, layer in enumerate(layers):
        layer.convolution.bias = nn.Parameter(draw(4, seed=at))
    return layers


def one_bias() -> nn.Sequential:
    layers = convolutions(ConvLayer)
    layers[0].convolution.bias = layers[0].normalization.bias
    return layers


def weight_and_variance() -> nn.Sequential:
    layers = convolutions(Nested)
    layers[0].normalization.weight.abs_()
    layers[0].normalization._buffers["running_var"] = layers[0].normalization.weight
    return layers


def gamma_and_beta() -> nn.Sequential:
    layers = nn.Sequential(HandLayerNorm(32), HandLayerNorm(32))
    layers[0].gamma = layers[0].beta
    return layers


def both_tables() -> nn.Sequential:
    layers = nn.Sequential(Turned(), Turned())
    layers[0].cos = layers[0].sin
    return layers


CASES: dict[Callable[[], nn.Sequential], tuple[torch.Tensor, str]] = {
    one_bias: (draw(2, 4, 6, 6), "conv2d+batch_norm+relu"), weight_and_variance: (draw(2, 4, 6, 6), "conv2d+batch_norm+relu"),
    gamma_and_beta: (draw(6, 32), "HandLayerNorm"), both_tables: (draw(2, 6, 4, 16), "apply_rotary_to_one"),
}


@needs_nvrtc
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_each_tensor_goes_to_its_own_place(make: Callable[[], nn.Sequential], tmp_path: Path) -> None:
    with torch.no_grad():
        torch.manual_seed(0)
        model, (x, region) = make().eval().requires_grad_(False), CASES[make]
        plain, package = copy.deepcopy(model), package_of(model, tmp_path, x)
        with package.optimized(model):
            torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(model[1](x), plain[1](x), rtol=1e-4, atol=1e-4)
        calls = {short_name(kernel["operator"]): kernel["calls"] for kernel in package.report()["kernels"]}
    assert calls[region] == 3


def test_a_keyword_says_which_argument_it_is() -> None:
    capture, _ = captured(Attending().eval(), draw(2, 4, 16), draw(2, 4, 16, seed=1))
    form, = [form for seen in capture.recorder.recording.variants.values() for form in seen.forms.values()]
    assert list(form.keywords) == ["value", "key"] and form.names == ("query", "value", "key")
