"""What is timed to find out whether the other library's work is faster on a machine: products of a training step's
kinds, convolutions and attention with their gradients, in XLA's way and in the call's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.kernels import attentions, convolutions
from detente.bridge.kernels.products import BF16, EVERY, F32, rewrite

CONVOLUTIONS, ATTENTION = "convolutions", "attention"
# What trials of each kind of work decide.
DECIDED = EVERY | {CONVOLUTIONS: (CONVOLUTIONS,), ATTENTION: (ATTENTION,)}
# (rows, inner, columns) of a linear layer, and of one with a long side. Each costs a first step a quarter of a second.
_LAYERS = ((784, 256, 1024), (6272, 64, 256))
# (batch, positions, size of a head) of attention's scores.
_BATCHES = (24, 96, 64)
# (pictures, their size, channels in and out, the kernel's size): the first and a later layer of a network.
_CONVOLVED = ((2, 56, 64, 3), (2, 14, 256, 3))
# (batch, positions, heads, size of a head): twice as many scores of a head as there must be for a call.
_ATTENDED = (1, 128, 8, 64)
_DTYPES = {F32: jnp.float32, BF16: jnp.bfloat16}


def trials(of: str) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...]]]:
    """Of products ``of`` this type, or of ``CONVOLUTIONS``, or of ``ATTENTION``: the name of what is decided, XLA's
    way, the call's, both compiled, and what they are called with."""
    if of == CONVOLUTIONS:
        yield from (_of_convolution(*sizes) for sizes in _CONVOLVED)
    elif of == ATTENTION:
        yield from _of_attention()
    else:
        yield from _of_products(of)


def _of_products(dtype: str) -> Iterator[tuple[str, Any, Any, tuple[Any, ...]]]:
    for product, operands in _products(_DTYPES[dtype]):
        plain = jax.jit(product).lower(*operands).compile()
        # JAX keeps one module for each function, and this one is changed
        lowered = jax.jit(partial(product)).lower(*operands)
        (made,) = rewrite(lowered.compiler_ir())
        yield made.form, plain, lowered.compile(), operands


def _products(dtype: Any) -> Iterator[tuple[Callable[..., Any], tuple[Any, Any]]]:
    contract = jax.lax.dot_general
    for rows, inner, columns in _LAYERS:
        x, w, g = _arrays((rows, inner), (columns, inner), (rows, columns), dtype=dtype)
        yield lambda x, w: contract(x, w, (((1,), (1,)), ((), ()))), (x, w)
        yield lambda g, w: contract(g, w, (((1,), (0,)), ((), ()))), (g, w)
        yield lambda g, x: contract(g, x, (((0,), (0,)), ((), ()))), (g, x)
    batch, positions, size = _BATCHES
    q, k = _arrays(*[(batch, positions, size)] * 2, dtype=dtype)
    yield lambda q, k: contract(q, k, (((2,), (2,)), ((0,), (0,)))), (q, k)


def _of_convolution(n: int, size: int, channels: int, kernel: int) -> tuple[str, Any, Any, tuple[Any, ...]]:
    """A convolution whose result is as large as its input, with both gradients."""
    operands = _arrays((n, size, size, channels), (channels, channels, kernel, kernel))
    pads = (kernel // 2,) * 2
    sizes = convolutions.Sizes.of(operands[0].shape, operands[1].shape, (1, 1), pads, (1, 1), 1)

    def convolve(x: Any, weight: Any) -> Any:
        turned, numbers = jnp.transpose(weight, (2, 3, 1, 0)), ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, turned, (1, 1), [pads] * 2, dimension_numbers=numbers)

    def plain(x: Any, weight: Any) -> Any:
        result, back = jax.vjp(convolve, x, weight)
        return result, back(x)

    def called(x: Any, weight: Any) -> Any:
        gradients = convolutions.of_input(sizes, weight, x), convolutions.of_kernel(sizes, x, x)
        return convolutions.convolved(sizes, x, weight), gradients

    return CONVOLUTIONS, _compiled(plain, *operands), _compiled(called, *operands), operands


def _of_attention() -> Iterator[tuple[str, Any, Any, tuple[Any, ...]]]:
    b, positions, h, d = _ATTENDED
    operands = _arrays(*[(b, positions, h, d)] * 4)
    sizes = attentions.Sizes.of(operands[0].shape, operands[2].shape, causal=False, scale=d**-0.5, dropout=0)
    none = jnp.ones((1,), bool)

    def attend(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("blhd,bshd->bhls", q, k) * d**-0.5)
        return jnp.einsum("bhls,bshe->blhe", weights, v)

    def plain(q: Any, k: Any, v: Any, g: Any) -> Any:
        result, back = jax.vjp(attend, q, k, v)
        return result, back(g)

    def called(q: Any, k: Any, v: Any, g: Any) -> Any:
        result, logs = attentions.attended(sizes, q, k, v, none)
        return result, attentions.of_attended(sizes, (q, k, v, none, result, logs), g)

    yield ATTENTION, _compiled(plain, *operands), _compiled(called, *operands), operands


def _compiled(way: Callable[..., Any], *operands: Any) -> Any:
    return jax.jit(way).lower(*operands).compile()


def _arrays(*shapes: tuple[int, ...], dtype: Any = jnp.float32) -> tuple[Any, ...]:
    """Numbers of a training step's size: the same ones over and over, which are quickly made and timed like others."""
    some = np.random.default_rng(0).standard_normal(1 << 12)
    return tuple(jnp.asarray(np.resize(some, shape), dtype) for shape in shapes)
