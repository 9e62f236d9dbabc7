"""A convolution and its gradients, each by torch's own kernels (bridge/kernels), oneDNN's, inside of the program, or by
XLA.

XLA's CPU compiler hands 3 x 3 kernels to a library that oneDNN leads: of 4 pictures of 56 x 56 with 64 channels 14, 12
and 30 ms forward, for the input and for the kernel, where torch takes 6, 7 and 15 (AMD Zen 3, two cores); of a first
layer's 7 x 7 the kernel's gradient takes 40 for 10. torch takes kernels as it stores them, so that nobody turns a
weight before and its gradient behind. Only where a step is made and runs here, and where it was measured to win.

A transposed convolution is the gradient of a convolution's input, and its gradients are that convolution and its
kernel's: written as a convolution with holes, as JAX differentiates it, XLA takes 311 ms for what is 25 here (2
pictures of 14 x 14 with 256 channels to 28 x 28 with 128), 269 of them for the kernel's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from detente.bridge.kernels import convolutions as library
from detente.bridge.kernels.build import may_call
from detente.bridge.kernels.convolutions import Sizes
from detente.bridge.kernels.trials import CONVOLUTIONS
from detente.bridge.lower.backwards import only_backwards

# Multiplications: torch's way to its kernel takes 50 microseconds, in which XLA does a convolution of this size.
LEAST = 1 << 22
# Channels that are cut among threads; of fewer each one had a part of a vector.
CHANNELS = 32
# What a policy that keeps products and convolutions keeps of these (bridge/roll/lower.py).
KEPT = "convolved"


@dataclass(frozen=True)
class Ways:
    """A convolution of (N, ..., C), of which this is the shape, with a kernel (O, C/groups, ...), to (N, ..., O).
    ``plain`` is that by XLA; ``sizes`` are the library's, None where XLA has the gradients as well."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    plain: Callable[[Any, Any], Any]
    sizes: Sizes | None

    def cut(self, along: str) -> Sizes | None:
        """The library's sizes, where there are channels to cut among threads."""
        sizes = self.sizes
        if sizes is None or (sizes.groups == 1 and getattr(sizes, along) < CHANNELS):
            return None
        return sizes


def ways(
    shape: tuple[int, ...],
    weight: Any,
    dtype: Any,
    plain: Callable[[Any, Any], Any],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> Ways:
    """Of an input of this shape and dtype."""
    even = all(low == high for low, high in padding)
    sizes = None
    if only_backwards() and even and weight.ndim in (3, 4) and dtype == weight.dtype == jnp.float32:
        sizes = Sizes.of(shape, weight.shape, stride, [low for low, _ in padding], dilation, groups)
        if sizes.multiplications < LEAST or not may_call(CONVOLUTIONS):
            sizes = None
    return Ways(shape, weight.shape, plain, sizes)


def convolution(x: Any, weight: Any, by: Ways) -> Any:
    """(N, ..., O)."""
    if by.sizes is None:
        return by.plain(x, weight)  # and JAX's derivative of it
    return checkpoint_name(_result(by, x, weight), KEPT)


def transposed(x: Any, weight: Any, by: Ways) -> Any:
    """Of (N, ..., O) the (N, ..., C) that is ``by``'s input. Differentiated backwards alone."""
    return checkpoint_name(_of_input(by, weight, x), KEPT)


# A convolution is linear in both, and so are its gradients: each one's gradients are two of these three, to any order.
# They stand apart, because of a network's input nobody asks for the gradient, and the compiler leaves that one out.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _result(by: Ways, x: Any, weight: Any) -> Any:
    if (sizes := by.cut("o")) is not None:
        return library.convolved(sizes, x, weight)
    return by.plain(x, weight)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_input(by: Ways, weight: Any, gradient: Any) -> Any:
    if (sizes := by.cut("c")) is not None:
        return library.of_input(sizes, weight, gradient)
    # It is linear: where the input is does not matter.
    nowhere = jnp.zeros(by.shape, gradient.dtype)
    return jax.vjp(lambda x: by.plain(x, weight), nowhere)[1](gradient)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_kernel(by: Ways, x: Any, gradient: Any) -> Any:
    if (sizes := by.cut("o")) is not None:
        return library.of_kernel(sizes, x, gradient)
    nowhere = jnp.zeros(by.kernel, x.dtype)
    return jax.vjp(lambda weight: by.plain(x, weight), nowhere)[1](gradient)[0]


def _with(rule: Any) -> Callable[..., Any]:
    return lambda by, *given: (rule(by, *given), given)


_result.defvjp(_with(_result), lambda by, given, g: (_of_input(by, given[1], g), _of_kernel(by, given[0], g)))
_of_input.defvjp(
    _with(_of_input), lambda by, given, x: (_of_kernel(by, x, given[1]), _result(by, x, given[0]))
)
_of_kernel.defvjp(
    _with(_of_kernel), lambda by, given, w: (_of_input(by, w, given[1]), _result(by, given[0], w))
)
