"""The live module's memory while a step is ahead of it: nobody needs it, and the system gets it back.

A step trains copies on the device, and whoever reads the live module is given its values first (live/guard.py). Until
then what lies there is old, and of BERT-Base's it is 0.44 GB. The pages are given up and the addresses kept: tensors,
their pointers and their versions are what they were, and the next fill is made in fresh pages.

Only what no other way leads to is given up: a tensor that alone has its memory and all of it, which torch has allocated
and no array of numpy's has ever shown, that nothing of C's holds (a graph, TorchScript, a transfer under way), and that
nobody reads in this moment. Only what steps change: a frozen weight is the same in both places, and whoever reads it
unasked is right. Where a loop reads the module again and again, this waits longer each time.

Who is asked may be unable to answer: inside of a call (a signal's handler reads), or dead (the collector clears weak
references before it calls finalizers). So a tensor without memory leads to what can fill it by itself (``refill``), for
as long as it has none.

How it can fail: who reads a trained weight in C without being seen finds zeros where he found old values: a pointer
that he keeps from before ``compile``, ``torch.tensor(p)`` and other constructors, ``y.backward(gradient=p)``, a child
of a fork in C. ``DETENTE_KEEP_MODULE=1`` keeps them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from detente.bridge.live.guard import EMPTIED
from detente.bridge.private import alone

VARIABLE = "DETENTE_KEEP_MODULE"
# Bytes of a tensor, and of all of them, below which nothing is won.
SMALL, LITTLE = 64 << 10, 16 << 20
# Steps that the module must have been behind for: at first, and where it is read in between again and again. A refill
# costs about as much as a copy does, so that one in 17 steps is what a loop can lose.
FIRST, LAST = 1, 16


class Emptied:
    """What of one step's live tensors has no memory now, and when the next may be given up.

    ``state`` is the step's, which is all that a refill needs. The step itself is not held: it would live as long as its
    module.
    """

    def __init__(self, fill: Callable[[Emptied], None]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}  # by name
        self.state: Any = None
        self._fill, self._filling = fill, False
        self._wait = self._at = FIRST
        self._behind = 0  # steps since the module was filled
        self._kept = os.environ.get(VARIABLE) == "1" or _system() is None

    def filled(self) -> None:
        """The live tensors were given their values."""
        if self.tensors:
            self._wait = min(2 * self._wait, LAST)
        for tensor in self.tensors.values():
            tensor.__dict__.pop(EMPTIED, None)
        self.tensors = {}
        self._behind, self._at = 0, self._wait

    def refill(self) -> None:
        """By whoever reads one of them, and found nobody to ask."""
        if self.tensors and not self._filling:
            with self.filling():
                self._fill(self)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """They are being given their values: what is written there reads nothing."""
        before, self._filling = self._filling, True
        try:
            yield
        finally:
            self._filling = before

    def due(self) -> bool:
        """Asked once before every step that finds the module behind: whether its memory may go now. Where it could not
        go (somebody was reading), it is asked for again."""
        self._behind += 1
        if self._kept or self.tensors or self._behind < self._at:
            return False
        self._at = self._behind + LAST
        return True

    def empty(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give up the pages of those that nothing else leads to. To be called where no ``__torch_function__`` is asked,
        and while nobody reads them."""
        found = {name: tensor for name, tensor in tensors.items() if _may(tensor)}
        if sum(tensor.nbytes for tensor in found.values()) < LITTLE:
            return
        for name, tensor in found.items():
            # Before and behind: a signal's handler may read, and so fill, between any two lines.
            self._without(name, tensor)
            if _given_up(tensor):
                self._without(name, tensor)
            else:
                self.tensors.pop(name, None)
                tensor.__dict__.pop(EMPTIED, None)

    def _without(self, name: str, tensor: torch.Tensor) -> None:
        self.tensors[name] = tensor
        tensor.__dict__[EMPTIED] = self


def _may(tensor: torch.Tensor) -> bool:
    ordinary = tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.is_leaf
    return ordinary and tensor.nbytes >= SMALL and _fills_its_memory(tensor) and alone(tensor)


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether every byte there is an element of the tensor, in whatever order: a row that was cut off a table has
    neighbours, which a fill would not bring back."""
    dense, size = True, 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        dense = dense and (length == 1 or stride == size)
        size *= length
    return dense and tensor.untyped_storage().nbytes() == tensor.nbytes


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
