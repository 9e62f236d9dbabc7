"""``bert`` in PyTorch: ``BertForSequenceClassification`` of ``transformers``, unmodified, dropout 0 in its
configuration."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

from detente.workloads.bert.spec import EPSILON
from detente.workloads.torch_parts.losses import of_labelled_sentences as loss
from detente.workloads.workload import Size

__all__ = ["build", "loss"]


def build(size: Size) -> torch.nn.Module:
    """In training mode. Attention is PyTorch's scaled_dot_product_attention, the library's default."""
    config = BertConfig(
        vocab_size=size["vocab"],
        hidden_size=size["hidden"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        intermediate_size=size["inner"],
        max_position_embeddings=size["positions"],
        type_vocab_size=size["types"],
        num_labels=size["labels"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=EPSILON,
        problem_type="single_label_classification",
    )
    return BertForSequenceClassification(config).train()
