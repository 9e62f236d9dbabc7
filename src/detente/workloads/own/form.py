"""How a user's batch is put together, so that it can travel as named arrays and be put back, whatever made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detente.records.fault import UsageFault


@dataclass(frozen=True)
class Form:
    """
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
        constants = {k: v for k, v in entries.items() if not is_array(v)}
        if len(constants) == len(entries):
            raise UsageFault(
                "the batch has no tensor", "a batch is a mapping or a sequence of tensors, or a tensor"
            )
        return Form(kind, tuple(entries), constants)

    @property
    def travelling(self) -> tuple[str, ...]:
        """The entries that are arrays, in order."""
        return tuple(k for k in self.keys if k not in self.constants)

    def take_apart(self, batch: Any) -> dict[str, np.ndarray]:
        """Floating point as float32, integers as int64, truth values as they are."""
        _, entries = _entries(batch)
        return {k: _array(k, v) for k, v in entries.items() if k not in self.constants}

    def put_together(self, arrays: Mapping[str, Any]) -> Any:
        """The inverse, with whatever tensors a stack made of the arrays."""
        entries = {k: self.constants[k] if k in self.constants else arrays[k] for k in self.keys}
        if self.kind == "mapping":
            return entries
        if self.kind == "alone":
            return entries["0"]
        return tuple(entries.values()) if self.kind == "tuple" else list(entries.values())


def draws(batch: Any, again: Callable[[], Any]) -> Iterator[Any]:
    """Batch after batch, without end. For a batch that is data, ``again`` is asked for a new one: the function runs
    once more, and gives other random numbers unless it fixes its own seed.

    batch   data; a function without arguments that returns some; or a loader (torch's DataLoader) to go through
    """
    if hasattr(batch, "dataset") and hasattr(batch, "__iter__"):
        while True:
            yield from batch
    elif callable(batch) and not is_array(batch):
        while True:
            yield batch()
    else:
        yield batch
        while True:
            yield again()


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy, or a tensor of a framework: told by what every such has, so that none is
    imported."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _entries(batch: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(batch, Mapping):
        return "mapping", {str(k): v for k, v in batch.items()}
    if isinstance(batch, tuple | list):
        return "tuple" if isinstance(batch, tuple) else "list", {str(i): v for i, v in enumerate(batch)}
    return "alone", {"0": batch}


def _array(name: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # torch, whose bfloat16 numpy does not take
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    try:
        array = np.asarray(value)
    except TypeError as error:
        raise UsageFault(
            f"the entry {name!r} of the batch is no array of numbers: {error}", _NUMBERS
        ) from None
    if array.dtype == bool:
        return array
    if np.issubdtype(array.dtype, np.complexfloating):
        raise UsageFault(
            f"the entry {name!r} of the batch is complex", "split it into real and imaginary parts"
        )
    if np.issubdtype(array.dtype, np.integer):
        return array.astype(np.int64)
    try:
        return array.astype(np.float32)  # bfloat16 too, which numpy takes for no number of its own
    except (TypeError, ValueError):
        raise UsageFault(f"the entry {name!r} of the batch has dtype {array.dtype}", _NUMBERS) from None


_NUMBERS = (
    "a batch travels as floating point, whole numbers or truth values; make random keys inside the loss"
)
