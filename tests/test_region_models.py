"""Whole models with their regions as kernels: captured, judged on the host target, packed, run, taken off again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hostkit import needs_nvrtc
from region_kit import captured, package_of
from torch import nn

from benchmarks.zoo import VaeDecoder
from forge_tui.specs import short_name

pytestmark = needs_nvrtc
COMMON = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
          "vocab_size": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, use_cache=False).logits


def language_model(name: str, dtype: torch.dtype, **config: object) -> tuple[nn.Module, torch.Tensor]:
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, f"{name}Config")(**{**COMMON, **config})
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(made, attn_implementation="eager", dtype=dtype).eval()
    for parameter in model.parameters():  # weights of norms are all one, or all zero: a wrong reading could pass
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 1.0, 0.2)
    return Logits(model), torch.randint(0, 256, (1, 6), generator=torch.Generator().manual_seed(1))


def llama(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    return language_model("Llama", dtype, head_dim=16)


def gemma(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    return language_model("Gemma", dtype, head_dim=16, hidden_activation="gelu_pytorch_tanh")


def qwen(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    return language_model("Qwen3", dtype, head_dim=16)


def vae(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    config = {"block_out_channels": [32, 32], "latent_channels": 4, "layers_per_block": 0, "norm_num_groups": 8, "out_channels": 3}
    return VaeDecoder(config).to(dtype).eval(), torch.randn(1, 4, 6, 6).to(dtype)


def resnet(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    import transformers

    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], num_labels=3)
    model = transformers.ResNetForImageClassification._from_config(config, dtype=dtype).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            module.num_batches_tracked += 7
    return model, torch.randn(1, 3, 32, 32).to(dtype)


CALLS = {
    llama: {"add+LlamaRMSNorm": 2, "LlamaRMSNorm": 3, "silu+mul": 2, "apply_rotary_pos_emb": 2},
    gemma: {"add+GemmaRMSNorm": 2, "GemmaRMSNorm": 3, "gelu+mul": 2, "apply_rotary_pos_emb": 2},
    qwen: {"add+Qwen3RMSNorm": 2, "Qwen3RMSNorm": 7, "silu+mul": 2, "apply_rotary_pos_emb": 2},
    vae: {"group_norm+silu": 9},
    resnet: {"conv2d+batch_norm+relu": 5, "conv2d+batch_norm": 4, "add+relu": 2},
}
"""Of one forward, by region."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", CALLS)
def test_models_with_their_regions_as_kernels(make, dtype: torch.dtype, tmp_path: Path) -> None:
    model, x = make(dtype)
    before = {name: (type(module), dict(vars(module))) for name, module in model.named_modules()}
    package = package_of(model, tmp_path, x)

    def run() -> torch.Tensor:
        result = model(x)
        return result if isinstance(result, torch.Tensor) else result.logits

    with torch.no_grad():
        eager = run()
        with package.optimized(model):
            forged = run()
            report = package.report()
        again = run()
    calls: Counter[str] = Counter()
    for kernel in report["kernels"]:
        calls[short_name(kernel["operator"])] += kernel["calls"]
    assert calls == CALLS[make], report
    slack = 1e-5 if dtype is torch.float32 else 0.03
    assert float((forged - eager).norm() / eager.norm()) < slack
    assert torch.equal(again, eager)
    assert {name: (type(module), dict(vars(module))) for name, module in model.named_modules()} == before


def require_compiling(model: nn.Module, x: torch.Tensor) -> None:
    """torch 2.6 traces not all of Transformers 5: without any package it does not compile such a model."""
    try:
        torch.compile(model, fullgraph=True, backend="eager")(x)
    except torch._dynamo.exc.Unsupported as error:
        pytest.skip(f"torch {torch.__version__} does not trace the model itself: {str(error).splitlines()[0]}")


def test_a_language_model_with_regions_compiles_whole(tmp_path: Path) -> None:
    model, x = llama(torch.float32)
    package = package_of(model, tmp_path, x)
    with torch.no_grad():
        eager = model(x)
        require_compiling(model, x)
        with package.optimized(model):
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    assert sum(kernel["calls"] for kernel in package.report()["kernels"]) == sum(CALLS[llama].values())
    assert float((compiled - eager).norm() / eager.norm()) < 1e-5


def test_regions_of_the_reference_models_are_found() -> None:
    """The architectures of the whole-model benchmark: their forwards are written so that the sites are seen."""
    model, x = qwen(torch.float32)
    _, cards = captured(model, x)
    inner = {key for variant in cards.variants if variant.covers for key in variant.covers}
    for variant in cards.variants:
        if variant.key in inner and variant.offered:
            assert variant.open_calls > 0, f"{variant.operator} is offered and has no call of its own"
    assert json.dumps(sorted({short_name(variant.operator) for variant in cards.variants if variant.covers})) == json.dumps(
        sorted(CALLS[qwen]))
