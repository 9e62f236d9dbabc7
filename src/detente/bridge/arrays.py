"""Torch tensors as numpy arrays of the same dtype name, bit for bit (numpy alone has no bfloat16 and no
float8)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A C-contiguous copy on the host."""
    return seen(tensor).copy()


def seen(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's values, C-contiguous, on the host: its own memory where they lie there so, to be read at once. By
    the exchange of arrays: ``numpy()`` notes for good that an array of numpy shows the tensor's memory, and who asks
    for that (private.alone) would take ours for somebody's."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name) or name == "bool":  # which the exchange of some versions does not have
        bits, _ = _BITS[tensor.element_size()]
        return np.from_dlpack(tensor.view(bits)).view(np.dtype(getattr(ml_dtypes, name, name)))
    return np.from_dlpack(tensor)


def to_torch(array: Any) -> torch.Tensor:
    """A new tensor with the array's values; ``array`` is anything that ``numpy.asarray`` takes."""
    array = np.ascontiguousarray(np.asarray(array)).reshape(np.shape(array))
    dtype: torch.dtype = getattr(torch, array.dtype.name)
    if hasattr(ml_dtypes, array.dtype.name):
        bits, raw = _BITS[array.dtype.itemsize]
        return torch.from_numpy(array.view(raw).copy()).view(bits).view(dtype)
    return torch.from_numpy(array.copy())
