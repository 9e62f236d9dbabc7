"""Memory that others than torch write: an array of numpy's that a tensor was made of, or that was made of a tensor.

``array[...] = 2`` moves no version counter, so the values themselves are compared with those of before. torch marks
such memory: its storage can not be resized, nor can that of a file or of another library's array. Only the smallest of
it is compared, up to a bound for all together: a step waits for it. What other processes write is another room's
(shared.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from detente.bridge.live.shared import shared

LARGEST = 1 << 22  # bytes of all that is compared: 0.4 ms of this memory's reading


class Unheard:
    """What of ``tensors`` lies in such memory, with its values of now."""

    def __init__(self, names: Sequence[str], tensors: Iterable[torch.Tensor]) -> None:
        found = [(n, t) for n, t in zip(names, tensors, strict=True) if _others(t)]
        processes = set(map(id, shared(t for _, t in found))) if found else ()
        found = [(n, t) for n, t in found if id(t) not in processes]
        self._known: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        left = LARGEST
        for name, tensor in sorted(found, key=lambda each: each[1].nbytes):
            left -= tensor.nbytes
            if left < 0:
                break
            self._known[name] = tensor, _raw(tensor).clone()

    def __bool__(self) -> bool:
        return bool(self._known)

    def moved(self) -> set[str]:
        """Names of those that hold other values than before."""
        return {n for n, (t, then) in self._known.items() if not _same(_raw(t), then)}

    def written(self, places: Collection[int]) -> None:
        """What lies at ``places`` was written by the step itself, or taken over by it."""
        for name, (tensor, _) in self._known.items():
            if tensor.untyped_storage().data_ptr() in places:
                self._known[name] = tensor, _raw(tensor).clone()


def _others(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.numel():
        return False
    return not tensor.untyped_storage().resizable()


def _same(now: torch.Tensor, then: torch.Tensor) -> bool:
    return now.shape == then.shape and torch.equal(now, then)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes: NaN is equal to itself there, and 0.0 is not -0.0."""
    values = tensor.detach().resolve_conj().resolve_neg()
    return values.contiguous().reshape(-1).view(torch.uint8)
