"""``vit`` in PyTorch: ``ViTForImageClassification`` of ``transformers``, unmodified; its default dropout is 0."""

from __future__ import annotations

import torch
from transformers import ViTConfig, ViTForImageClassification

from detente.workloads.torch_parts.losses import of_labelled_pictures as loss
from detente.workloads.vit.spec import EPSILON
from detente.workloads.workload import Size

__all__ = ["build", "loss"]


def build(size: Size) -> torch.nn.Module:
    """In training mode. Attention is PyTorch's scaled_dot_product_attention, the library's default."""
    config = ViTConfig(
        hidden_size=size["hidden"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        intermediate_size=size["inner"],
        image_size=size["image"],
        patch_size=size["patch"],
        num_labels=size["labels"],
        layer_norm_eps=EPSILON,
        problem_type="single_label_classification",
    )
    return ViTForImageClassification(config).train()
