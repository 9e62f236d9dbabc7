"""The losses that rows name. Each is what a user would write, ``loss(model, batch)``; the first fits most rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Batch = dict[str, Any]


def floats(out: Any) -> list[torch.Tensor]:
    """Every floating tensor of a result, in the order of its fields."""
    if isinstance(out, torch.Tensor):
        return [out] if out.is_floating_point() or out.is_complex() else []
    if isinstance(out, dict):
        return [t for value in out.values() for t in floats(value)]
    if isinstance(out, list | tuple):
        return [t for value in out for t in floats(value)]
    if hasattr(out, "__dict__"):
        return [t for value in vars(out).values() for t in floats(value)]
    return []


def of_result(out: Any) -> torch.Tensor:
    """The model's own loss where it gives one, else the mean of squares of every floating result."""
    own = getattr(out, "loss", None)
    if own is None and isinstance(out, dict):
        own = out.get("loss")
    if isinstance(own, torch.Tensor) and own.numel() == 1:
        return own.reshape(())
    if isinstance(out, torch.Tensor) and out.ndim == 0 and out.is_floating_point():
        return out
    tensors = floats(out)
    total = sum((t.abs().square().mean() for t in tensors), torch.zeros(()))
    return total / max(len(tensors), 1)


def squares(model: Any, batch: Batch) -> torch.Tensor:
    return of_result(model(*batch["inputs"], **batch["named"]))


def first(model: Any, batch: Batch) -> torch.Tensor:
    """The first result is the loss."""
    return model(*batch["inputs"], **batch["named"])[0]


def called(name: str) -> Callable[[Any, Batch], torch.Tensor]:
    """A method other than forward is the way in."""

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        return of_result(getattr(model, name)(*batch["inputs"], **batch["named"]))

    loss.__name__ = name
    return loss


def negative(name: str) -> Callable[[Any, Batch], torch.Tensor]:
    """A likelihood, to be made large."""

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        return -getattr(model, name)(*batch["inputs"], **batch["named"]).mean()

    loss.__name__ = f"negative_{name}"
    return loss


LOSSES: dict[str, Callable[[Any, Batch], torch.Tensor]] = {
    "squares": squares,
    "first": first,
    "log_prob": negative("log_prob"),
    "likelihood": negative("forward"),
    "forward_kld": called("forward_kld"),
    "loss": called("loss"),
    "encode": called("encode"),
    "evaluate_actions": called("evaluate_actions"),
    "rotate_queries_or_keys": called("rotate_queries_or_keys"),
}
