"""How much a program may hold in itself before it could be its weights."""

from __future__ import annotations

MEGABYTE = 2**20
SCALARS = 4096


def constants_allowed(weights: int) -> float:
    """Bytes of captured constants that are no folded weights, of a model with so many bytes of ``weights``: a causal
    mask, position numbers, a few scalars. 1 MB for models above 4 MB, a tenth of the weights for large ones, a quarter
    for small ones, and always room for the numbers of an optimizer: a step of Adam holds about a hundred bytes of them,
    more than the weights of a toy.

    >>> constants_allowed(100_000)
    25000.0
    """
    return max(SCALARS, min(MEGABYTE, weights / 4), weights / 10)
