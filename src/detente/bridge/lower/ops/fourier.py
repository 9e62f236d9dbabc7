"""Discrete Fourier transforms and stft. ATen's internal transforms scale by a code; here it is a factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.lower.dtypes import cast, is_complex, is_float, out_dtype, wide
from detente.bridge.lower.table import lowers

# ATen's fft_norm_mode: none, by 1/sqrt(n), by 1/n
_POWER = {0: 0.0, 1: -0.5, 2: -1.0}


def _scaled(y: jax.Array, sizes: Sequence[int], mode: int) -> jax.Array:
    factor = float(np.prod(sizes)) ** _POWER[mode]
    return y if mode == 0 else y * jnp.asarray(factor, jnp.real(y).dtype)


@lowers("aten._fft_c2c.default")
def _c2c(call: Any, x: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    sizes = [x.shape[d] for d in dim]
    y = (
        jnp.fft.fftn(x, axes=tuple(dim))
        if forward
        else jnp.fft.ifftn(x, axes=tuple(dim)) * float(np.prod(sizes))
    )
    return cast(_scaled(y, sizes, normalization), out_dtype(call))


@lowers("aten._fft_r2c.default")
def _r2c(call: Any, x: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    sizes = [x.shape[d] for d in dim]
    function = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return cast(_scaled(function(x, axes=tuple(dim)), sizes, normalization), out_dtype(call))


@lowers("aten._fft_c2r.default")
def _c2r(call: Any, x: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    sizes = [x.shape[d] for d in dim[:-1]] + [last_dim_size]
    y = jnp.fft.irfftn(x, s=tuple(sizes), axes=tuple(dim)) * float(np.prod(sizes))
    return cast(_scaled(y, sizes, normalization), out_dtype(call))


def _complex_input(x: jax.Array) -> jax.Array:
    if is_complex(x.dtype):
        return x
    kind = wide(x.dtype) if is_float(x.dtype) else jnp.dtype(jnp.float32)
    return x.astype(jnp.promote_types(kind, jnp.complex64))


def _real_input(x: jax.Array) -> jax.Array:
    return cast(x, wide(x.dtype)) if is_float(x.dtype) else x.astype(jnp.float32)


for _name, _function, _real in (
    ("fft", jnp.fft.fft, False),
    ("ifft", jnp.fft.ifft, False),
    ("rfft", jnp.fft.rfft, True),
    ("irfft", jnp.fft.irfft, False),
    ("hfft", jnp.fft.hfft, False),
    ("ihfft", jnp.fft.ihfft, True),
):

    def _one(
        call: Any,
        x: jax.Array,
        n: int | None = None,
        dim: int = -1,
        norm: str | None = None,
        _f: Any = _function,
        _r: bool = _real,
    ) -> jax.Array:
        return cast(_f(_real_input(x) if _r else _complex_input(x), n, dim, norm), out_dtype(call))

    lowers(f"aten.fft_{_name}.default")(_one)

for _name, _function, _real in (
    ("fft", jnp.fft.fftn, False),
    ("ifft", jnp.fft.ifftn, False),
    ("rfft", jnp.fft.rfftn, True),
    ("irfft", jnp.fft.irfftn, False),
):

    def _many(
        call: Any,
        x: jax.Array,
        s: Any = None,
        dim: Any = None,
        norm: str | None = None,
        _f: Any = _function,
        _r: bool = _real,
    ) -> jax.Array:
        two = call.node.op.endswith("2.default")
        axes = tuple(dim) if dim is not None else (-2, -1) if two else None
        if axes is None:
            axes = tuple(range(x.ndim))[-len(s) :] if s is not None else tuple(range(x.ndim))
        if s is not None:
            # -1 leaves that dimension as long as it is.
            s = tuple(x.shape[d] if n == -1 else n for n, d in zip(s, axes, strict=True))
        return cast(_f(_real_input(x) if _r else _complex_input(x), s, axes, norm), out_dtype(call))

    lowers(f"aten.fft_{_name}n.default", f"aten.fft_{_name}2.default")(_many)


@lowers("aten.fft_fftshift.default")
def _fftshift(call: Any, x: jax.Array, dim: Any = None) -> jax.Array:
    return jnp.fft.fftshift(x, None if dim is None else tuple(dim))


@lowers("aten.fft_ifftshift.default")
def _ifftshift(call: Any, x: jax.Array, dim: Any = None) -> jax.Array:
    return jnp.fft.ifftshift(x, None if dim is None else tuple(dim))


@lowers("aten.fft_fftfreq.default")
def _fftfreq(call: Any, n: int, d: float = 1.0, **_: Any) -> jax.Array:
    return jnp.asarray(np.fft.fftfreq(n, d), out_dtype(call))


@lowers("aten.fft_rfftfreq.default")
def _rfftfreq(call: Any, n: int, d: float = 1.0, **_: Any) -> jax.Array:
    return jnp.asarray(np.fft.rfftfreq(n, d), out_dtype(call))


@lowers("aten.stft.default", "aten.stft.center")
def _stft(
    call: Any,
    x: jax.Array,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: jax.Array | None = None,
    *args: Any,
    **named: Any,
) -> jax.Array:
    names = (
        ["center", "pad_mode", "normalized", "onesided", "return_complex"]
        if call.node.op == "aten.stft.center"
        else ["normalized", "onesided", "return_complex"]
    )
    named = {**dict(zip(names, args, strict=False)), **named}
    hop = hop_length or n_fft // 4
    size = win_length or n_fft
    weights = jnp.ones(size, jnp.real(x).dtype) if window is None else window
    left = (n_fft - size) // 2
    weights = jnp.pad(weights, (left, n_fft - size - left))
    single = x.ndim == 1
    x = x[None] if single else x
    if named.get("center") and call.node.op == "aten.stft.center":
        x = jnp.pad(x, ((0, 0), (n_fft // 2,) * 2), mode=named.get("pad_mode", "reflect"))
    places = np.arange(0, x.shape[-1] - n_fft + 1, hop)[:, None] + np.arange(n_fft)
    frames = x[:, places] * weights
    onesided = named.get("onesided")
    onesided = not is_complex(frames.dtype) if onesided is None else onesided
    y = jnp.fft.rfft(frames) if onesided else jnp.fft.fft(frames)
    if named.get("normalized"):
        y = y * (n_fft**-0.5)
    y = jnp.swapaxes(y, -1, -2)
    y = y[0] if single else y
    kind = out_dtype(call)
    return cast(y, kind) if is_complex(kind) else jnp.stack([jnp.real(y), jnp.imag(y)], -1).astype(kind)
