"""Random operators. The rule below is mirrored bit for bit by the torch twin (detente.bridge.random).

One key per call, ``k = call.key()`` (a threefry key, ``fold_in(step key, draw)``); shapes are those of the result.

* ``uniform``: ``u = jax.random.uniform(k, shape, float32)``, whatever the dtype asked for: the top 23 of 32 bits,
  in [0, 1). float64 takes the float32 value; bfloat16 (float16) keep the top 8 (11) binary digits, so that
  rounding never makes 1.0.
* keep mask of dropout with probability ``p``: ``u < float32(1 - p)``; the survivors are multiplied by
  ``1 / (1 - p)``. ``p = 0`` and ``train = False`` draw nothing; ``p = 1`` gives zeros and draws nothing.
* ``bernoulli``: ``u < float32(p)``, also with a tensor of probabilities.
* ``rand``, ``uniform(a, b)``: ``u * (b - a) + a`` in float32.
* ``randint(low, high)``: ``jax.random.randint(k, shape, low, high)`` in int32, two draws of 32 bits
  (``k1, k2 = split(k)``), ``((hi % span) * (2**32 % span) + lo % span) % span + low``.
* ``randn``, ``normal``: ``jax.random.normal(k, shape, float32) = sqrt(2) * erf_inv(v)``, ``v`` uniform in
  (-1, 1); equal between stacks to some ulp of ``erf_inv``, not bit for bit.
* what is computed from ``u`` or ``v`` (the other rules) is computed in the result's dtype where that is float64: two
  stacks' float32 logarithms differ by more than a float64 step may.
* ``exponential``: ``-log1p(-u) / rate``. ``multinomial``: Gumbel trick, ``argmax(log p - log(-log u'))`` with ``u'``
  clipped below at the smallest normal float32. ``randperm``: the stable order of 32 random bits each.
* recurrent layers' dropout: key of layer boundary ``l`` is ``fold_in(k, l)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.kernels.build import may_call
from detente.bridge.kernels.targets import KEPT, call
from detente.bridge.lower.dtypes import cast, is_float, out_dtype, wide
from detente.bridge.lower.table import lowers
from detente.bridge.refusal import refuse

_DIGITS = {"bfloat16": 8, "float16": 11}


def uniform(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """float32 in [0, 1)."""
    return jax.random.uniform(key, tuple(shape), jnp.float32)


def uniform_in(key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
    """[0, 1) in ``dtype``; half precision is cut, not rounded, so 1.0 never appears."""
    draw = uniform(key, shape)
    digits = _DIGITS.get(jnp.dtype(dtype).name)
    return cast(draw if digits is None else jnp.floor(draw * 2**digits) / 2**digits, dtype)


def unit(key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
    """[0, 1) of float32's digits, to compute with: in float64 for a float64 result, else in float32."""
    draw = uniform(key, shape)
    return cast(draw, dtype) if jnp.dtype(dtype) == jnp.float64 else draw


