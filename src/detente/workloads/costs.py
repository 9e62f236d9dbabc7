"""The cost of a workload in closed form, from the list of its products and convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """``times`` products of (m, k) by (k, n). ``data``: the left operand is data, whose gradient nobody asks for.
    ``hidden``: multiplications of all of them that a mask makes nothing of, so that an implementation may leave them
    out."""

    m: int
    k: int
    n: int
    times: int = 1
    data: bool = False
    hidden: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, k, n) of one of them."""
        return self.m, self.k, self.n

    def flops(self) -> int:
        """Of all of them, forward."""
        return 2 * self.m * self.k * self.n * self.times

    def least(self) -> int:
        """Without what a mask hides."""
        return self.flops() - 2 * self.hidden


@dataclass(frozen=True)
class Convolution:
    """A square convolution on ``batch`` square pictures: ``extent`` x ``extent`` x ``inputs`` to ``outputs`` channels.
    ``data``: the picture is data, whose gradient nobody asks for."""

    extent: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    batch: int = 1
    data: bool = False

    @property
    def result(self) -> int:
        """Extent of the result."""
        return (self.extent + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Written as the product it is: (batch x positions, taps x inputs, outputs)."""
        return self.batch * self.result**2, self.kernel**2 * self.inputs, self.outputs

    def taps(self) -> int:
        """Along one axis: pairs of an output position and a kernel position that meet a pixel, not padding."""
        if not self.padding:
            return self.result * self.kernel
        found = 0
        for k in range(self.kernel):
            # Outputs o with 0 <= o * stride + k - padding < extent.
            first = max(0, -((k - self.padding) // self.stride))
            last = min(self.result - 1, (self.extent - 1 + self.padding - k) // self.stride)
            found += max(0, last - first + 1)
        return found

    def flops(self) -> int:
        """Forward. Multiplications with the zeros of padding are not counted, because an implementation may leave them
        out; each of the two gradients has exactly as many."""
        return 2 * self.batch * self.taps() ** 2 * self.inputs * self.outputs

    def least(self) -> int:
        """Nothing is hidden."""
        return self.flops()


Work = Product | Convolution


def attention(
    batch: int, heads: int, positions: int, depth: int, *, causal: bool = False, window: int = 0
) -> tuple[Product, Product]:
    """The two products of self-attention over the *full* square of positions, as the definition of masked attention
    forms them: queries by keys, shares by values. ``depth`` is the width of a head. Where the mask is ``causal``, what
    it hides may be left out, block by block (FlashAttention does); a ``window`` hides what lies further back too."""
    times = batch * heads
    seen = sum(min(i + 1, window or positions) for i in range(positions)) if causal else positions**2
    hidden = times * depth * (positions**2 - seen)
    return (
        Product(positions, depth, positions, times, hidden=hidden),
        Product(positions, positions, depth, times, hidden=hidden),
    )


def flops(work: Iterable[Work], region: str) -> int:
    """FLOPs of one step. ``forward`` costs each piece once; another region as much again for the gradient of each
    operand that has one: two, or one where the left operand is data."""
    return sum(w.flops() * _passes(w, region) for w in work)


def least_flops(work: Iterable[Work], region: str) -> int:
    """As ``flops``, without what a mask hides from each product, and from the gradients of its operands."""
    return sum(w.least() * _passes(w, region) for w in work)


def _passes(work: Work, region: str) -> int:
    return 1 if region == "forward" else 2 if work.data else 3


def largest(work: Iterable[Work]) -> tuple[int, int, int]:
    """(m, k, n) of the piece that costs most, the first of equals."""
    return max(work, key=lambda w: w.flops() // (w.times if isinstance(w, Product) else 1)).shape


def affine(inputs: int, outputs: int) -> int:
    """Parameters of a linear layer with a bias."""
    return inputs * outputs + outputs
