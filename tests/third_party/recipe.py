"""The one recipe: how a row becomes a model, batches and an optimizer, and what plain PyTorch makes of them.

Nothing here is of the bridge but its random numbers, which eager PyTorch has to draw too to be compared at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.third_party.losses import LOSSES
from tests.third_party.row import New, Row, realised

SEED, KEY, STEPS = 7, 11, 5
# of one rounding, which a run begins away with when it shows how sensitive the model is
ROUNDING = {torch.float64: 2.0**-52, torch.float32: 2.0**-23}
COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def built(row: Row, dtype: torch.dtype, begun: dict[str, torch.Tensor] | None = None) -> nn.Module:
    """The same module at every call. ``begun``: with these values, because a buffer may come from ``torch.empty``."""
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = realised(New(row.path, *row.args, **row.options), generator, dtype)
    model.train()
    model._apply(lambda t: _cast(t, dtype))
    if begun is not None:
        with torch.no_grad():
            for name, tensor in _named(model):
                tensor.copy_(begun[name])
    return model


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(COMPLEX[dtype])
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def batches(row: Row, dtype: torch.dtype) -> list[dict[str, Any]]:
    made = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 if row.fixed else 100 + step)
        inputs, named = realised((row.inputs, row.named), generator, dtype)
        made.append({"inputs": inputs, "named": named})
    return made


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """SGD: AdamW makes a whole step of a gradient that is rounding alone; the optimizers have a page of their own."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    if not wanted:
        raise ValueError("the model has no parameter that takes a gradient")
    return torch.optim.SGD(wanted, lr=1e-2, momentum=0.9)


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and every buffer, the ones that are not saved too."""
    return {name: tensor.detach().clone() for name, tensor in _named(model)}


def _named(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


@dataclass
class Trained:
    """What a loop of ``STEPS`` steps made."""

    losses: list[float]
    state: dict[str, torch.Tensor]


def eager(
    row: Row, dtype: torch.dtype, begun: dict[str, torch.Tensor] | None, drawn: bool, nudge: int = 0
) -> Trained:
    """A loop as PyTorch's tutorials have it. ``drawn``: with the random numbers of the compiled step. ``nudge``: every
    parameter begins off by one rounding, up or down; another number, other signs."""
    from detente.bridge.random import twin

    model = built(row, dtype, begun)
    if nudge:
        generator = torch.Generator().manual_seed(nudge)
        with torch.no_grad():
            for parameter in model.parameters():
                signs = 2 * torch.randint(0, 2, parameter.shape, generator=generator) - 1
                parameter.mul_(1 + ROUNDING[dtype] * signs)
    descent, loss = optimizer(model), LOSSES[row.loss]
    losses = []
    torch.manual_seed(SEED)
    for count, batch in enumerate(batches(row, dtype)):
        with twin(KEY, count) if drawn else nullcontext():
            value = loss(model, batch)
            value.backward()
        descent.step()
        descent.zero_grad()
        losses.append(float(value.detach()))
    return Trained(losses, state(model))
