"""What each random ATen operator draws, in torch: the same rules as ``lower/ops/random.py``, word for word.

A row is ``draw(key, op's arguments) -> what the operator returns``. Operators that write in place do so. These
are the operators below autograd and below torch's composites, so dropout on the CPU arrives as ``bernoulli_``
and on a GPU as ``native_dropout``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detente.bridge.random import threefry
from detente.bridge.random.threefry import Key

_DIGITS = {torch.bfloat16: 8, torch.float16: 11}
_TINY = float(torch.finfo(torch.float32).tiny)

Draw = Callable[..., Any]
DRAWS: dict[str, Draw] = {}


def draws(*names: str) -> Callable[[Draw], Draw]:
    def register(function: Draw) -> Draw:
        DRAWS.update({f"aten.{name}": function for name in names})
        return function

    return register


def _uniform(key: Key, like: Tensor, shape: Any = None) -> Tensor:
    return threefry.uniform(key, like.shape if shape is None else shape, like.device)


def _computed(key: Key, like: Tensor) -> Tensor:
    """The same to compute with: in float64 for a float64 result."""
    drawn = _uniform(key, like)
    return drawn.double() if like.dtype == torch.float64 else drawn


def _normal(key: Key, like: Tensor) -> Tensor:
    return threefry.normal(key, like.shape, like.device, like.dtype)


def _made(
    size: Any, dtype: Any = None, device: Any = None, default: torch.dtype | None = None, **_: Any
) -> Tensor:
    """An empty result with the operator's own dtype and device."""
    return torch.empty(tuple(size), dtype=dtype or default or torch.get_default_dtype(), device=device)


