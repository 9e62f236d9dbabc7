"""The same step in torch eager: what the bridge is compared with, and what the user's debugger sees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.refusal import refuse


@dataclass(frozen=True)
class EagerStep:
    """What one eager step computed. Gradients are None where torch leaves ``.grad`` None."""

    loss: torch.Tensor
    aux: Any
    gradients: dict[str, torch.Tensor | None]
    values: dict[str, torch.Tensor]  # parameters and buffers after the step


def eager_step(
    model: nn.Module,
    loss: Callable[[Any, Any], Any],
    optimizer: torch.optim.Optimizer,
    batch: Any,
    numbers: AbstractContextManager[Any] | None = None,
) -> EagerStep:
    """Forward, backward and ``optimizer.step()`` on the given objects, which it changes. ``numbers`` is the
    random twin's context, under which torch draws the compiled step's random numbers."""
    optimizer.zero_grad(set_to_none=True)
    with torch.enable_grad(), numbers or nullcontext():
        value = loss(model, batch)
        value, aux = value if isinstance(value, tuple) else (value, None)
        if not isinstance(value, torch.Tensor):
            raise refuse("loss", f"the loss function returned a {type(value).__name__}, not a tensor")
        value.backward()
    gradients = {n: None if p.grad is None else p.grad.detach().clone() for n, p in model.named_parameters()}
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    values = dict(model.named_parameters()) | dict(model.named_buffers())
    return EagerStep(value.detach(), aux, gradients, {n: t.detach() for n, t in values.items()})
