"""Who asks for gradients behind a compiled step, which leaves none: what clips them changes nothing, and what logs
their norm logs 0, without a word of torch's.

Torch's own code asks for a ``.grad`` for reasons of its own (``zero_grad``, ``optimizer.step()`` of a trainer, a copy),
and so does an optimizer of somebody else's; who clips, and the user's own code, wants the values.
"""

from __future__ import annotations

import warnings
from types import FrameType

import torch

_CLIPS = "torch.nn.utils.clip_grad"
_NEAR = 3  # frames between the question and the method of an optimizer that asks it


def _asks(frame: FrameType) -> str:
    """The name of the module that it runs in."""
    return str(frame.f_globals.get("__name__", ""))


def _is_torchs(name: str) -> bool:
    return name.partition(".")[0] in ("torch", "detente")


def wants_values(frame: FrameType | None) -> bool:
    """Whether the code that runs in this frame asks for gradients, and not for whether there are any."""
    if frame is None:
        return False
    name = _asks(frame)
    if name == _CLIPS:
        return True
    if _is_torchs(name):
        return False
    for _ in range(_NEAR):
        if frame is None:
            break
        if isinstance(frame.f_locals.get("self"), torch.optim.Optimizer):
            return False
        frame = frame.f_back
    return True


def tell_once(frame: FrameType | None) -> None:
    """Warns at the first line outside of torch; the guard knows that it did."""
    level = 4  # behind this, the guard's, and what torch asks of a tensor's class
    while frame is not None and _is_torchs(_asks(frame)):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        "gradients are asked for behind a step of detente.compile, which leaves none in .grad: what clips them changes "
        "nothing, and what logs them sees nothing; clip by clip_norm= or clip_value= of detente.compile, and "
        "step.gradients(batch) gives those of a batch",
        stacklevel=level,
    )
