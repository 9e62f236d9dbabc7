"""What a model of ``transformers`` is asked for: its own loss for its labels, and its logits."""

from __future__ import annotations

import torch

Tensors = dict[str, torch.Tensor]


def of_language_model(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """The tokens are their own labels; logits (batch, sequence, vocab)."""
    found = module(input_ids=batch["input_ids"], labels=batch["input_ids"])
    return found.loss, {"logits": found.logits}


def of_labelled_sentences(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Logits (batch, labels)."""
    found = module(input_ids=batch["input_ids"], labels=batch["labels"])
    return found.loss, {"logits": found.logits}


def of_labelled_pictures(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Logits (batch, labels)."""
    found = module(pixel_values=batch["images"], labels=batch["labels"])
    return found.loss, {"logits": found.logits}
