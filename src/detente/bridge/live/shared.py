"""Tensors in memory that other processes have as well: ``share_memory_()``, what was sent to a process, a file that is
mapped, ``multiprocessing.shared_memory``. Who reads and writes there is in another process, and asks nobody.

The system is asked where it tells (Linux: the process's map of its memory). torch says ``is_shared()`` of a file that
is mapped for this process alone, too (``UntypedStorage.from_file``), and not of a buffer of Python's; elsewhere it is
what there is.

How it can fail: a driver maps its pinned memory as shared, too, and is left out by name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

import torch

_MAPS = Path("/proc/self/maps")
_DRIVERS = ("/dev/nvidia", "/dev/dri", "/dev/kfd")


def address(tensor: torch.Tensor) -> int:
    """Where its memory begins; 0 where it has none that anybody could share (on the meta device, sparse, or of a trace
    that was given up)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def shared(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that lie in memory of other processes, too. To be called where no ``__torch_function__`` is asked."""
    tensors, spans = [t for t in tensors if t.device.type == "cpu"], _spans()
    if spans is None:
        return [t for t in tensors if t.is_shared()]
    begins = [begin for begin, _ in spans]
    found = []
    for tensor in tensors:
        at = address(tensor)
        place = bisect_right(begins, at) - 1
        if at and place >= 0 and at < spans[place][1]:
            found.append(tensor)
    return found


def _spans() -> list[tuple[int, int]] | None:
    """From where to where memory is mapped as shared, in order; None where the system does not tell."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:  # 7f40d4a00000-7f40d4a01000 rw-s 00000000 00:01 4711   /dev/shm/torch_1_2 (deleted)
        where, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights.endswith("s") and not "".join(name).startswith(_DRIVERS):
            begin, _, end = where.partition("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


class Meeting:
    """A step and other processes in the same memory. What they write while the step runs is kept: the step's change
    goes on top of it, as eager's ``p.add_(...)`` does, and not in its place (Hogwild). Where nobody has written, the
    value is the step's to the bit.

    How it can fail: a write that falls into the moment in which the change is added, as in eager.
    """

    def __init__(self) -> None:
        self._shared: set[int] = set()
        self._begun: dict[
            int, tuple[torch.Tensor, torch.Tensor]
        ] = {}  # by id: the tensor, and what a step found there

    def __bool__(self) -> bool:
        return bool(self._shared)

    def of(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are all that are shared."""
        self._shared = set(map(id, tensors))
        self._begun = {i: found for i, found in self._begun.items() if i in self._shared}

    def forget(self) -> None:
        """What is written next was not made of what stands there: a state that was loaded."""
        self._begun.clear()

    def begun(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a step begins with: a copy, of one that is shared."""
        if id(tensor) not in self._shared:
            return tensor
        found = tensor.detach().clone()
        self._begun[id(tensor)] = tensor, found
        return found

    def merged(self, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """What to write there, where the step has made ``value`` of what it found."""
        if id(tensor) not in self._begun or tensor.dtype is torch.bool:
            return value
        found, now = self._begun[id(tensor)][1], tensor.detach()
        same = now == found
        return value if bool(same.all()) else torch.where(same, value, now + (value - found))
