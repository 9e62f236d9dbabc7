"""``resnet50`` in PyTorch, channels first: ``ResNetForImageClassification`` of ``transformers``, unmodified."""

from __future__ import annotations

import torch
from transformers import ResNetConfig, ResNetForImageClassification

from detente.workloads.resnet50.spec import depths, widths
from detente.workloads.workload import Size

Tensors = dict[str, torch.Tensor]


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


def loss(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """The model's own loss for its labels, and its logits (batch, labels)."""
    found = module(pixel_values=batch["images"], labels=batch["labels"])
    return found.loss, {"logits": found.logits}
