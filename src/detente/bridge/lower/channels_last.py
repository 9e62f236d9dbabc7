"""Values with their channels last, between the operators of a convolutional net.

torch writes (N, C, H, W), and XLA's CPU compiler convolves (N, H, W, C): each convolution would be turned on its way in
and out, and every normalisation between two of them would walk across rows. So a convolution gives a ``Last``, an array
whose channels are its last axis, and the operators that need not know hand it on. Whoever else reads it is given the
array as torch has it; a transpose that two neighbours share is one that XLA takes out.

A batch norm by the extension's kernel gives a ``Normed``: the result, and what it is made of. A ReLU behind it, or
behind a sum with it, is computed by the kernel itself, in the pass that writes the result; what nobody reads then, XLA
takes out.

An operator is *aware* (its entry takes and returns ``Last``) or computes each element by itself (``EACH``: its entry is
given the arrays as they lie, and never learns). A lowering of the user's is given torch's arrays.

How it can fail: an entry in ``EACH`` that looks at an axis would look at another one. Every one of them runs in both
orders in tests/bridge/test_channels_last.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.graph import Aval
from detente.bridge.kernels.batch_norms import Norm, normalised


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Last:
    """``array`` is (N, ..., C) where torch has (N, C, ...)."""

    array: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        """As torch has it."""
        return _first(self.array.shape)

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def ndim(self) -> int:
        return self.array.ndim

    def plain(self) -> jax.Array:
        """As torch has it."""
        return jnp.moveaxis(self.array, -1, 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Normed(Last):
    """``array`` is what ``norm`` makes, plus ``beside`` (shaped like it) if anything is."""

    norm: Norm
    beside: jax.Array | None = None

    def clamped(self) -> Last:
        """A ReLU of it."""
        return Last(normalised(self.norm, self.beside, clamped=True))

    def plus(self, array: jax.Array, beside: jax.Array) -> Last:
        """``array``, which is the sum of this and ``beside``; it knows so, if the kernel can add the two."""
        like = self.array
        if self.beside is not None or (beside.shape, beside.dtype) != (like.shape, like.dtype):
            return Last(array)
        return Normed(array, self.norm, beside)


def last(x: jax.Array | Last) -> Last:
    """(N, C, ...) with its channels last."""
    return x if isinstance(x, Last) else Last(jnp.moveaxis(x, 1, -1))


def plainly(value: Any) -> Any:
    """Arguments or results with every ``Last`` as torch has it."""
    if isinstance(value, Last):
        return value.plain()
    if isinstance(value, tuple | list):
        return type(value)(plainly(item) for item in value)
    return value


def wanted() -> bool:
    """Whether convolutions give ``Last`` here. Compilers for other devices choose a layout themselves."""
    return jax.default_backend() == "cpu"


# Each element of the result is made of those at its place.
_ALONE = (
    "relu relu6 silu gelu mish hardswish hardsigmoid hardtanh leaky_relu elu selu softplus sigmoid tanh neg abs exp "
    "square sqrt rsqrt clone detach alias"
)
_BESIDE = ("add", "sub", "mul", "div")
EACH = frozenset(
    [f"aten.{name}.default" for name in _ALONE.split()]
    + [f"aten.{name}.{kind}" for name in _BESIDE for kind in ("Tensor", "Scalar")]
)


def met(args: Sequence[Any]) -> bool:
    """Whether any argument, or any item of a list among them, has its channels last."""
    return any(isinstance(a, Last) or (isinstance(a, tuple | list) and met(a)) for a in args)


def each(lower: Callable[..., Any], call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Last | None:
    """The result of an operator of ``EACH``, computed where the arrays lie; None where it cannot be: an operand of
    another rank broadcasts by torch's order of axes."""
    out = call.out
    if not isinstance(out, Aval) or any(not _fits(a, len(out.shape)) for a in (*args, *kwargs.values())):
        return None
    if call.node.op == "aten.relu.default" and isinstance(args[0], Normed):
        return args[0].clamped()
    there = replace(call, node=replace(call.node, out=replace(out, shape=_last(out.shape))))
    turned = [_turned(a) for a in args]
    array = lower(there, *turned, **{name: _turned(a) for name, a in kwargs.items()})
    if call.node.op == "aten.add.Tensor" and len(args) == 2 and not kwargs:
        for one, other in (args, args[::-1]):
            if isinstance(one, Normed) and isinstance(other, Last):
                return one.plus(array, other.array)
    return Last(array)


def _fits(value: Any, rank: int) -> bool:
    return not isinstance(value, Last | jax.Array) or value.ndim in (0, rank)


def _turned(value: Any) -> Any:
    if isinstance(value, Last):
        return value.array
    return jnp.moveaxis(value, 1, -1) if isinstance(value, jax.Array) and value.ndim else value


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


def _first(shape: Sequence[int]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])
