"""What stands in the place of a function of torch's and has no name: ``functools.partial(F.cross_entropy,
label_smoothing=0.1)``, an object that is called. A trace names every operation by the function that it is of, and ends
where that has none; so a function with the name of the place stands there meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_WHERE = (torch, nn.functional, torch.linalg, torch.special, torch.fft)


@contextmanager
def keep_nameless() -> Iterator[None]:
    found = [
        (vars(module), key, value)
        for module in _WHERE
        for key, value in vars(module).items()
        if callable(value) and not hasattr(value, "__name__") and not key.startswith("__")
    ]
    for table, key, value in found:
        table[key] = _named(key, value)
    try:
        yield
    finally:
        for table, key, value in found:
            table[key] = value


def _named(name: str, value: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    called.__name__ = name
    return called
