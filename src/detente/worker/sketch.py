"""Seeded random projections: a large tensor becomes 4096 numbers that still tell how far two tensors lie apart.

Every element is multiplied by a random sign and added into one of 4096 buckets. For a difference d, each bucket's
square has expectation equal to the sum of d squared over its elements (the cross terms vanish under independent
signs; Alon, Matias and Szegedy 1999), so the sketch's squared norm is an unbiased estimate of the tensor's, with a
relative standard deviation of at most sqrt(2 / 4096) = 2.2 %. It is linear: sketch(a) - sketch(b) = sketch(a - b).
"""

from __future__ import annotations

import zlib

import numpy as np

from detente.workloads.narrow import widened

BUCKETS = 4096
WHOLE = 1 << 16  # tensors up to this many elements are kept whole
ROWS = 64  # of BUCKETS elements, summed at a time: 1 or 2 MB, which stay in a core's cache


def sketch(name: str, array: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
    """The tensor itself, flat, in float64, when it is small; 4096 buckets when it is not. Signs are seeded by name.

    With ``before``, the sketch of ``array - before``, both in float64: there the difference of two float32 tensors is
    exact. It is formed block by block, because gigabytes of float64 temporaries cost more than their arithmetic.
    """
    flat = array.reshape(-1)
    old = None if before is None else before.reshape(-1)
    if flat.size <= WHOLE:
        return _part(flat, old, slice(None)).astype(np.float64)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    total = np.zeros(BUCKETS)
    for start in range(0, flat.size, ROWS * BUCKETS):
        part = _part(flat, old, slice(start, start + ROWS * BUCKETS))
        bits = np.frombuffer(rng.bytes((part.size + 7) // 8), np.uint8)
        signed = _signed(part, np.unpackbits(bits, count=part.size))
        whole = signed.size - signed.size % BUCKETS
        total += signed[:whole].reshape(-1, BUCKETS).sum(axis=0, dtype=np.float64)
        total[: signed.size - whole] += signed[whole:]
    return total


def _part(flat: np.ndarray, old: np.ndarray | None, where: slice) -> np.ndarray:
    part = flat[where]
    if old is not None:
        return np.subtract(widened(part), widened(old[where]), dtype=np.float64)
    part = widened(part)
    return part if part.dtype in (np.float32, np.float64) else part.astype(np.float64)


def _signed(part: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """``part`` where a bit is 1, ``-part`` where it is 0: the sign bit flipped, a third of a multiplication's time."""
    width = 8 * part.itemsize
    words = bits.astype(f"u{part.itemsize}")
    words ^= words.dtype.type(1)
    words <<= words.dtype.type(width - 1)
    words ^= part.view(words.dtype)
    return words.view(part.dtype)


def rms(sketched: np.ndarray, elements: int) -> float:
    """Root mean square of the tensor that a sketch stands for. NaN and inf come through."""
    return float(np.sqrt(np.sum(np.square(sketched)) / max(elements, 1)))
