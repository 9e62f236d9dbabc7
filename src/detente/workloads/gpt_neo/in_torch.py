"""``gpt_neo`` in PyTorch: ``GPTNeoForCausalLM`` of ``transformers``, dropout 0 in its configuration, unmodified but for
the two places where it narrows to float32 (torch_parts/at_least_float32.py)."""

from __future__ import annotations

import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from detente.workloads.gpt_neo.spec import EPSILON
from detente.workloads.torch_parts.at_least_float32 import become, raised, shifted_cross_entropy
from detente.workloads.torch_parts.losses import of_language_model as loss
from detente.workloads.workload import Size

__all__ = ["build", "loss"]


class RaisedAttention(GPTNeoSelfAttention):
    """The library's attention with its products and its softmax in at least float32, where it narrows the queries and
    keys of a float64 model to float32."""

    def _attn(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """query, key, value (batch, heads, positions, depth); nothing divides by the root of the depth."""
        logits = raised(query) @ raised(key).transpose(-1, -2)
        t = logits.size(-1)
        seen = self.bias[:, :, :t, :t]
        logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
        if attention_mask is not None:
            logits = logits + attention_mask
        shares = self.attn_dropout(logits.softmax(dim=-1).to(value.dtype))
        return shares @ value, shares


def build(size: Size) -> torch.nn.Module:
    """In training mode. The library writes this attention out: it has no other one but flash attention."""
    config = GPTNeoConfig(
        vocab_size=size["vocab"],
        max_position_embeddings=size["positions"],
        hidden_size=size["hidden"],
        num_layers=size["layers"],
        attention_types=[[["global", "local"], size["layers"] // 2]],
        num_heads=size["heads"],
        window_size=size["window"],
        use_cache=False,
        layer_norm_epsilon=EPSILON,
        # The default end-of-text token lies outside a tiny vocabulary.
        bos_token_id=size["vocab"] - 1,
        eos_token_id=size["vocab"] - 1,
    )
    model = GPTNeoForCausalLM(config).train()
    for block in model.transformer.h:
        become(block.attn.attention, RaisedAttention)
    model.loss_function = shifted_cross_entropy
    return model
