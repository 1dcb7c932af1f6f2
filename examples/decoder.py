"""A small Llama from transformers, random weights, eager attention: RMS norm, SiLU, causal softmax in bfloat16.

    forge-tui --run examples/decoder.py --device host --ops softmax --ops silu
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build_model() -> torch.nn.Module:
    """Two layers, four heads, two of them for keys and values. Random weights from a fixed seed."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=256, attn_implementation="eager", use_cache=False)
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def sample_inputs() -> dict[str, torch.Tensor]:
    """One prompt of 48 tokens."""
    return {"input_ids": torch.randint(0, 512, (1, 48), generator=torch.Generator().manual_seed(1))}
