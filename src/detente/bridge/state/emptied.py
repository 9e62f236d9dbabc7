"""The live module's memory while a step is ahead of it: nobody needs it, and the system gets it back.

A step trains copies on the device, and whoever reads the live module is given its values first (live/guard.py). Until
then what lies there is old, and of BERT-Base's it is 0.44 GB. The pages are given up and the addresses kept: tensors,
their pointers and their versions are what they were, and the next fill is made in fresh pages.

Only what no other way leads to is given up: a tensor that alone has its memory, which torch has allocated and no array
of numpy's has ever shown, that nothing of C's holds (a graph, TorchScript, a transfer under way), and that nobody reads
in this moment. Where a loop reads the module again and again, this waits longer each time.

How it can fail: a pointer that somebody keeps from before ``compile`` (an extension of the user's) finds zeros where it
found old values. ``DETENTE_KEEP_MODULE=1`` keeps them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from detente.bridge.private import alone

VARIABLE = "DETENTE_KEEP_MODULE"
# Bytes of a tensor, and of all of them, below which nothing is won.
SMALL, LITTLE = 64 << 10, 16 << 20
# Steps that the module must have been behind for: at first, and where it is read in between again and again. A refill
# costs about as much as a copy does, so that one in 17 steps is what a loop can lose.
FIRST, LAST = 1, 16


class Emptied:
    """What of one step's live tensors has no memory now, and when the next may be given up."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._wait = self._at = FIRST
        self._behind = 0  # steps since the module was filled
        self._kept = os.environ.get(VARIABLE) == "1" or _system() is None

    def filled(self) -> None:
        """The live tensors were given their values."""
        if self.tensors:
            self._wait = min(2 * self._wait, LAST)
        self.tensors, self._behind, self._at = [], 0, self._wait

    def due(self) -> bool:
        """Asked once before every step that finds the module behind: whether its memory may go now. Where it could not
        go (somebody was reading), it is asked for again."""
        self._behind += 1
        if self._kept or self.tensors or self._behind < self._at:
            return False
        self._at = self._behind + LAST
        return True

    def empty(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give up the pages of those that nothing else leads to. To be called where no ``__torch_function__`` is
        asked, and while nobody reads them."""
        found = [tensor for tensor in tensors if _may(tensor)]
        if sum(tensor.nbytes for tensor in found) >= LITTLE:
            self.tensors = [tensor for tensor in found if _given_up(tensor)]


def _may(tensor: torch.Tensor) -> bool:
    ordinary = tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.is_leaf
    return ordinary and tensor.nbytes >= SMALL and alone(tensor)


def _given_up(tensor: torch.Tensor) -> bool:
    """Whole pages only: what lies at the edges is shared with neighbours."""
    storage = tensor.untyped_storage()
    begin, size = storage.data_ptr(), mmap.PAGESIZE
    first, last = -(-begin // size) * size, (begin + storage.nbytes()) // size * size
    return last > first and _system().madvise(first, last - first, mmap.MADV_DONTNEED) == 0


@cache
def _system() -> Any:
    """Where pages are given up by this call, and read as zeros then: Linux alone; elsewhere it may do nothing."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library
