"""What ``detente.compile`` and ``detente.bridge.check`` are given, held against what they take before anything is
captured: a mistake is named by the argument that it is in, not in the words of whoever meets it later."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from torch import nn

from detente.bridge.lower.precision import known_matmul
from detente.bridge.refusal import Reason
from detente.bridge.step.options import BACKGROUND


def one_of(*allowed: str) -> Callable[[str, Any], str]:
    """An option that takes these words."""

    def word(name: str, value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(repr, allowed))}")
        return value

    return word


def integer(name: str, value: Any) -> int:
    """As Python's own. Raises TypeError for what is none (``"0"``, ``1.5``)."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r} (a {type(value).__name__}); it is an integer") from None


def count(name: str, value: Any) -> int:
    """Of micro-batches."""
    found = integer(name, value)
    if found < 1:
        raise ValueError(f"{name} is {found}; a batch is at least 1 micro-batch")
    return found


def number(name: str, value: Any) -> float:
    """As Python's own. Raises TypeError for what is none (``"1"``)."""
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} is {value!r} (a {type(value).__name__}); it is a number")
    return float(value)


def tune(name: str, value: Any) -> bool | str:
    """``1`` is True, as everywhere in Python."""
    if value not in (False, True, BACKGROUND):
        raise ValueError(f"{name} is {value!r}; it is True, False or {BACKGROUND!r}")
    return value if value == BACKGROUND else bool(value)


# What each option takes; None leaves out those that have no other default.
KINDS: dict[str, Callable[[str, Any], Any]] = {
    "certificate": one_of("full", "short", "none"),
    "nonfinite": one_of("raise", "return"),
    "matmul": known_matmul,
    "tune": tune,
    "seed": integer,
    "accumulate": count,
    "clip_norm": number,
    "clip_value": number,
    "ema": number,
}
_OPTIONAL = frozenset({"certificate", "seed", "clip_norm", "clip_value", "ema"})


def checked(**given: Any) -> dict[str, Any]:
    """The options, each as its own kind. Raises TypeError or ValueError with the name and the value of the first that
    is none."""
    return {
        name: value if value is None and name in _OPTIONAL else KINDS[name](name, value)
        for name, value in given.items()
    }


def takes_part(model: Any, loss: Any) -> None:
    """Raises TypeError where the model is no module or the loss cannot be called."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {_kind(model)}; it is a torch.nn.Module")
    if not callable(loss):
        raise TypeError(f"loss is {_kind(loss)}; it is a function loss(model, batch)")


def criterion(loss: Any) -> list[Reason]:
    """That ``loss`` is one of torch's own, which know of no model, or takes no model and batch; nothing where it takes
    them."""
    own = type(loss) if isinstance(loss, nn.Module) else loss
    if getattr(own, "__module__", None) not in ("torch.nn.modules.loss", "torch.nn.functional"):
        return _of_two(loss)
    what = f"the loss is called as loss(model, batch), and {own.__name__} takes a prediction and a target"
    return [Reason("loss", what, hint="write lambda model, batch: criterion(model(batch[0]), batch[1])")]


def _of_two(loss: Any) -> list[Reason]:
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # written in C
        return []
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(loss, "__name__", type(loss).__name__)
        what = f"the loss is called as loss(model, batch), and {name} takes {signature}"
        return [
            Reason(
                "loss",
                what,
                hint="take the batch apart inside of it: def loss(model, batch): x, y = batch; ...",
            )
        ]
    return []


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
