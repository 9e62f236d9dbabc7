"""bfloat16 on the host, where numpy has no such number: two bytes under a dtype that says what they are.

The upper half of a float32 is its bfloat16, so that widening is a shift; frameworks have the type themselves and take
the bytes as they are. A worker needs no package for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BFLOAT16 = np.dtype([("bfloat16", "<u2")])


def is_narrow(array: np.ndarray) -> bool:
    """Whether these are bfloat16 numbers of ours."""
    return array.dtype == BFLOAT16


def widened(array: np.ndarray) -> np.ndarray:
    """The same numbers as float32 where they are bfloat16, and the array itself where they are not.

    >>> widened(np.array([0x3F80, 0xC000], "<u2").view(BFLOAT16)).tolist()
    [1.0, -2.0]
    """
    if not is_narrow(array):
        return array
    return (array["bfloat16"].astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_torch(torch: Any, array: np.ndarray) -> Any:
    """A tensor of the array's numbers, in memory of its own."""
    if not is_narrow(array):
        return torch.from_numpy(np.array(array))
    return torch.from_numpy(np.array(array).view(np.uint16)).view(torch.bfloat16)


def of_torch(torch: Any, tensor: Any) -> np.ndarray:
    """A tensor in its own dtype: on the host a view, which keeps it alive and changes with it."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    return tensor.contiguous().view(torch.uint16).numpy().view(BFLOAT16)


def to_numpy_of(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The numbers in a framework's numpy dtype (ml_dtypes' bfloat16 for JAX), without a copy where none is needed."""
    if is_narrow(array) and np.dtype(dtype).name == "bfloat16":
        return array.view(dtype)
    return widened(array).astype(dtype, copy=False)


def of_numpy(array: np.ndarray) -> np.ndarray:
    """The inverse: ml_dtypes' bfloat16 as ours, everything else as it is."""
    return array.view(BFLOAT16) if array.dtype.name == "bfloat16" else array
