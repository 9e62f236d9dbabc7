"""``detente.bridge.check``: everything that stands between a model and the bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from detente.bridge.capture.export import capture
from detente.bridge.capture.weights import whole
from detente.bridge.lower.driver import missing
from detente.bridge.optim.rule import trace
from detente.bridge.refusal import Reason, Refused


def check(
    model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any, optimizer: Any = None
) -> tuple[Reason, ...]:
    """Everything that stands between this model and the bridge, found in one pass; empty when nothing does.

    Captures and lowers, and compiles nothing. ``detente bridge check MODEL`` prints it.
    """
    reasons: list[Reason] = []
    try:
        whole(model)
    except Refused as refused:
        return refused.reasons
    try:
        reasons += missing(capture(model, loss, batch, again=lambda: None).graph)
    except Refused as refused:
        reasons += refused.reasons
    if optimizer is not None:
        try:
            trace(optimizer, model.named_parameters())
        except Refused as refused:
            reasons += refused.reasons
    return tuple(reasons)
