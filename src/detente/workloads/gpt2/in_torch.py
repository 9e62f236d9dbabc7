"""``gpt2`` in PyTorch: ``GPT2LMHeadModel`` of ``transformers``, unmodified, dropout 0 in its configuration."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from detente.workloads.gpt2.spec import EPSILON
from detente.workloads.torch_parts.at_least_float32 import shifted_cross_entropy
from detente.workloads.torch_parts.losses import of_language_model as loss
from detente.workloads.workload import Size

__all__ = ["build", "loss"]


def build(size: Size) -> torch.nn.Module:
    """In training mode. Attention is PyTorch's scaled_dot_product_attention, the library's default."""
    config = GPT2Config(
        vocab_size=size["vocab"],
        n_positions=size["positions"],
        n_embd=size["hidden"],
        n_layer=size["layers"],
        n_head=size["heads"],
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
        layer_norm_epsilon=EPSILON,
        # The default end-of-text token lies outside a tiny vocabulary.
        bos_token_id=size["vocab"] - 1,
        eos_token_id=size["vocab"] - 1,
    )
    model = GPT2LMHeadModel(config).train()
    model.loss_function = shifted_cross_entropy
    return model
