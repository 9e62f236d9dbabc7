"""``resnet50`` in PyTorch, channels first: ``ResNetForImageClassification`` of ``transformers``, unmodified."""

from __future__ import annotations

import torch
from transformers import ResNetConfig, ResNetForImageClassification

from detente.workloads.resnet50.spec import depths, widths
from detente.workloads.torch_parts.losses import of_labelled_pictures as loss
from detente.workloads.workload import Size

__all__ = ["build", "loss"]


def build(size: Size) -> torch.nn.Module:
    """In training mode: batch statistics normalise, and the running buffers move with every step."""
    config = ResNetConfig(
        embedding_size=size["stem"],
        hidden_sizes=widths(size),
        depths=depths(size),
        layer_type="bottleneck",
        num_labels=size["labels"],
        problem_type="single_label_classification",
    )
    return ResNetForImageClassification(config).train()
