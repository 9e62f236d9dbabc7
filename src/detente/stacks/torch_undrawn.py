"""A torch module built without drawing its initial weights."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

# By name: transformers puts functions of its own in the place of torch.nn.init's while it builds a model, and one of
# torch.nn.init that hands itself to the mode hides the method that it calls.
DRAWS = frozenset(
    {
        *("normal_", "uniform_", "kaiming_uniform_", "exponential_", "log_normal_", "cauchy_"),
        *("bernoulli_", "random_", "geometric_"),
    }
)


def undrawn() -> AbstractContextManager[Any]:
    """While it is open, an in-place draw (``normal_``, ``uniform_``, ``torch.nn.init``'s) leaves zeros.

    For a module whose tensors are all loaded afterwards. A buffer that is drawn and *not* part of the state dict would
    stay zero; no two processes agree about such a buffer anyway.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Undrawn(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            given = kwargs or {}
            if getattr(func, "__name__", "") not in DRAWS:
                return func(*args, **given)
            with torch.no_grad():
                return (args[0] if args else given["tensor"]).zero_()

    return Undrawn()