def _like(x: Tensor, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def _unit(key: Key, out: Tensor) -> Tensor:
    """[0, 1) in the result's dtype; half precision is cut, not rounded, so 1.0 never appears."""
    drawn, digits = _uniform(key, out), _DIGITS.get(out.dtype)
    if digits is not None:
        drawn = torch.floor(drawn * 2.0**digits) / 2.0**digits
    return drawn.to(out.dtype)


# -- dropout and bernoulli -----------------------------------------------------------------------------------


def _below(key: Key, p: Any, like: Tensor, shape: Any = None) -> Tensor:
    """True with probability ``float32(p)``."""
    limit = torch.as_tensor(p, device=like.device).to(torch.float32)
    return _uniform(key, like, shape) < limit


@draws("bernoulli_.float", "bernoulli_.Tensor")
def _bernoulli_(key: Key, x: Tensor, p: Any = 0.5, **_: Any) -> Tensor:
    return x.copy_(_below(key, p, x))


@draws("bernoulli.default")
def _bernoulli(key: Key, x: Tensor, **_: Any) -> Tensor:
    return _below(key, x, x).to(x.dtype)


@draws("bernoulli.p", "bernoulli.Tensor")
def _bernoulli_p(key: Key, x: Tensor, p: Any, **_: Any) -> Tensor:
    return _below(key, p, x).to(x.dtype)


@draws("native_dropout.default")
def _native_dropout(key: Key, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    keep = _below(key, 1.0 - p, x)
    wide = x.to(torch.float32) if x.dtype in _DIGITS else x
    return torch.where(keep, (wide * (1.0 / (1.0 - p))).to(x.dtype), torch.zeros_like(x)), keep


# -- numbers in an interval ----------------------------------------------------------------------------------


@draws("rand.default", "rand.generator")
def _rand(key: Key, size: Any, **named: Any) -> Tensor:
    named.pop("generator", None)
    out = _made(size, **named)
    return out.copy_(_unit(key, out))


@draws("rand_like.default", "rand_like.generator")
def _rand_like(key: Key, x: Tensor, **named: Any) -> Tensor:
    named.pop("generator", None)
    out = _like(x, **named)
    return out.copy_(_unit(key, out))


@draws("uniform_.default")
def _uniform_(key: Key, x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return x.copy_(_computed(key, x) * (high - low) + low)


@draws("uniform.default")
def _uniform_of(key: Key, x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return _uniform_(key, torch.empty_like(x), low, high)


@draws("rrelu_with_noise.default", "rrelu_with_noise_.default")
def _rrelu(
    key: Key,
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = True,
    *_: Any,
) -> Tensor:
    slope = (_computed(key, x) * (upper - lower) + lower).to(x.dtype)
    noise.copy_(torch.where(x > 0, torch.ones_like(x), slope))
    return x * noise


# -- normal and its kin --------------------------------------------------------------------------------------


@draws("randn.default", "randn.generator")
def _randn(key: Key, size: Any, **named: Any) -> Tensor:
    named.pop("generator", None)
    out = _made(size, **named)
    return out.copy_(_normal(key, out))


@draws("randn_like.default", "randn_like.generator")
def _randn_like(key: Key, x: Tensor, **named: Any) -> Tensor:
    named.pop("generator", None)
    out = _like(x, **named)
    return out.copy_(_normal(key, out))


@draws("normal_.default")
def _normal_(key: Key, x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return x.copy_(_normal(key, x) * std + mean)


@draws("normal_functional.default")
def _normal_functional(key: Key, x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return _normal_(key, torch.empty_like(x), mean, std)


@draws("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def _normal_of(key: Key, mean: Any, std: Any = 1.0, **_: Any) -> Tensor:
    like = mean if isinstance(mean, Tensor) else std
    if isinstance(mean, Tensor) and isinstance(std, Tensor):
        like = (mean + std).to(mean.dtype)
    wide = torch.float32 if like.dtype in _DIGITS else like.dtype
    noise = _normal(key, like).to(wide)
    return (noise * torch.as_tensor(std, dtype=wide) + torch.as_tensor(mean, dtype=wide)).to(like.dtype)


@draws("normal.float_float")
def _normal_size(key: Key, mean: float, std: float, size: Any, **named: Any) -> Tensor:
    named.pop("generator", None)
    return _normal_(key, _made(size, **named), mean, std)


@draws("exponential_.default")
def _exponential_(key: Key, x: Tensor, lambd: float = 1.0, **_: Any) -> Tensor:
    drawn = -torch.log1p(-_computed(key, x))
    # Never 0, whose logarithm is infinite: as the program draws it (lower/ops/random.py).
    return x.copy_(drawn.clamp_min(torch.finfo(drawn.dtype).eps / 2) / lambd)


@draws("cauchy_.default")
def _cauchy_(key: Key, x: Tensor, median: float = 0.0, sigma: float = 1.0, **_: Any) -> Tensor:
    return x.copy_(median + sigma * torch.tan(math.pi * (_computed(key, x) - 0.5)))


@draws("log_normal_.default")
def _log_normal_(key: Key, x: Tensor, mean: float = 1.0, std: float = 2.0, **_: Any) -> Tensor:
    return x.copy_(torch.exp(_normal(key, x) * std + mean))


@draws("geometric_.default")
def _geometric_(key: Key, x: Tensor, p: float, **_: Any) -> Tensor:
    return x.copy_(torch.ceil(torch.log1p(-_computed(key, x)) / math.log1p(-p)))


# -- integers and choices ------------------------------------------------------------------------------------


def _integers(key: Key, out: Tensor, low: int, high: int) -> Tensor:
    return out.copy_(threefry.randint(key, out.shape, low, high, out.device))


@draws("randint.default", "randint.generator")
def _randint(key: Key, high: int, size: Any, **named: Any) -> Tensor:
    named.pop("generator", None)
    return _integers(key, _made(size, default=torch.int64, **named), 0, high)


@draws("randint.low", "randint.low_generator")
def _randint_low(key: Key, low: int, high: int, size: Any, **named: Any) -> Tensor:
    named.pop("generator", None)
    return _integers(key, _made(size, default=torch.int64, **named), low, high)


@draws("randint_like.default")
def _randint_like(key: Key, x: Tensor, high: int, **named: Any) -> Tensor:
    return _integers(key, _like(x, **named), 0, high)


@draws("randint_like.low_dtype")
def _randint_like_low(key: Key, x: Tensor, low: int, high: int, **named: Any) -> Tensor:
    return _integers(key, _like(x, **named), low, high)


@draws("random_.default", "random_.to", "random_.from")
def _random_(key: Key, x: Tensor, *ends: int | None, **_: Any) -> Tensor:
    limit = 2**24 if x.is_floating_point() else 2**31 - 1
    if len(ends) == 2:
        return _integers(key, x, ends[0] or 0, limit if ends[1] is None else ends[1])
    return _integers(key, x, 0, limit if not ends or ends[0] is None else ends[0])


@draws("randperm.default", "randperm.generator")
def _randperm(key: Key, n: int, **named: Any) -> Tensor:
    named.pop("generator", None)
    out = _made((n,), default=torch.int64, **named)
    return out.copy_(threefry.permutation(key, n, out.device))


@draws("multinomial.default")
def _multinomial(key: Key, weights: Tensor, num_samples: int, replacement: bool = False, **_: Any) -> Tensor:
    weights = weights.to(torch.float32)
    logits = torch.where(weights > 0, torch.log(torch.where(weights > 0, weights, 1.0)), -math.inf)
    if replacement:
        shape = (*weights.shape[:-1], num_samples, weights.shape[-1])
        noise = -torch.log(-torch.log(_uniform(key, weights, shape).clamp_min(_TINY)))
        return torch.argmax(logits[..., None, :] + noise, -1)
    noise = -torch.log(-torch.log(_uniform(key, weights).clamp_min(_TINY)))
    return torch.topk(logits + noise, num_samples).indices
