"""The same step in torch eager: what the bridge is compared with, and what the user's debugger sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.micro import joined, split
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
    numbers: AbstractContextManager[Any] | Callable[[int], AbstractContextManager[Any] | None] | None = None,
    parts: int = 1,
    clip: Callable[[Iterable[torch.Tensor]], None] | None = None,
    only_loss: bool = False,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> EagerStep:
    """Forward, backward and ``optimizer.step()`` on the given objects, which it changes; ``only_loss``: forward alone.

    ``numbers`` is the random twin's context, under which torch draws the compiled step's random numbers, or makes
    it from the number of a micro-batch. The batch is ``parts`` micro-batches: loss and gradients are their means,
    aux is stacked. ``clip`` changes the ``.grad`` of the optimizer's parameters before the update; the gradients
    that are returned are those before. ``around`` is open while loss and gradients are computed, and not in the update.
    """
    optimizer.zero_grad(set_to_none=True)
    with around():
        losses, extra = _gradients(model, loss, batch, numbers, parts, only_loss)
    mean = losses[0] if parts == 1 else torch.stack(losses).mean()
    extra = extra[0] if parts == 1 else joined(extra)
    if only_loss:
        return EagerStep(mean, extra, {}, {})
    gradients = {n: None if p.grad is None else _dense(p.grad) for n, p in model.named_parameters()}
    if clip is not None:
        clip(p for group in optimizer.param_groups for p in group["params"])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    values = dict(model.named_parameters()) | dict(model.named_buffers())
    return EagerStep(
        mean,
        extra,
        gradients,
        {n: t.detach() for n, t in values.items()},
    )


def _gradients(
    model: nn.Module,
    loss: Callable[[Any, Any], Any],
    batch: Any,
    numbers: AbstractContextManager[Any] | Callable[[int], AbstractContextManager[Any] | None] | None,
    parts: int,
    only_loss: bool,
) -> tuple[list[torch.Tensor], Any]:
    """Each micro-batch's loss and aux; the gradients are left in ``.grad``."""
    losses: list[torch.Tensor] = []
    extra: Any = []
    for part, piece in enumerate(split(batch, parts)):
        context = numbers(part) if not isinstance(numbers, AbstractContextManager | None) else numbers
        with torch.enable_grad(), context or nullcontext():
            value = loss(model, piece)
            value, aux = value if isinstance(value, tuple) else (value, None)
            if not isinstance(value, torch.Tensor):
                raise refuse("loss", f"the loss function returned a {type(value).__name__}, not a tensor")
            if not only_loss:
                (value / parts if parts > 1 else value).backward()
        losses.append(value.detach().clone())  # a loss that is a parameter moves with the update
        extra.append(aux)
    return losses, extra


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """A copy; that of an embedding with ``sparse=True`` holds the rows that were read."""
    gradient = gradient.detach()
    return gradient.clone() if gradient.layout == torch.strided else gradient.to_dense()
