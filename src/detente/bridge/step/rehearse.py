"""Whether the step after an optimizer's first can be traced, found on copies before anything is compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from detente.bridge.certify.eager import eager_step
from detente.bridge.copies import copied
from detente.bridge.optim.first import TorchsStep
from detente.bridge.optim.rule import trace
from detente.bridge.refusal import Refused


def rehearsed(
    model: nn.Module, loss: Any, optimizer: torch.optim.Optimizer, batch: Any, parts: int, why: Refused
) -> TorchsStep:
    """The rule of a first step that torch takes. Raises ``why`` where the step after it cannot be traced either."""
    fresh = not getattr(optimizer, "state", True) and not type(optimizer).__module__.startswith("torch.optim")
    if not fresh or any(p.is_meta for p in model.parameters()):
        raise why
    try:
        with torch.random.fork_rng(devices=[]):
            double, mine = copied((model, optimizer))
            eager_step(double, loss, mine, batch, None, parts)
            if not mine.state:
                raise why
            trace(mine, double.named_parameters())
    except Refused as later:
        raise (later if later is not why else why) from None
    except Exception:
        raise why from None
    return TorchsStep(type(optimizer).__name__)
