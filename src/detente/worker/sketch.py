"""Seeded random projections: a large tensor becomes 4096 numbers that still tell how far two tensors lie apart.

Every element is multiplied by a random sign and added into one of 4096 buckets. For a difference d, each bucket's
square has expectation equal to the sum of d squared over its elements (the cross terms vanish under independent
signs; Alon, Matias and Szegedy 1999), so the sketch's squared norm is an unbiased estimate of the tensor's, with a
relative standard deviation of at most sqrt(2 / 4096) = 2.2 %. It is linear: sketch(a) - sketch(b) = sketch(a - b).
"""

from __future__ import annotations

import zlib

import numpy as np

BUCKETS = 4096
WHOLE = 1 << 16  # tensors up to this many elements are kept whole


def sketch(name: str, array: np.ndarray) -> np.ndarray:
    """The tensor itself, flat, in float64, when it is small; 4096 buckets when it is not. Signs are seeded by name."""
    flat = array.reshape(-1)
    if flat.size <= WHOLE:
        return flat.astype(np.float64)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    total = np.zeros(BUCKETS)
    rows = 256
    for start in range(0, flat.size, rows * BUCKETS):
        part = flat[start : start + rows * BUCKETS]
        bits = np.frombuffer(rng.bytes((part.size + 7) // 8), np.uint8)
        signs = np.unpackbits(bits, count=part.size).astype(np.float32) * 2 - 1
        signed = part * signs.astype(part.dtype)
        whole = signed.size - signed.size % BUCKETS
        total += signed[:whole].reshape(-1, BUCKETS).sum(axis=0, dtype=np.float64)
        total[: signed.size - whole] += signed[whole:]
    return total


def rms(sketched: np.ndarray, elements: int) -> float:
    """Root mean square of the tensor that a sketch stands for. NaN and inf come through."""
    return float(np.sqrt(np.sum(np.square(sketched)) / max(elements, 1)))
