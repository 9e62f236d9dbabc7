"""Ways in which torch itself may round: its kernels sum in another order without oneDNN, channels last, on another
number of threads. How far a right step may lie from float64 is measured in all of them where one says too little: the
nine runs of one kernel share its luck (MobileNetV1's gradients were 1.08 times over, MobileViT's running means, which
cancel to nothing, 1.5 times)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Way:
    """One of them; the plain one is what the user runs."""

    onednn: bool = True
    channels_last: bool = False
    threads: bool = False

    def lay_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Weights of convolutions in this way's layout; the kernels follow them."""
        for tensor in tensors if self.channels_last else ():
            if tensor.dim() in _LAYOUTS and tensor.is_floating_point():
                tensor.data = tensor.data.contiguous(memory_format=_LAYOUTS[tensor.dim()])

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The process in this way; as it was afterwards."""
        mkldnn: Any = torch.backends.mkldnn
        enabled, threads = mkldnn.enabled, torch.get_num_threads()
        try:
            mkldnn.enabled = enabled and self.onednn
            if self.threads:
                torch.set_num_threads(1 if threads > 1 else 2)
            yield
        finally:
            mkldnn.enabled = enabled
            torch.set_num_threads(threads)


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
    PLAIN,
    Way(onednn=False, channels_last=True),
)
