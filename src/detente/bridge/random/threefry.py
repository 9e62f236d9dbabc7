"""Threefry 2x32 in torch operators: the bits of ``jax.random`` in its partitionable form, on any torch device.

Source of the hash: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), 20 rounds.
Words are int32 tensors read as unsigned: torch has no shifts for uint32, and int32 addition wraps alike.
A key is a pair of Python ints below 2**32, as ``jax.random.key_data`` gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Key = tuple[int, int]

_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_MASK = 0xFFFFFFFF
_CHUNK = 1 << 16  # elements hashed at once, so that the ~100 passes stay in the processor's cache


def key(seed: int) -> Key:
    """``jax.random.key(seed, impl="threefry2x32")``. Raises ValueError for a seed that jax would cut
    differently with and without x64."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in [0, 2**32), not {seed}")
    return 0, seed


def fold_in(key: Key, data: int) -> Key:
    """``jax.random.fold_in(key, data)`` for ``0 <= data < 2**32``."""
    return _hash(key, 0, data & _MASK)


def split(key: Key, count: int = 2) -> tuple[Key, ...]:
    """``jax.random.split(key, count)``."""
    return tuple(_hash(key, 0, i) for i in range(count))


def bits(key: Key, shape: Sequence[int], device: torch.device | str = "cpu") -> torch.Tensor:
    """``jax.random.bits(key, shape, uint32)`` as int32 words of the same bits."""
    count = math.prod(shape)
    out = torch.empty(count, dtype=torch.int32, device=device)
    step = _CHUNK if out.device.type == "cpu" else max(count, 1)
    for start in range(0, count, step):
        piece = out[start : start + step]
        index = torch.arange(start, start + piece.numel(), device=device)
        high = (index >> 32).to(torch.int32)
        low = (index & _MASK).to(torch.int32)
        a, b = _rounds(key, high, low)
        torch.bitwise_xor(a, b, out=piece)
    return out.reshape(tuple(shape))


def uniform(key: Key, shape: Sequence[int], device: torch.device | str = "cpu") -> torch.Tensor:
    """``jax.random.uniform(key, shape, float32)`` in [0, 1): the top 23 bits over 2**23."""
    return _unit(bits(key, shape, device))


def bernoulli(
    key: Key, p: float | torch.Tensor, shape: Sequence[int], device: torch.device | str = "cpu"
) -> torch.Tensor:
    """``jax.random.bernoulli(key, float32(p), shape)``, a bool tensor."""
    return uniform(key, shape, device) < torch.as_tensor(p, dtype=torch.float32, device=device)


def normal(
    key: Key,
    shape: Sequence[int],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """``jax.random.normal(key, shape, float32)`` to 1e-6 relative: the uniform numbers below it are the same
    bits, and ``erfinv`` is XLA's polynomial, whose ``log1p`` is each stack's own. For float64 the same uniform numbers
    through ``erfinv`` in float64, where both stacks agree to float64's rounding."""
    low = torch.nextafter(torch.tensor(-1.0), torch.tensor(0.0)).item()
    span = float(torch.tensor(1.0) - torch.tensor(low))
    inside = torch.clamp_min(_unit(bits(key, shape, device)) * span + low, low)
    if dtype == torch.float64:
        return torch.erfinv(inside.double()).mul_(math.sqrt(2))
    return _erfinv(inside).mul_(math.sqrt(2))


def randint(
    key: Key, shape: Sequence[int], low: int, high: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """``jax.random.randint(key, shape, low, high, int32)`` as int64 values. Needs ``-2**31 <= low`` and
    ``high <= 2**31``."""
    first, second = split(key)
    upper = bits(first, shape, device).to(torch.int64) & _MASK
    lower = bits(second, shape, device).to(torch.int64) & _MASK
    span = 1 if high <= low else high - low
    # 2**32 mod span, formed in uint32 as jax does: the square wraps to zero beyond 2**16
    multiplier = ((65536 % span) ** 2 & _MASK) % span
    offset = (((upper % span) * multiplier & _MASK) + lower % span) & _MASK
    return low + offset % span


def permutation(key: Key, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """``jnp.argsort(jax.random.bits(key, (count,)), stable=True)``: the bridge's ``randperm``."""
    words = bits(key, (count,), device).to(torch.int64) & _MASK
    return torch.sort(words, stable=True).indices


# M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2010), single precision; XLA uses it, and
# torch's own erfinv differs from it by 1e-5 in the tails.
_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
           -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
         0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _erfinv(x: torch.Tensor) -> torch.Tensor:
    w = torch.log1p(-x * x).neg_()
    centre, tail = w - 2.5, w.sqrt() - 3.0
    near, far = torch.full_like(x, _CENTRE[0]), torch.full_like(x, _TAIL[0])
    for a, b in zip(_CENTRE[1:], _TAIL[1:], strict=True):
        near.mul_(centre).add_(a)
        far.mul_(tail).add_(b)
    return torch.where(w < 5.0, near, far).mul_(x)


def _unit(words: torch.Tensor) -> torch.Tensor:
    return (words >> 9).bitwise_and_(0x7FFFFF).to(torch.float32).mul_(2.0**-23)


def _signed(word: int) -> int:
    word &= _MASK
    return word - 2**32 if word >= 2**31 else word


def _schedule(key: Key) -> list[tuple[int, int]]:
    """What is added to the two words before the first and after every fourth round."""
    words = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    return [(words[i % 3], words[(i + 1) % 3] + i) for i in range(6)]


def _rounds(key: Key, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The hash of the counters ``(x, y)``, in place."""
    spare = torch.empty_like(y)
    for number, (a, b) in enumerate(_schedule(key)):
        if number:
            for rotation in _ROTATIONS[(number - 1) % 2]:
                x.add_(y)
                # rotate left; the right shift of int32 drags the sign along, so the mask cuts it off
                torch.bitwise_right_shift(y, 32 - rotation, out=spare)
                spare.bitwise_and_((1 << rotation) - 1)
                y.bitwise_left_shift_(rotation).bitwise_or_(spare).bitwise_xor_(x)
        x.add_(_signed(a))
        y.add_(_signed(b))
    return x, y


def _hash(key: Key, x: int, y: int) -> Key:
    """The same hash on two Python ints."""
    for number, (a, b) in enumerate(_schedule(key)):
        if number:
            for rotation in _ROTATIONS[(number - 1) % 2]:
                x = (x + y) & _MASK
                y = ((y << rotation | y >> (32 - rotation)) & _MASK) ^ x
        x, y = (x + a) & _MASK, (y + b) & _MASK
    return x, y
