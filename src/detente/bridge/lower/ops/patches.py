"""What a kernel meets that strides over its own length (the patches of ViT, Swin and ConvNeXt, a U-Net's way up): each
element of the input once, so that the convolution is one product of rows."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def apart(weight: jax.Array, stride: Sequence[int], dilation: Sequence[int]) -> bool:
    """Whether a kernel (O, I, ...) meets no element at two places."""
    return tuple(stride) == weight.shape[2:] and set(dilation) == {1}


def patches(x: jax.Array, kernel: Sequence[int]) -> jax.Array:
    """(N, ..., C) to (N, ..., C times the kernel's elements), in a kernel's own order. What is left over at the end is
    met by nobody."""
    n, count, sizes = len(kernel), x.shape[0], x.shape[1:-1]
    out = [size // k for size, k in zip(sizes, kernel, strict=True)]
    x = x[(slice(None), *(slice(o * k) for o, k in zip(out, kernel, strict=True)))]
    x = x.reshape(count, *(part for o, k in zip(out, kernel, strict=True) for part in (o, k)), x.shape[-1])
    places, elements = range(1, 2 * n, 2), range(2, 2 * n + 1, 2)
    return jnp.transpose(x, (0, *places, 2 * n + 1, *elements)).reshape(count, *out, -1)


def together(rows: jax.Array, kernel: Sequence[int]) -> jax.Array:
    """What ``patches`` was made of."""
    n, count, out = len(kernel), rows.shape[0], rows.shape[1:-1]
    rows = rows.reshape(count, *out, -1, *kernel)
    order = (part for d in range(n) for part in (1 + d, n + 2 + d))
    sizes = [o * k for o, k in zip(out, kernel, strict=True)]
    return jnp.transpose(rows, (0, *order, n + 1)).reshape(count, *sizes, -1)
