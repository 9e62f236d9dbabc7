"""A LightningModule without its Trainer: ``training_step`` is the loss, ``configure_optimizers`` makes the optimizer.

Told by what it has, so that Lightning is imported only where the user's file imports it. What the Trainer would do
between steps (schedules, logging, hooks) is not run: it is no part of a step's cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detente.records.fault import UsageFault

_WAY = "return (module, loss, batch, optimizer) with a loss of your own: loss(module, batch) -> 0-d tensor"


def is_one(module: Any) -> bool:
    """Whether it is a LightningModule."""
    return hasattr(module, "training_step") and hasattr(module, "configure_optimizers")


def opened(module: Any, batch: Any, target: str) -> tuple[Any, ...]:
    """(module, loss, batch, optimizer, what is left out). Raises UsageFault for a module that takes its steps itself,
    or has more than one optimizer."""
    if not getattr(module, "automatic_optimization", True):
        raise UsageFault(
            f"{target}: the LightningModule optimizes by itself (automatic_optimization=False)", _WAY
        )
    # What Trainer.fit would have given it; without a trainer each of these only warns.
    module.log = module.log_dict = _nothing
    optimizer, left_out = _one_optimizer(module.configure_optimizers(), target)
    return module, _loss, batch, optimizer, left_out


def _nothing(*_: Any, **__: Any) -> None:
    """Logging is the Trainer's."""


def _loss(module: Any, batch: Any) -> Any:
    found = module.training_step(batch, 0)
    if found is None:
        raise UsageFault("training_step returned None, which to Lightning means to skip the batch", _WAY)
    return found["loss"] if isinstance(found, Mapping) else found


def _one_optimizer(configured: Any, target: str) -> tuple[Any, str]:
    """Of the six forms that ``configure_optimizers`` may return (Lightning's documentation of it)."""
    schedule = None
    if isinstance(configured, tuple) and len(configured) == 2 and isinstance(configured[0], list):
        configured, schedule = configured
    if isinstance(configured, list | tuple):
        if len(configured) != 1:
            raise UsageFault(f"{target}: configure_optimizers gives {len(configured)} optimizers", _WAY)
        configured = configured[0]
    if isinstance(configured, Mapping):
        schedule = configured.get("lr_scheduler", schedule)
        configured = configured.get("optimizer")
    return (
        configured,
        "configure_optimizers' schedule is not run: the rate stays as it begins" if schedule else "",
    )
