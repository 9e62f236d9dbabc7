"""Values that Python reads of a tensor which the loss holds (``float(self.temperature)``, ``alpha=w``, ``w.tolist()``).

Such a tensor is an input of the program where it is computed with. What Python reads of it is in the program instead,
for as long as it is the same: so the places are noted here, and what stands in them is compared before every step.

torch says of a read what was read, and where it is of something that was computed of a held tensor, a number, not of
which: then every one that is as small may be the one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from detente.bridge.private import FakeTensor, TorchDispatchMode

MOST = 1 << 16  # bytes of a tensor that is compared before every step
_LISTS = ("tolist", "numpy", "__array__", "__contains__", "__reversed__", "__iter__", "tensor", "as_tensor")
_DENSE = ("resolve_conj", "resolve_neg")  # what torch asks for before it reads a tensor's memory itself


class ReadValues:
    """``names`` of the tensors among ``held`` whose values were read while it was ``noting``."""

    def __init__(self, held: Mapping[str, torch.Tensor]) -> None:
        small = {name: t for name, t in held.items() if t.layout == torch.strided and t.nbytes <= MOST}
        self._held = {id(tensor): name for name, tensor in small.items() if not tensor.is_meta}
        self._single = [name for name, tensor in small.items() if tensor.numel() == 1]
        self.names: set[str] = set()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Costs nothing where nothing is held."""
        with ExitStack() as stack:
            if self._held:
                stack.enter_context(_InC(self))
                stack.enter_context(_InPython(self))
            yield

    def read(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._held:
            self.names.add(self._held[id(tensor)])
        elif isinstance(tensor, FakeTensor) and tensor.constant is not None:
            self.names.update(self._single)


class _InC(TorchDispatchMode):
    """``float(w)``, and whatever torch's own code reads for an argument that is a number."""

    supports_higher_order_operators = True  # it passes on whatever it is told of

    def __init__(self, found: ReadValues) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if args and isinstance(args[0], torch.Tensor) and (name == "_local_scalar_dense" or name in _DENSE):
            self.found.read(args[0])
        return func(*args, **(kwargs or {}))


class _InPython(TorchFunctionMode):
    """What reads memory, and no operator does."""

    def __init__(self, found: ReadValues) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _LISTS:
            for tensor in _tensors((args, *(kwargs or {}).values())):
                self.found.read(tensor)
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
