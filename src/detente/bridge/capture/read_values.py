"""Values that Python reads of a tensor which the loss holds (``float(self.temperature)``, ``alpha=w``, ``w.tolist()``).

Such a tensor is an input of the program where it is computed with. What Python reads of it is in the program instead,
for as long as it is the same: so the places are noted here, and what stands in them is compared before every step.

Seen are calls of torch's functions. Which of them reads a tensor of one number for an argument that is a number
(``alpha=w``), none of them says: those that are known to compute with tensors do not, and any other is taken to. Where
what is read was computed, nobody says of which: then every one may be the one.

How it can fail: towards more that is compared than need be. A dispatch mode hears of the reads themselves, and with one
on ``torch.export`` takes a scan apart that it cannot put together again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from detente.bridge.private import FakeTensor

MOST = 1 << 16  # bytes of a tensor that is compared before every step

# Names as torch's functions have them, in lines.
_READ = """
item tolist numpy __array__ __bool__ __int__ __float__ __complex__ __index__ __contains__ __format__ __repr__ __iter__
__reversed__ is_nonzero equal allclose tensor as_tensor asarray
"""
# No positional argument of theirs is a number that a tensor may be given for, or such a tensor is computed with.
_COMPUTE = """
__get__ __set__ size dim numel stride element_size is_floating_point is_complex data_ptr __len__ __hash__
to type type_as float double half bfloat16 long int bool cpu detach clone alias contiguous requires_grad_ view
view_as reshape reshape_as expand expand_as unsqueeze squeeze flatten permute transpose t __getitem__ select
narrow repeat broadcast_to cat stack where
add sub subtract mul multiply div divide true_divide pow remainder fmod maximum minimum atan2 hypot logaddexp
add_ sub_ mul_ div_ pow_ copy_ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__
__truediv__ __rtruediv__ __itruediv__ __pow__ __rpow__ __neg__ __abs__ __pos__ __matmul__ __rmatmul__
eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ logical_and logical_or logical_not __and__ __or__
__invert__ neg abs exp expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sin cos tan tanh sigmoid relu silu
softplus logsigmoid sign erf floor ceil sum mean prod max min amax amin norm matmul mm bmm linear dot mv outer
lerp clamp clip clamp_min clamp_max softmax log_softmax mse_loss l1_loss cross_entropy nll_loss
binary_cross_entropy binary_cross_entropy_with_logits kl_div isnan isfinite isinf nan_to_num
"""
_OPERANDS = "input other exponent weight bias target mask min max dim keepdim dtype pos_weight"
READ, COMPUTE, OPERANDS = (frozenset(names.split()) for names in (_READ, _COMPUTE, _OPERANDS))


class ReadValues:
    """``names`` of the tensors among ``held`` whose values were read while it was ``noting``."""

    def __init__(self, held: Mapping[str, torch.Tensor]) -> None:
        small = {name: t for name, t in held.items() if t.layout == torch.strided and t.nbytes <= MOST}
        self._held = {id(tensor): name for name, tensor in small.items() if not tensor.is_meta}
        self.names: set[str] = set()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Costs nothing where nothing is held."""
        if not self._held:
            yield
            return
        with _Calls(self):
            yield

    def called(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
        if name in READ:
            for tensor in _tensors((args, *kwargs.values())):
                self._read(tensor)
            return
        others = [value for key, value in kwargs.items() if key not in OPERANDS]
        if name == "__getitem__":
            others.append(args[1:])  # an index of one number is read
        for tensor in _tensors(others if name in COMPUTE else (args, *kwargs.values())):
            if tensor.numel() == 1:
                self._read(tensor)

    def _read(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._held:
            self.names.add(self._held[id(tensor)])
        elif isinstance(tensor, FakeTensor):
            # torch.export makes a number of it where it follows from constants, and may do so only in the end
            self.names.update(self._held.values())


class _Calls(TorchFunctionMode):
    def __init__(self, found: ReadValues) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.called(getattr(func, "__name__", ""), args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
