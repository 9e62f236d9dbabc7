"""Values whose gradient is stated beside them, where torch's is not the derivative of torch's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


@jax.custom_jvp
def with_gradient(value: jax.Array, through: jax.Array) -> jax.Array:
    """``value`` with the gradient of ``through`` (same shape and dtype), whose own value is dead code and may be NaN.
    Not a sum of the two: that would turn -0.0 into 0.0."""
    return value


@with_gradient.defjvp
def _with_gradient_jvp(primals: Any, tangents: Any) -> Any:
    # Itself and not the value: the second derivative of what it stands in (a product) comes through it again.
    return with_gradient(*primals), tangents[1]


def derived(value: Callable[..., jax.Array], *slopes: Callable[..., jax.Array]) -> Any:
    """``value(*x)`` with a stated derivative by each argument, where jax's own is not torch's (at 0, at a pole) or less
    exact. A slope may call what it is the slope of: XLA computes it once."""

    @jax.custom_jvp
    def apply(*x: jax.Array) -> jax.Array:
        return value(*x)

    def jvp(primals: Any, tangents: Any) -> Any:
        parts = [t * slope(*primals) for t, slope in zip(tangents, slopes, strict=True)]
        return apply(*primals), sum(parts[1:], parts[0])

    apply.defjvp(jvp)
    return apply


def by_result(value: Callable[..., jax.Array], tangent: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """``value(x, *numbers)`` whose tangent is ``tangent(result, of x, *numbers)``: what a training step keeps for it is
    the result, which its reader keeps anyway, where jax's own derivative keeps ``x`` as well. By numbers that the
    program computes nothing is told: they are of another dtype, and what was rounded lies on no bound."""

    def apply(x: jax.Array, *numbers: Any, **named: Any) -> jax.Array:
        if any(isinstance(number, jax.Array) for number in (*numbers, *named.values())):
            return value(x, *numbers, **named)

        @jax.custom_jvp
        def of(x: jax.Array) -> jax.Array:
            return value(x, *numbers, **named)

        @of.defjvp
        def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
            result = of(*primals)
            return result, tangent(result, *tangents, *numbers, **named)

        return of(x)

    return apply
