"""What a user's function or an ``hf:`` name comes to: module, loss, batch, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from detente.records.fault import UsageFault
from detente.workloads.own import lightning_module


@dataclass(frozen=True)
class Loaded:
    """
    module      any ``torch.nn.Module``
    loss        ``loss(module, batch)`` -> 0-d tensor, or (0-d tensor, tensors by name)
    batch       tensors or numpy arrays in a mapping, a sequence, or alone; a function without arguments that
                returns such a batch; or a ``DataLoader`` of them
    optimizer   a ``torch.optim.Optimizer`` over the module's parameters, or None
    left_out    what of the user's recipe is not run, for the reader; empty where all of it is
    """

    module: torch.nn.Module
    loss: Callable[[torch.nn.Module, Any], Any]
    batch: Any
    optimizer: torch.optim.Optimizer | None = None
    left_out: str = ""


HINT = "return (module, loss, batch) or (module, loss, batch, optimizer); see docs/compare-your-own-model.md"


def check(found: Any, target: str) -> Loaded:
    """What the user's function returned, as a record. Raises UsageFault that says which part is wrong."""
    if not isinstance(found, tuple | list):
        raise UsageFault(f"{target} returned {_told(found)}", HINT)
    found = tuple(found)
    if lightning_module.is_one(found[0] if found else None) and (len(found) == 2 or found[1] is None):
        found = lightning_module.opened(found[0], found[-1] if len(found) == 2 else found[2], target)
    elif len(found) not in (3, 4):
        raise UsageFault(f"{target} returned {_told(found)}", HINT)
    if len(found) > 3 and isinstance(found[3], tuple | list):
        raise UsageFault(
            f"{target} returned {len(found[3])} optimizers",
            "one step of one optimizer is compared: give one over all parameters, or a function of its own for each "
            "optimizer with the loss that it minimises",
        )
    loaded = Loaded(*found)
    wrong = [
        f"{part} is a {type(value).__name__}"
        for part, value, right in (
            ("module", loaded.module, isinstance(loaded.module, torch.nn.Module)),
            ("loss", loaded.loss, callable(loaded.loss)),
            (
                "optimizer",
                loaded.optimizer,
                loaded.optimizer is None or isinstance(loaded.optimizer, torch.optim.Optimizer),
            ),
        )
        if not right
    ]
    if wrong and (library := _library_of(loaded.module)):
        raise UsageFault(
            f"{target}: the model is a {type(loaded.module).__name__} of {library}, and nothing in the file says so",
            f"import {library} in the file and name it in the function, which tells that JAX runs the model",
        )
    if wrong:
        raise UsageFault(f"{target}: {', '.join(wrong)}", HINT)
    if not any(p.requires_grad for p in loaded.module.parameters()):
        raise UsageFault(
            f"{target}: the module has no parameter that is trained",
            "a workload trains something: give a module with parameters, and leave requires_grad of some of them on",
        )
    if loaded.optimizer is not None and not starts_from_zero(loaded.optimizer):
        raise UsageFault(
            f"{target}: {type(loaded.optimizer).__name__} with these settings does not start from zeros",
            f"a run is repeated from its start by zeroing the optimizer's state, which is right for "
            f"{', '.join(ZERO_START)}; use one of them",
        )
    return loaded


def _told(found: object) -> str:
    kind = f"{type(found).__module__}.{type(found).__qualname__}".removeprefix("builtins.")
    kind = f"an {kind}" if kind[0].lower() in "aeio" else f"a {kind}"
    return f"{kind} of {len(found)}" if isinstance(found, tuple | list) else kind


# Optimizers of torch whose state may be zeroed for a new start, each with the settings under which that holds.
ZERO_START: dict[str, Callable[[dict[str, Any]], bool]] = {
    "Adadelta": lambda group: True,
    "Adagrad": lambda group: group["initial_accumulator_value"] == 0,
    "Adam": lambda group: True,
    "AdamW": lambda group: True,
    "Adamax": lambda group: True,
    "RAdam": lambda group: True,
    "RMSprop": lambda group: True,
    # The first step takes the gradient whole, whatever the dampening.
    "SGD": lambda group: group["momentum"] == 0 or group["dampening"] == 0,
}


def starts_from_zero(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer with all of its state set to zero does what a new one does."""
    kind = type(optimizer)
    holds = ZERO_START.get(kind.__name__) if getattr(torch.optim, kind.__name__, None) is kind else None
    return holds is not None and all(holds(group) for group in optimizer.param_groups)


def _library_of(model: Any) -> str:
    """The library of JAX that a model's class comes from; empty where none is known. No such library is imported."""
    tops = (kind.__module__.partition(".")[0] for kind in type(model).__mro__)
    return next((top for top in tops if top in ("flax", "equinox", "keras")), "")
