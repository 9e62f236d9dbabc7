"""``llama`` in PyTorch: ``LlamaForCausalLM`` of ``transformers``, unmodified but for the three places where it narrows
to float32 (torch_parts/at_least_float32.py) and its table of rotary frequencies, which is that of spec.py."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from detente.workloads.llama.spec import (
    BASE,
    CONTEXT,
    EPSILON,
    FACTOR,
    HIGH,
    LONGEST,
    LOW,
    inverse_frequencies,
)
from detente.workloads.torch_parts.at_least_float32 import become, raised, shifted_cross_entropy
from detente.workloads.torch_parts.losses import of_language_model as loss
from detente.workloads.workload import Size

__all__ = ["build", "loss"]


class RaisedRMSNorm(LlamaRMSNorm):
    """The library's normalisation, which narrows a float64 input to float32, in at least float32."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = raised(hidden_states)
        shared = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide * shared).to(hidden_states.dtype)


class RaisedRotaryEmbedding(LlamaRotaryEmbedding):
    """The library's angles, which it forms in float32, in at least float32."""

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine (batch, sequence, depth) in the dtype of x."""
        wide = torch.promote_types(x.dtype, torch.float32)
        at = position_ids[..., None].to(wide) * self.inv_freq.to(wide)
        angles = torch.cat((at, at), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def configuration(size: Size) -> LlamaConfig:
    """The published configuration of Llama 3.1 with the size's dimensions."""
    return LlamaConfig(
        vocab_size=size["vocab"],
        hidden_size=size["hidden"],
        intermediate_size=size["inner"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["key_heads"],
        max_position_embeddings=LONGEST,
        rms_norm_eps=EPSILON,
        rope_theta=BASE,
        rope_scaling={
            "rope_type": "llama3",
            "factor": FACTOR,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": CONTEXT,
        },
        use_cache=False,
        tie_word_embeddings=False,
        # The published special tokens lie outside a tiny vocabulary.
        bos_token_id=size["vocab"] - 2,
        eos_token_id=size["vocab"] - 1,
    )


def build(size: Size) -> torch.nn.Module:
    """In training mode. Attention is PyTorch's scaled_dot_product_attention, the library's default."""
    model = LlamaForCausalLM(configuration(size)).train()
    for norm in [m for m in model.modules() if isinstance(m, LlamaRMSNorm)]:
        become(norm, RaisedRMSNorm)
    rotary = become(model.model.rotary_emb, RaisedRotaryEmbedding)
    rotary.inv_freq.copy_(torch.from_numpy(inverse_frequencies(size["hidden"] // size["heads"])))
    model.loss_function = shifted_cross_entropy
    return model
