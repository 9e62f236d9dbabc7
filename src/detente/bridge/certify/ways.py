"""Ways in which torch itself may round: its kernels sum in another order without oneDNN, channels last, on another
number of threads, and each operation may round its result the other way (random rounding: Parker, Monte Carlo
Arithmetic, 1997). How far a right step may lie from float64 is measured in all of them where one says too little: the
nine runs of one kernel share its luck. MobileViT's running means, which cancel to nothing, were 1.5 times over;
MobileNetV1 drops 999 of 1000 features, its softmax is then 1 + 5e-6 at every point one rounding away, and one rounding
of that one number was 1.08 times what torch's own was, in every gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from detente.bridge.certify.narrowed import narrowed
from detente.bridge.private import TorchDispatchMode, decompositions, pytree


@dataclass(frozen=True)
class Way:
    """One of them; the plain one is what the user runs."""

    onednn: bool = True
    channels_last: bool = False
    threads: bool = False
    rounds: int | None = None  # a seed: every result of the step is off by at most one rounding, at random
    # products as the accelerator has them on which the step runs: what the user asked for, and no choice of torch's
    tf32: bool = False

    @contextmanager
    def inside(self, tensors: Iterable[torch.Tensor] = ()) -> Iterator[None]:
        """The process in this way; as it was afterwards, and so are ``tensors``, a module's: channels last while it is
        open, where the kernels follow the weights of convolutions, and plain again with their gradients, because an
        update is no matter of layouts. Never around an update: FOCUS takes the sign of what is rounding alone in its
        first step, and each way would be one more step of eager's that a wrong one may be like."""
        mkldnn: Any = torch.backends.mkldnn
        enabled, threads = mkldnn.enabled, torch.get_num_threads()
        laid = [t for t in tensors if self.channels_last and _can_be_laid(t)]
        try:
            for tensor in laid:
                tensor.data = tensor.data.contiguous(memory_format=_LAYOUTS[tensor.dim()])
            mkldnn.enabled = enabled and self.onednn
            if self.threads:
                torch.set_num_threads(1 if threads > 1 else 2)
            rounding = nullcontext() if self.rounds is None else _Rounding(self.rounds)
            with rounding, narrowed() if self.tf32 else nullcontext():
                yield
        finally:
            for tensor in laid:
                tensor.data = tensor.data.contiguous()
                if tensor.grad is not None:
                    tensor.grad = tensor.grad.contiguous()
            mkldnn.enabled = enabled
            torch.set_num_threads(threads)


class _Rounding(TorchDispatchMode):
    """Every floating result that an operation computes anew, toward zero by one rounding or as it is: what a kernel
    that is right to one rounding may return; an operation of several (a softmax) in its pieces. Not what it only shows
    (views) or writes in place: the update's own rounding is counted by the certificate's floor. Toward zero, because a
    mask of the lowest number has no other neighbour."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pieces = _PIECES.get(func)
        if pieces is not None:
            with self:
                return pieces(*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns) or not any(
            isinstance(a, torch.Tensor) for a in pytree.tree_leaves(args)
        ):
            return found
        return pytree.tree_map(self._rounded, found)

    def _rounded(self, value: Any) -> Any:
        if (
            not isinstance(value, torch.Tensor)
            or not value.is_floating_point()
            or value.layout != torch.strided
        ):
            return value
        down = torch.rand(value.shape, generator=self._generator) < 0.5
        return torch.where(down.to(value.device), torch.nextafter(value, torch.zeros_like(value)), value)


# Operations of many roundings, as torch itself writes them in smaller ones.
_PIECES = decompositions(
    (
        torch.ops.aten._softmax,
        torch.ops.aten._softmax_backward_data,
        torch.ops.aten._log_softmax,
        torch.ops.aten._log_softmax_backward_data,
    )
)


def _can_be_laid(tensor: torch.Tensor) -> bool:
    return tensor.dim() in _LAYOUTS and tensor.is_floating_point() and tensor.is_contiguous()


_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
PLAIN = Way()
# Beside each seed of roundings, in turn.
WAYS = (
    PLAIN,
    Way(onednn=False),
    Way(channels_last=True),
    Way(threads=True),
    Way(channels_last=True, threads=True),
    Way(onednn=False, threads=True),
    Way(rounds=7),
    Way(onednn=False, channels_last=True, rounds=8),
)
