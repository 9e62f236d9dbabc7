"""Tensors that are on their way: what ``step(batch)`` returns before the device is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from detente.bridge.arrays import to_torch
from detente.bridge.graph import Aval
from detente.bridge.private import make_subclass, pytree, without_subclasses

# what is known without waiting
_FREE = {"shape", "dtype", "device", "ndim", "layout", "size", "dim", "numel", "requires_grad", "is_leaf"}


class Pending(torch.Tensor):
    """A tensor whose values are fetched when something first reads them (``float``, ``item``, ``print``,
    arithmetic).

    Reading may raise what torch would have raised in the forward pass (an index out of range), because a
    compiled step reports it with the loss. ``wait()`` gives the plain tensor.
    """

    _fetch: Callable[[], Any]
    _plain: torch.Tensor | None
    array: Any

    @staticmethod
    def of(aval: Aval, fetch: Callable[[], Any], array: Any) -> Pending:
        """``fetch`` waits and gives a numpy array of this shape and dtype, or raises; ``array`` is what is
        on the device, unchecked."""
        empty = torch.empty(aval.shape, dtype=getattr(torch, aval.dtype), device="meta")
        made = make_subclass(Pending, empty)
        made._fetch, made._plain, made.array = fetch, None, array
        return made

    def wait(self) -> torch.Tensor:
        """The plain tensor. Raises IndexError and its like on a fault, every time it is asked."""
        if self._plain is None:
            # Out here: a signal's handler that comes meanwhile reads weights, and those must be asked.
            fetched = self._fetch()
            with without_subclasses():
                self._plain = to_torch(np.asarray(fetched))
        return self._plain

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "backward" and isinstance(args[0], Pending):
            raise RuntimeError(
                "backward() of what a step of detente.compile returned: the step has run the backward pass and the "
                "optimizer's update already; take backward() and optimizer.step() out of the loop "
                "(clip_norm= and accumulate= of detente.compile are what stood around them)"
            )
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        with without_subclasses():
            if name == "device":
                return torch.device("cpu")
            if name in _FREE:
                return func(*args, **(kwargs or {}))

        def plain(value: Any) -> Any:
            return value.wait() if isinstance(value, Pending) else value

        args, kwargs = pytree.tree_map(plain, (args, kwargs or {}))
        with without_subclasses():
            return func(*args, **kwargs)
