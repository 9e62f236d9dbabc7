"""How many pairs meet along one dimension of a convolution, in closed form: a convolution as long as its input, and a
dimension of any size that a file claims, are counted as fast as a 3 x 3.

A tap ``t`` at a position ``o`` of the output meets the element ``i`` of the input where

    window_dilation * t + stride * o = low + base_dilation * i,

each between 0 and its extent. That is the number of points of a box on a plane. One variable goes by its remainder,
which leaves the points of a rectangle between two parallel lines, a sum of rounded quotients, and those add up as
Euclid's algorithm does.

Source: the sum of rounded quotients, R. Graham, D. Knuth, O. Patashnik, Concrete Mathematics, 3.5.
"""

from __future__ import annotations

import math
from functools import lru_cache

from detente.programs.module import ProgramError, Spatial

# Remainders that are looked at one by one: strides and dilations are a few, and a file can claim any number.
_MOST = 1_000_000


@lru_cache(maxsize=4096)
def meetings(s: Spatial) -> int:
    """How many (output position, window position) pairs of one spatial dimension fall on an input element.

    Raises ProgramError for a stride or a dilation that is none.

    >>> meetings(Spatial(size=3, input=8, output=8, low=1))   # 8 * 3 less one at each edge
    22
    >>> meetings(Spatial(size=1 << 40, input=4, output=1 << 40))   # all that begin at an element, or before one
    10
    """
    steps = (s.window_dilation, s.stride, s.base_dilation)
    if min(steps) < 1:
        raise ProgramError(
            f"a convolution with window dilation {steps[0]}, stride {steps[1]} and base dilation {steps[2]}: "
            "each is 1 or more"
        )
    if min(s.size, s.input, s.output) < 1:
        return 0
    # With the input counted from its end all three stand on one side.
    whole = s.low + s.base_dilation * (s.input - 1)
    return _points(whole, *zip(steps, (s.size, s.output, s.input), strict=True))


def _points(whole: int, *terms: tuple[int, int]) -> int:
    """How many ``(x, y, z)`` there are with ``p x + q y + r z = whole``, each from 0 below its extent; ``terms`` are
    (factor, extent)."""
    (r, nz), *rest = sorted(terms)
    (p, nx), (q, ny) = sorted(rest, key=lambda term: term[1])
    if min(r, nx) > _MOST:
        raise ProgramError(
            f"a convolution with strides and dilations of {sorted(f for f, _ in terms)} is none that anybody runs"
        )
    shared = math.gcd(q, r)
    inverse = pow(q // shared, -1, r // shared)
    total = 0
    # With x = x0 + r x', and y = y0 + (r / shared) y' what is left for z is a multiple of r.
    for x0 in range(min(r, nx)):
        left = whole - p * x0
        if left % shared:
            continue
        y0 = left // shared * inverse % (r // shared)
        columns, rows = _steps(nx - x0, r), _steps(ny - y0, r // shared)
        most = left - q * y0
        slopes = (p * r, columns), (q * (r // shared), rows)
        total += _below(most, *slopes) - _below(most - r * (nz - 1) - 1, *slopes)
    return total


def _steps(length: int, step: int) -> int:
    """How many multiples of ``step`` there are from 0 below a length."""
    return max(0, -(-length // step))


def _below(most: int, x: tuple[int, int], y: tuple[int, int]) -> int:
    """How many ``(x, y)`` there are with ``p x + q y <= most``, each from 0 below its extent."""
    (p, nx), (q, ny) = x, y
    if most < 0 or not nx or not ny:
        return 0
    # Of the first columns every row is below, of those behind the last none.
    whole = min(nx, (most - q * (ny - 1)) // p + 1) if most >= q * (ny - 1) else 0
    last = min(nx - 1, most // p)
    some = last - whole + 1
    return whole * ny + some + _quotients(some, p, most - p * last, q)


def _quotients(n: int, a: int, b: int, m: int) -> int:
    """The sum of ``(a k + b) // m`` for ``k`` from 0 below ``n``; nothing is negative."""
    total = 0
    while n > 0:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        # The same points, counted along the other axis.
        n, b = divmod(top, m)
        m, a = a, m
    return total
