"""A convolution by a kernel of ours (bridge/kernels), as products with the BLAS that torch brings, and its gradients.

XLA's own takes three times as long for 3 x 3 of 64 channels over 56 x 56. Only where a step is made and runs here;
what is captured, exported or differentiated forwards is XLA's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.kernels.build import may_call
from detente.bridge.kernels.targets import CONVOLUTION, OF_KERNEL, call
from detente.bridge.lower.backwards import only_backwards

# Multiplications of a call, and channels of its input, at least: of three channels XLA's own is faster (68 ms for 89).
LEAST, CHANNELS = 1 << 16, 8
Padding = tuple[tuple[int, int], ...]
_NUMBERS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}


def is_taken(x: Any, kernel: Any, out: int) -> bool:
    """Whether (N, ..., C) and (..., C, O) are for the kernel; ``out`` is the number of its places."""
    return (
        only_backwards()
        and may_call("products")
        and x.dtype == kernel.dtype == jnp.float32
        and kernel.ndim in (3, 4)
        and x.shape[-1] == kernel.shape[-2]
        and x.shape[-1] >= CHANNELS
        and out * prod(kernel.shape) >= LEAST
        and x.size > 0
    )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def convolution(
    x: Any, kernel: Any, stride: tuple[int, ...], padding: Padding, dilation: tuple[int, ...]
) -> Any:
    """Cross-correlation of (N, ..., C) with (..., C, O), to (N, ..., O)."""
    shape = (x.shape[0], *out_shape(x, kernel, stride, padding, dilation), kernel.shape[-1])
    return call(
        CONVOLUTION, [shape], x, kernel, **_told(x.shape, kernel.shape, shape, stride, padding, dilation)
    )[0]


def out_shape(
    x: Any, kernel: Any, stride: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> tuple[int, ...]:
    """Places of the result in each dimension."""
    sizes = zip(x.shape[1:-1], kernel.shape[:-2], stride, padding, dilation, strict=True)
    return tuple((size + low + high - d * (k - 1) - 1) // s + 1 for size, k, s, (low, high), d in sizes)


def _told(
    x: Sequence[int], kernel: Sequence[int], y: Sequence[int], stride: Any, padding: Padding, dilation: Any
) -> dict[str, int]:
    """What the kernel is told: of one dimension the height is 1."""
    pairs = {
        "{}": x[1:-1], "out_{}": y[1:-1], "k{}": kernel[:-2], "stride_{}": stride, "step_{}": dilation,
        "low_{}": [low for low, _ in padding],
    }  # fmt: skip
    told = {"n": x[0], "c": x[-1], "o": kernel[-1]}
    for name, sizes in pairs.items():
        none = 0 if name == "low_{}" else 1
        height, width = sizes if len(sizes) == 2 else (none, sizes[0])
        told |= {name.format("h"): int(height), name.format("w"): int(width)}
    return told


def _forward(x: Any, kernel: Any, stride: Any, padding: Padding, dilation: Any) -> tuple[Any, Any]:
    return convolution(x, kernel, stride, padding, dilation), (x, kernel)


def _backward(stride: Any, padding: Padding, dilation: Any, held: Any, gradient: Any) -> tuple[Any, Any]:
    x, kernel = held
    told = _told(x.shape, kernel.shape, gradient.shape, stride, padding, dilation)
    (of_kernel,) = call(OF_KERNEL, [kernel.shape], x, gradient, **told)
    space = tuple(range(kernel.ndim - 2))
    if set(stride) == {1}:
        turned = jnp.swapaxes(lax.rev(kernel, space), -1, -2)
        reach = [d * (k - 1) for d, k in zip(dilation, kernel.shape[:-2], strict=True)]
        around = tuple((r - low, r - high) for r, (low, high) in zip(reach, padding, strict=True))
        return convolution(gradient, turned, stride, around, dilation), of_kernel

    def of(x: Any) -> Any:
        numbers = _NUMBERS[len(space)]
        return lax.conv_general_dilated(
            x, kernel, stride, padding, rhs_dilation=dilation, dimension_numbers=numbers
        )

    (of_x,) = jax.linear_transpose(of, jax.ShapeDtypeStruct(x.shape, x.dtype))(gradient)
    return of_x, of_kernel


convolution.defvjp(_forward, _backward)
