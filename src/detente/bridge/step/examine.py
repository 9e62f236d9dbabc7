"""``detente.bridge.check``: everything that stands between a model and the bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.capture.weights import whole
from detente.bridge.optim.rule import trace
from detente.bridge.passes.connected import connected
from detente.bridge.program.captured import graph_of, unlowerable
from detente.bridge.program.program import TRAINS_NOTHING
from detente.bridge.refusal import Reason, Refused
from detente.bridge.step.arguments import criterion, takes_part
from detente.bridge.step.rehearse import rehearsed


def check(
    model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any, optimizer: Any = None
) -> tuple[Reason, ...]:
    """Everything that stands between this model and the bridge, found in one pass; empty when nothing does.

    Captures and lowers, and compiles nothing. Where the first step of an optimizer is torch's (one that draws its first
    state), it is taken in eager, on copies. ``detente bridge check MODEL`` prints it. Raises TypeError where the model
    is no module, the loss no function, or the optimizer none of torch's kind.
    """
    takes_part(model, loss)
    if found := criterion(loss):
        return tuple(found)
    try:
        whole(model)
    except Refused as refused:
        return refused.reasons
    reasons: list[Reason] = []
    try:
        captured = capture(model, loss, batch, again=lambda: None)
        reasons += unlowerable(captured.graph)
        if not reasons and not connected(graph_of(captured)):
            reasons.append(TRAINS_NOTHING)
    except Refused as refused:
        reasons += refused.reasons
    if optimizer is not None:
        reasons += _of_the_optimizer(model, loss, batch, optimizer)
    return tuple(reasons)


def _of_the_optimizer(
    model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any, optimizer: torch.optim.Optimizer
) -> tuple[Reason, ...]:
    try:
        trace(optimizer, model.named_parameters())
    except Refused as why:
        try:
            rehearsed(model, loss, optimizer, batch, 1, why)
        except Refused as refused:
            return refused.reasons
    return ()
