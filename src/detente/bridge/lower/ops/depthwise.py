"""A convolution of every channel by itself, for a CPU: a kernel of ours where there is one (bridge/kernels), else a sum
of shifted products.

XLA's CPU compiler has no kernel for it and walks a loop of scalars: of a 7 x 7 kernel over 56 x 56 of 96 channels 44 ms
forward and 100 backward, where the sum takes 1.3 and 11 (torch 0.7 and 15), and in the body of a loop, where it reads
across rows, over a second.

Its derivative as JAX makes it is a sum of padded arrays, and one reduction across rows for every element of the kernel
(6 and 32 ms, and a minute of compiling in a network). Where a step is made, whose derivatives are all taken backwards,
it is the same sum with the kernel turned over, and one loop over the kernel's elements (1.2 and 10 ms).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.kernels.build import may_call
from detente.bridge.kernels.targets import DEPTHWISE, OF_TAPS, call
from detente.bridge.lower.backwards import backwards_once
from detente.bridge.lower.dtypes import cast, wide

# Elements of a kernel; each is a term that is compiled.
MOST = 128
Padding = tuple[tuple[int, int], ...]


def apart(channels: int, groups: int, kernel: Sequence[int]) -> bool:
    """Whether every channel is a group of its own, and the kernel one that is written out."""
    return channels == groups > 1 and prod(kernel) <= MOST


def depthwise(
    x: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> jax.Array:
    """Cross-correlation of (N, ..., C) with (O, 1, ...), O a multiple of C, to (N, ..., O); summed in float32 at
    least."""
    kind = wide(x.dtype)
    taps = cast(jnp.moveaxis(weight[:, 0], 0, -1), kind)
    padding, dilation = tuple((low, high) for low, high in padding), tuple(dilation)
    if weight.shape[0] != x.shape[-1]:
        x = jnp.repeat(x, weight.shape[0] // x.shape[-1], axis=-1)
    if backwards_once() and set(stride) == {1} and x.size:
        total = _dense(cast(x, kind), taps, padding, dilation)
    else:
        total = _shifted(cast(x, kind), taps, tuple(stride), padding, dilation)
    return cast(total, x.dtype)


def _shifted(x: Any, taps: Any, stride: Sequence[int], padding: Padding, dilation: Sequence[int]) -> Any:
    x = _padded(x, padding)
    kernel = taps.shape[:-1]
    out = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(x.shape[1:-1], kernel, stride, dilation, strict=True)
    ]
    total = jnp.zeros((), x.dtype)
    for at in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(i * d, i * d + (o - 1) * s + 1, s)
            for i, d, o, s in zip(at, dilation, out, stride, strict=True)
        )
        total = total + x[(slice(None), *window)] * taps[at]
    return total


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _dense(x: Any, taps: Any, padding: Padding, dilation: tuple[int, ...]) -> Any:
    """Without a stride."""
    if _kernel_takes(x, taps):
        places = _places(x, taps, padding, dilation)
        size = tuple(places[k] for k in ("n", "out_h", "out_w", "c"))
        shape = (size[0], *size[3 - len(dilation) : 3], size[3])
        return call(DEPTHWISE, [shape], x, taps, **places)[0]
    return _shifted(x, taps, (1,) * len(dilation), padding, dilation)


def _kernel_takes(x: Any, taps: Any) -> bool:
    return may_call() and x.dtype == taps.dtype == jnp.float32 and taps.ndim in (2, 3)


def _places(x: Any, taps: Any, padding: Padding, dilation: Sequence[int]) -> dict[str, int]:
    """What the kernel is told: of one dimension the height is 1."""
    flat = taps.ndim == 2
    (h, w), (kh, kw), (low_h, low_w), (high_h, high_w), (step_h, step_w) = (
        (none, *sizes) if flat else tuple(sizes)
        for none, sizes in (
            (1, x.shape[1:-1]),
            (1, taps.shape[:-1]),
            (0, [low for low, _ in padding]),
            (0, [high for _, high in padding]),
            (1, dilation),
        )
    )
    return {
        "n": x.shape[0], "h": h, "w": w, "c": x.shape[-1],
        "out_h": h + low_h + high_h - step_h * (kh - 1), "out_w": w + low_w + high_w - step_w * (kw - 1),
        "kh": kh, "kw": kw, "low_h": low_h, "low_w": low_w, "step_h": step_h, "step_w": step_w,
    }  # fmt: skip


def _dense_forward(x: Any, taps: Any, padding: Padding, dilation: tuple[int, ...]) -> Any:
    return _dense(x, taps, padding, dilation), (x, taps)


def _dense_backward(padding: Padding, dilation: tuple[int, ...], held: Any, gradient: Any) -> Any:
    x, taps = held
    reach = [d * (k - 1) for d, k in zip(dilation, taps.shape[:-1], strict=True)]
    around = tuple((r - low, r - high) for r, (low, high) in zip(reach, padding, strict=True))
    turned = lax.rev(taps, tuple(range(taps.ndim - 1)))
    return _dense(gradient, turned, around, dilation), _of_taps(x, gradient, taps.shape, padding, dilation)


_dense.defvjp(_dense_forward, _dense_backward)


def _of_taps(
    x: Any, gradient: Any, shape: tuple[int, ...], padding: Padding, dilation: tuple[int, ...]
) -> Any:
    """The gradient of every element of the kernel: the sum over all places of what it met there."""
    taps = jax.ShapeDtypeStruct(shape, gradient.dtype)
    if _kernel_takes(x, taps):
        return call(OF_TAPS, [shape], x, gradient, **_places(x, taps, padding, dilation))[0]
    x, kernel = _padded(x, padding), shape[:-1]
    size = (x.shape[0], *gradient.shape[1:-1], x.shape[-1])

    def one(number: Any) -> Any:
        at = jnp.unravel_index(number, kernel)
        zero = jnp.int32(0)
        start = (zero, *(i * jnp.int32(d) for i, d in zip(at, dilation, strict=True)), zero)
        met = lax.dynamic_slice(x, start, size) * gradient
        return jnp.sum(met.reshape(-1, size[-1]), axis=0)

    return lax.map(one, jnp.arange(prod(kernel), dtype=jnp.int32)).reshape(shape)


def _padded(x: Any, padding: Padding) -> Any:
    """A negative padding cuts off, as that of a gradient does where the padding was wider than the kernel."""
    return lax.pad(
        x, jnp.zeros((), x.dtype), ((0, 0, 0), *((low, high, 0) for low, high in padding), (0, 0, 0))
    )