def normal(key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
    """Standard normal numbers to compute with: in float64 for a float64 result, else in float32."""
    if jnp.dtype(dtype) != jnp.float64:
        return jax.random.normal(key, tuple(shape), jnp.float32)
    low = np.nextafter(np.float32(-1), np.float32(0), dtype=np.float32)
    inside = jax.random.uniform(key, tuple(shape), jnp.float32, low, 1.0).astype(jnp.float64)
    return lax.erf_inv(inside) * np.sqrt(2)


def keep_mask(key: jax.Array, p: float, shape: Sequence[int]) -> jax.Array:
    """True where dropout of probability ``p`` keeps the element."""
    share = np.float32(1.0 - p)
    if may_call():
        return call(KEPT, [tuple(shape)], jax.random.key_data(key), dtype=np.bool_, share=float(share))[0]
    return uniform(key, shape) < share


def dropout(
    call: Any, x: jax.Array, p: float, train: bool | None, key: Any = None
) -> tuple[jax.Array, jax.Array]:
    """``x`` after dropout in its own dtype, and the mask."""
    if train is False or p == 0:
        return x, jnp.ones(x.shape, bool)
    if p == 1:
        return x * 0, jnp.zeros(x.shape, bool)
    mask = keep_mask(call.key() if key is None else key, p, x.shape)
    scaled = cast(cast(x, wide(x.dtype)) * jnp.asarray(1.0 / (1.0 - p), wide(x.dtype)), x.dtype)
    return jnp.where(mask, scaled, jnp.zeros_like(x)), mask


@lowers("aten.native_dropout.default", random=True)
def _native_dropout(call: Any, x: jax.Array, p: float, train: bool | None) -> tuple[jax.Array, jax.Array]:
    return dropout(call, x, p, train)


@lowers("aten.native_dropout_backward.default")
def _native_dropout_backward(call: Any, grad: jax.Array, mask: jax.Array, scale: float) -> jax.Array:
    return grad * cast(mask, grad.dtype) * jnp.asarray(scale, grad.dtype)


@lowers("aten.dropout.default", random=True)
def _dropout(call: Any, x: jax.Array, p: float, train: bool) -> jax.Array:
    return dropout(call, x, p, train)[0]


@lowers("aten.feature_dropout.default", random=True)
def _feature_dropout(call: Any, x: jax.Array, p: float, train: bool) -> jax.Array:
    if not train or p == 0:
        return x
    if p == 1:
        return x * 0
    mask = keep_mask(call.key(), p, (*x.shape[:2], *(1,) * (x.ndim - 2)))
    return jnp.where(mask, x * jnp.asarray(1.0 / (1.0 - p), x.dtype), jnp.zeros_like(x))


@lowers("aten.alpha_dropout.default", "aten.feature_alpha_dropout.default", random=True)
def _alpha_dropout(call: Any, x: jax.Array, p: float, train: bool) -> jax.Array:
    if not train or p == 0:
        return x
    if p == 1:
        return x * 0
    feature = call.node.op == "aten.feature_alpha_dropout.default"
    shape = (*x.shape[:2], *(1,) * (x.ndim - 2)) if feature else x.shape
    alpha = 1.7580993408473766
    scale = float(1.0 / np.sqrt((alpha * alpha * p + 1) * (1 - p)))
    keep = keep_mask(call.key(), p, shape)
    wider = cast(x, wide(x.dtype))
    result = jnp.where(keep, wider * scale + alpha * scale * p, -alpha * scale + alpha * scale * p)
    return cast(result, x.dtype)


@lowers("aten.bernoulli.default", "aten.bernoulli.p", "aten.bernoulli.Tensor", random=True)
def _bernoulli(call: Any, x: jax.Array, p: Any = None, *, generator: Any = None) -> jax.Array:
    probability = cast(x if p is None else p, jnp.float32)
    return lax.stop_gradient(cast(uniform(call.key(), call.out.shape) < probability, out_dtype(call)))


def _rand(call: Any, *_: Any, **__: Any) -> jax.Array:
    return uniform_in(call.key(), call.out.shape, out_dtype(call))


def _randn(call: Any, *_: Any, **__: Any) -> jax.Array:
    return cast(normal(call.key(), call.out.shape, out_dtype(call)), out_dtype(call))


for _name, _function in (("rand", _rand), ("randn", _randn)):
    lowers(f"aten.{_name}.default", f"aten.{_name}.generator", f"aten.{_name}_like.default", random=True)(
        _function
    )


def _integers(call: Any, low: int, high: int) -> jax.Array:
    return cast(jax.random.randint(call.key(), call.out.shape, low, high, jnp.int32), out_dtype(call))


@lowers("aten.randint.default", "aten.randint.generator", random=True)
def _randint(call: Any, high: int, size: Any, **_: Any) -> jax.Array:
    return _integers(call, 0, high)


@lowers("aten.randint.low", "aten.randint.low_generator", random=True)
def _randint_low(call: Any, low: int, high: int, size: Any, **_: Any) -> jax.Array:
    return _integers(call, low, high)


@lowers("aten.randint_like.default", random=True)
def _randint_like(call: Any, x: jax.Array, high: int, **_: Any) -> jax.Array:
    return _integers(call, 0, high)


@lowers("aten.randint_like.low_dtype", random=True)
def _randint_like_low(call: Any, x: jax.Array, low: int, high: int, **_: Any) -> jax.Array:
    return _integers(call, low, high)


@lowers("aten.random.default", "aten.random.from", "aten.random.to", random=True)
def _random(call: Any, x: jax.Array, *ends: int, generator: Any = None) -> jax.Array:
    if len(ends) == 2:
        return _integers(call, ends[0], ends[1])
    limit = 2**24 if is_float(x.dtype) else 2**31 - 1
    return _integers(call, 0, ends[0] if ends else limit)


@lowers("aten.randperm.default", "aten.randperm.generator", random=True)
def _randperm(call: Any, n: int, **_: Any) -> jax.Array:
    bits = jax.random.bits(call.key(), (n,), jnp.uint32)
    return cast(jnp.argsort(bits, stable=True), out_dtype(call))


@lowers("aten.normal_functional.default", random=True)
def _normal_functional(call: Any, x: jax.Array, mean: float = 0.0, std: float = 1.0, **_: Any) -> jax.Array:
    return cast(normal(call.key(), call.out.shape, out_dtype(call)) * std + mean, out_dtype(call))


@lowers(
    "aten.normal.Tensor_float",
    "aten.normal.float_Tensor",
    "aten.normal.Tensor_Tensor",
    "aten.normal.float_float",
    random=True,
)
def _normal(call: Any, mean: Any, std: Any = 1.0, *_: Any, **__: Any) -> jax.Array:
    kind = wide(out_dtype(call))
    call.fault(jnp.any(jnp.asarray(std) < 0), "RuntimeError: normal expects all elements of std >= 0.0")
    noise = cast(normal(call.key(), call.out.shape, kind), kind)
    return lax.stop_gradient(cast(noise * cast(std, kind) + cast(mean, kind), out_dtype(call)))


@lowers("aten.uniform.default", random=True)
def _uniform(
    call: Any, x: jax.Array, low: float = 0.0, high: float = 1.0, *, generator: Any = None
) -> jax.Array:
    return cast(unit(call.key(), x.shape, x.dtype) * (high - low) + low, x.dtype)


def _at_least(drawn: jax.Array) -> jax.Array:
    """An exponential number is never 0, whose logarithm is infinite: where 0 is drawn it is half an eps, as ATen's."""
    return jnp.maximum(drawn, jnp.finfo(drawn.dtype).eps / 2)


@lowers("aten.exponential.default", random=True)
def _exponential(call: Any, x: jax.Array, lambd: float = 1.0, *, generator: Any = None) -> jax.Array:
    return cast(_at_least(-jnp.log1p(-unit(call.key(), x.shape, x.dtype))) / lambd, x.dtype)


@lowers("aten.cauchy.default", random=True)
def _cauchy(
    call: Any, x: jax.Array, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None
) -> jax.Array:
    return cast(median + sigma * jnp.tan(jnp.pi * (unit(call.key(), x.shape, x.dtype) - 0.5)), x.dtype)


@lowers("aten.log_normal.default", random=True)
def _log_normal(
    call: Any, x: jax.Array, mean: float = 1.0, std: float = 2.0, *, generator: Any = None
) -> jax.Array:
    return cast(jnp.exp(normal(call.key(), x.shape, x.dtype) * std + mean), x.dtype)


@lowers("aten.geometric.default", random=True)
def _geometric(call: Any, x: jax.Array, p: float, *, generator: Any = None) -> jax.Array:
    return cast(jnp.ceil(jnp.log1p(-unit(call.key(), x.shape, x.dtype)) / np.log1p(-p)), x.dtype)


@lowers("aten.multinomial.default", random=True)
def _multinomial(
    call: Any, weights: jax.Array, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> jax.Array:
    tiny = float(jnp.finfo(jnp.float32).tiny)
    weights = cast(weights, jnp.float32)
    wrong = jnp.any(~jnp.isfinite(weights) | (weights < 0))
    call.fault(wrong, "RuntimeError: probability tensor contains either inf, nan or element < 0")
    none = jnp.any(jnp.sum(weights, -1) <= 0)
    call.fault(none, "RuntimeError: invalid multinomial distribution (sum of probabilities <= 0)")
    logits = jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1)), -jnp.inf)
    if replacement:
        shape = (*weights.shape[:-1], num_samples, weights.shape[-1])
        noise = -jnp.log(-jnp.log(jnp.maximum(uniform(call.key(), shape), tiny)))
        return cast(jnp.argmax(logits[..., None, :] + noise, -1), out_dtype(call))
    noise = -jnp.log(-jnp.log(jnp.maximum(uniform(call.key(), weights.shape), tiny)))
    return cast(lax.top_k(logits + noise, num_samples)[1], out_dtype(call))


@lowers(
    "aten.poisson.default",
    "aten.binomial.default",
    "aten._sample_dirichlet.default",
    random=True,
    note="refused",
)
def _refused(call: Any, *_: Any, **__: Any) -> Any:
    raise refuse(
        "op",
        f"{call.node.op} draws by rejection, a data-dependent number of times",
        call.node.where,
        "draw it outside of the step and pass it in with the batch",
    )
