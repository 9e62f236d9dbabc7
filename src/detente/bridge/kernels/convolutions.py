"""A convolution by torch's own operator (kernels/convolution.cc), as it is called in a program: float32, channels last,
kernels as torch stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from detente.bridge.kernels.targets import CONVOLUTION, OF_INPUT, OF_KERNEL, call


@dataclass(frozen=True)
class Sizes:
    """What is convolved: of one dimension the height, the kernel's height and their steps are 1.

    ``inner``: a group's channels of the input; ``step``: the stride; ``low``: the padding, the same on both sides;
    ``reach``: the dilation."""

    n: int
    h: int
    w: int
    inner: int
    out_h: int
    out_w: int
    o: int
    kh: int
    kw: int
    step_h: int
    step_w: int
    low_h: int
    low_w: int
    reach_h: int
    reach_w: int
    groups: int

    @classmethod
    def of(
        cls,
        x: Sequence[int],
        weight: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Sizes:
        """Of (N, H, W, C) or (N, W, C) with (O, C / groups, ...)."""
        flat = len(x) == 3
        (h, w), (kh, kw), (step_h, step_w), (low_h, low_w), (reach_h, reach_w) = (
            (none, *found) if flat else tuple(found)
            for none, found in ((1, x[1:-1]), (1, weight[2:]), (1, stride), (0, padding), (1, dilation))
        )
        return cls(
            x[0], h, w, weight[1],
            (h + 2 * low_h - reach_h * (kh - 1) - 1) // step_h + 1,
            (w + 2 * low_w - reach_w * (kw - 1) - 1) // step_w + 1,
            weight[0], kh, kw, step_h, step_w, low_h, low_w, reach_h, reach_w, groups,
        )  # fmt: skip

    @property
    def c(self) -> int:
        """Channels of the input."""
        return self.inner * self.groups

    @property
    def multiplications(self) -> int:
        """Those with padding among them."""
        return self.n * self.out_h * self.out_w * self.o * self.inner * self.kh * self.kw


def convolved(sizes: Sizes, x: Any, weight: Any) -> Any:
    """(N, out_h, out_w, O), or without the height where ``x`` has none."""
    height = (sizes.out_h,) if x.ndim == 4 else ()
    return call(CONVOLUTION, [(sizes.n, *height, sizes.out_w, sizes.o)], x, weight, **asdict(sizes))[0]


def of_input(sizes: Sizes, weight: Any, gradient: Any) -> Any:
    """The gradient of ``x``, of its shape."""
    height = (sizes.h,) if gradient.ndim == 4 else ()
    shape = (sizes.n, *height, sizes.w, sizes.c)
    return call(OF_INPUT, [shape], weight, gradient, **asdict(sizes))[0]


def of_kernel(sizes: Sizes, x: Any, gradient: Any) -> Any:
    """The gradient of the kernel, of its shape."""
    height = (sizes.kh,) if gradient.ndim == 4 else ()
    shape = (sizes.o, sizes.inner, *height, sizes.kw)
    return call(OF_KERNEL, [shape], x, gradient, **asdict(sizes))[0]
