"""Operators of torch that run nobody's code but torch's, while the code that runs in a capture is noted.

Below each of them export's machinery runs thousands of functions, and to look at those takes as long as the whole
capture. An operator that may run a user's code (it is given a function, a user's tensor class, a mode or hooks of a
user's are active, it is a user's own operator, it differentiates) is followed as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from detente.bridge.capture.where import here
from detente.bridge.live.ran import Ran
from detente.bridge.private import active_modes, is_torchs, packs_saved_tensors, users_dispatch_modes
from detente.bridge.refusal import refuse


@contextmanager
def without_torchs_code(ran: Ran) -> Iterator[None]:
    """What runs below torch's own operators in the block is not noted. For the forward of one capture: a mode that is
    active when it begins is torch's."""
    mode: Any = proxy_tensor.PreDispatchTorchFunctionMode
    plain, torchs = mode.__torch_function__, active_modes()

    def function(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if active_modes() != torchs:
            _none_below()
        if (
            active_modes() != torchs
            or packs_saved_tensors()
            or not is_torchs(func, types)
            or not _is_given_data(args, kwargs or {})
        ):
            return plain(self, func, types, args, kwargs)
        with ran.noting(False):
            return plain(self, func, types, args, kwargs)

    mode.__torch_function__ = function
    try:
        yield
    finally:
        mode.__torch_function__ = plain


def _none_below() -> None:
    """Raises Refused inside of a dispatch mode of the user's: it would be given tensors without values, and what it
    makes of them is no part of the program."""
    for mode in users_dispatch_modes():
        name = f"{type(mode).__module__}.{type(mode).__qualname__}"
        raise refuse(
            "transform",
            f"{name}, a mode below torch's operators, is on inside of the loss, where a program is captured above them",
            here(),
            "write what it does in forward or the loss; a TorchFunctionMode is part of the program",
        )


def _is_given_data(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether no argument could be called: a type (``x.to(torch.Tensor)``) and a tensor can, and run nothing."""
    return all(isinstance(a, type | torch.Tensor) or not callable(a) for a in (*args, *kwargs.values()))
