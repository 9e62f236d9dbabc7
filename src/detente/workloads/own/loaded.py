"""What a user's function or an ``hf:`` name comes to: module, loss, batch, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from detente.records.fault import UsageFault


@dataclass(frozen=True)
class Loaded:
    """
    module      any ``torch.nn.Module``
    loss        ``loss(module, batch)`` -> 0-d tensor, or (0-d tensor, tensors by name)
    batch       tensors or numpy arrays in a mapping, a sequence, or alone; a function without arguments that
                returns such a batch; or a ``DataLoader`` of them
    optimizer   a ``torch.optim.Optimizer`` over the module's parameters, or None
    """

    module: torch.nn.Module
    loss: Callable[[torch.nn.Module, Any], Any]
    batch: Any
    optimizer: torch.optim.Optimizer | None = None


def check(found: Any, target: str) -> Loaded:
    """What the user's function returned, as a record. Raises UsageFault that says which part is wrong."""
    hint = "return (module, loss, batch) or (module, loss, batch, optimizer); see docs/add-a-workload.md"
    if not isinstance(found, tuple | list) or len(found) not in (3, 4):
        shape = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise UsageFault(f"{target} returned a {type(found).__name__}{shape}", hint)
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
    if wrong:
        raise UsageFault(f"{target}: {', '.join(wrong)}", hint)
    if loaded.optimizer is not None and not starts_from_zero(loaded.optimizer):
        raise UsageFault(
            f"{target}: {type(loaded.optimizer).__name__} with these settings does not start from zeros",
            f"a run is repeated from its start by zeroing the optimizer's state, which is right for "
            f"{', '.join(ZERO_START)}; use one of them",
        )
    return loaded


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


def draws(loaded: Loaded, again: Callable[[], Loaded]) -> Iterator[Any]:
    """Batch after batch, without end. For a batch that is data, ``again`` is asked for a new one: the function runs
    once more, and gives other random numbers unless it fixes its own seed."""
    if isinstance(loaded.batch, torch.utils.data.DataLoader):
        while True:
            yield from loaded.batch
    elif callable(loaded.batch) and not isinstance(loaded.batch, torch.Tensor):
        while True:
            yield loaded.batch()
    else:
        yield loaded.batch
        while True:
            yield again().batch


@dataclass(frozen=True)
class Form:
    """How a batch is put together, so that it can travel as named arrays and be put back.

    kind        mapping, tuple, list or alone
    keys        of its entries in order; a sequence's are "0", "1", ...
    constants   entries that are neither tensor nor array: they do not travel, and every stack gets them as they are
    """

    kind: str
    keys: tuple[str, ...]
    constants: Mapping[str, Any]

    @staticmethod
    def of(batch: Any) -> Form:
        """Raises UsageFault for a batch that is nested or has no tensor."""
        kind, entries = _entries(batch)
        nested = [k for k, v in entries.items() if isinstance(v, Mapping | list | tuple)]
        if nested:
            raise UsageFault(
                f"the entry {nested[0]!r} of the batch is a {type(entries[nested[0]]).__name__}",
                "flatten the batch to one mapping or sequence of tensors; rebuild the nesting in your loss",
            )
        constants = {k: v for k, v in entries.items() if not isinstance(v, torch.Tensor | np.ndarray)}
        if len(constants) == len(entries):
            raise UsageFault(
                "the batch has no tensor", "a batch is a mapping or a sequence of tensors, or a tensor"
            )
        return Form(kind, tuple(entries), constants)

    def take_apart(self, batch: Any) -> dict[str, np.ndarray]:
        """Floating point as float32, integers as int64, truth values as they are."""
        _, entries = _entries(batch)
        return {k: _array(v) for k, v in entries.items() if k not in self.constants}

    def put_together(self, arrays: Mapping[str, Any]) -> Any:
        """The inverse, with whatever tensors a stack made of the arrays."""
        entries = {k: self.constants[k] if k in self.constants else arrays[k] for k in self.keys}
        if self.kind == "mapping":
            return entries
        if self.kind == "alone":
            return entries["0"]
        return tuple(entries.values()) if self.kind == "tuple" else list(entries.values())


def _entries(batch: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(batch, Mapping):
        return "mapping", {str(k): v for k, v in batch.items()}
    if isinstance(batch, tuple | list):
        return "tuple" if isinstance(batch, tuple) else "list", {str(i): v for i, v in enumerate(batch)}
    return "alone", {"0": batch}


def _array(value: Any) -> np.ndarray:
    tensor = torch.as_tensor(value).detach().cpu()
    if tensor.is_complex():
        raise UsageFault("a batch entry is complex", "split it into real and imaginary parts")
    if tensor.is_floating_point():
        return tensor.float().numpy()
    return tensor.numpy() if tensor.dtype == torch.bool else tensor.long().numpy()
