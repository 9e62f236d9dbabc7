"""What stands around an optimizer's ``step()`` while it is traced: torch's factories and Python's own builtins.

Both would ask a symbolic number for its value. Inside ``lifted_builtins`` and ``Factories`` they record it instead.
"""

from __future__ import annotations

import builtins
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from detente.bridge.optim.number import is_number, lifted
from detente.bridge.optim.reasons import no_graph

# another name of the same, which functionalize does not know
SPELT = {
    torch.Tensor.clip_: torch.Tensor.clamp_,
    torch.Tensor.clip: torch.Tensor.clamp,
    torch.clip: torch.clamp,
    torch.Tensor.__ior__: torch.Tensor.bitwise_or_,
    torch.Tensor.__iand__: torch.Tensor.bitwise_and_,
    torch.Tensor.__ixor__: torch.Tensor.bitwise_xor_,
}

ASKED: Any = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
MADE = {torch.zeros, torch.ones, torch.empty, torch.full, torch.eye, torch.arange}


class Factories(TorchFunctionMode):
    """Two calls that functionalize or a symbolic number cannot pass, said in other words: ``torch.as_tensor(number)``
    asks for the number's value (a recorded fill instead), and ``square_`` has no functional form (``pow_(2)``
    is what ATen's composite calls)."""

    def __init__(self, name: str, where: Callable[[], Any]) -> None:
        super().__init__()
        self.name, self.where = name, where
        self.trained: set[int] = (
            set()
        )  # ids of the trace's parameters, which ask for a gradient as the real ones do

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == ASKED and id(args[0]) in self.trained:
            return True
        if func in (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward):
            raise no_graph(self.name, self.where())
        if func is torch.allclose or func is torch.Tensor.allclose:  # which gives a bool at once
            return bool(torch.isclose(*args, **kwargs).all())
        if func in (torch.tensor, torch.as_tensor, torch.scalar_tensor) and args and is_number(args[0]):
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            return torch.full((), args[0], dtype=dtype, device="meta")
        if (
            func in (torch.tensor, torch.as_tensor)
            and args
            and isinstance(args[0], bool | int | float | list | tuple)
        ):
            return constant(args[0], kwargs.get("dtype"))
        if func in MADE and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            kwargs["device"] = "meta"  # where a trace's parameters are
        if func in SPELT:
            return SPELT[func](*args, **kwargs)
        if func is torch.Tensor.cpu:  # where it is already
            return args[0]
        if func is torch.Tensor.square_:
            return args[0].pow_(2)
        return func(*args, **kwargs)


def constant(value: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor of Python's numbers, filled below functionalize and so with its values known; on the meta device
    ``torch.tensor`` would have none."""
    if isinstance(value, list | tuple):
        if not value:
            return torch.zeros((0,), dtype=dtype or torch.get_default_dtype(), device="meta")
        return torch.stack([constant(item, dtype) for item in value])
    if isinstance(value, torch.Tensor):
        return value if dtype is None else value.to(dtype)
    kind = torch.get_default_dtype() if isinstance(value, float) or is_number(value) else None
    kind = kind or (torch.bool if isinstance(value, bool) else torch.int64)
    return torch.full((), value, dtype=dtype or kind, device="meta")


def spaces_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The global names of the modules that the optimizer's methods are written in (torch's own base aside).
    A class's ``__module__`` may name the package that re-exports it, so the functions are asked instead."""
    found: dict[int, dict[str, Any]] = {}
    for cls in type(optimizer).__mro__:
        if cls in (torch.optim.Optimizer, object):
            continue
        for function in vars(cls).values():
            if callable(function) and hasattr(inner := inspect.unwrap(function), "__globals__"):
                space = inner.__globals__
                if space["__name__"] != torch.optim.Optimizer.__module__:
                    found[id(space)] = space
    return list(found.values())


@contextmanager
def lifted_builtins(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """``max``, ``min`` and ``math.sqrt`` in the optimizer's own modules accept symbolic numbers meanwhile.

    Python's ``max(1.0, x)`` asks ``x > 1.0``, which would split the trace in two; recorded it stays one node.
    """
    lifted_math = SimpleNamespace(
        **{name: getattr(math, name) for name in dir(math) if not name.startswith("__")}
    )
    for name in ("sqrt", "exp", "log"):
        setattr(lifted_math, name, lifted(getattr(math, name), name))
    lifted_math.pow = lifted(math.pow, "pow")
    absent = object()
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for space in spaces_of(optimizer):
        for name in ("max", "min"):
            if space.get(name, getattr(builtins, name)) is getattr(builtins, name):
                changed.append((space, name, space.get(name, absent)))
                space[name] = lifted(getattr(builtins, name), name)
        if space.get("math") is math:
            changed.append((space, "math", math))
            space["math"] = lifted_math
    try:
        yield
    finally:
        for space, name, old in changed:
            if old is absent:
                del space[name]
            else:
                space[name] = old
