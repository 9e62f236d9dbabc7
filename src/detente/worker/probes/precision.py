"""Effective precision of a matrix product, found on the device and not read from a flag."""

from __future__ import annotations

from typing import Any

import numpy as np

from detente.records.sample import Sample
from detente.stacks.protocol import Stack
from detente.worker.opened import Opened

# 1 + 2^-e is kept by a format with at least e mantissa bits and rounded to 1 by a shorter one.
_BITS = ((52, "fp64"), (23, "fp32"), (10, "tf32"), (7, "bf16"))


def product_class(stack: Stack) -> dict[str, Any]:
    """Multiply a matrix of 1 + 2^-e by the identity for each e: the operand survives exactly when the product keeps e
    mantissa bits. fp16 keeps as many as TF32; the two share a class. Three-pass bf16 lands between and is named
    by the most bits that survived."""
    n = 128
    kept = 0
    for bits, _ in reversed(_BITS):
        dtype = np.float64 if bits == 52 else np.float32
        value = np.full((n, n), 1 + 2.0**-bits, dtype)
        if np.array_equal(stack.product(value, np.eye(n, dtype=dtype)), value.astype(np.float64)):
            kept = bits
        else:
            break
    names = {bits: name for bits, name in _BITS}
    return {"class": names.get(kept, "lower than bf16"), "mantissa_bits": kept}


# Below the smallest normal number of float32, 1.2e-38, and far above its smallest denormal, 1.4e-45.
_DENORMAL = 1e-40


def keeps_denormals(stack: Stack) -> bool:
    """Whether a float32 product of a denormal and 1 is the denormal, and not 0."""
    n = 128
    value = np.full((n, n), _DENORMAL, np.float32)
    return bool((stack.product(value, np.eye(n, dtype=np.float32)) != 0).all())


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``precision``. ``denormals``: whether a product keeps them."""
    return {"precision": {**product_class(opened.stack), "denormals": keeps_denormals(opened.stack)}}
