"""Numbers that the program computes: ``tensor.item()``, Python's arithmetic on them, and what is asserted of them.

While a program is captured such a number is a symbol, and Python's operators on it are nodes of the graph
(``python.le``). They mostly feed checks: ``assert lengths.max().item() <= n``, ``torch._check``. A check that fails
is a fault, raised with the user's line when the loss is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.capture.guards import CHECK
from detente.bridge.lower.dtypes import cast, is_integer, out_dtype
from detente.bridge.lower.table import lowers

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "truediv": jnp.true_divide,
    "floordiv": jnp.floor_divide,
    "mod": jnp.mod,  # Python's, with the divisor's sign
    "pow": jnp.power,
    "neg": jnp.negative,
    "pos": jnp.positive,
    "abs": jnp.abs,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "and_": jnp.bitwise_and,
    "or_": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "sym_not": jnp.logical_not,
    "sym_float": jnp.asarray,
    "sym_max": jnp.maximum,
    "sym_min": jnp.minimum,
    "sym_ite": jnp.where,
}
_DIVISIONS = ("truediv", "floordiv", "mod")


def _register(name: str, operator: Callable[..., Any]) -> None:
    @lowers(f"python.{name}")
    def lower(call: Any, *values: Any) -> jax.Array:
        arrays = [jnp.asarray(v) for v in values]
        if name in _DIVISIONS:
            call.fault(
                arrays[1] == 0, "ZeroDivisionError: a number that the program computes is divided by 0"
            )
            if is_integer(arrays[1].dtype):
                arrays[1] = jnp.where(arrays[1] == 0, 1, arrays[1])
        return cast(operator(*arrays), out_dtype(call))


for _name, _operator in _OPERATORS.items():
    _register(_name, _operator)


@lowers("python.sym_sum")
def _sym_sum(call: Any, values: Any) -> jax.Array:
    total = jnp.zeros((), out_dtype(call))
    for value in values:
        total = total + value
    return cast(total, out_dtype(call))


@lowers("aten.item.default", "aten._local_scalar_dense.default")
def _item(call: Any, x: jax.Array) -> jax.Array:
    """A Python number: int64 or float64 whatever the tensor's dtype. A number carries no gradient."""
    return cast(lax.stop_gradient(x).reshape(()), out_dtype(call))


@lowers("aten._assert_scalar.default", note="torch._check and assert on a number that the program computes")
def _assert_scalar(call: Any, condition: Any, *_: Any) -> None:
    code = call.node.where.code
    kind = "AssertionError" if code.startswith("assert") else "RuntimeError"
    call.fault(jnp.asarray(condition).reshape(()) == 0, f"{kind}: {CHECK}{code or '?'}")


@lowers("aten._assert_async.default", "aten._assert_async.msg")
def _assert_async(
    call: Any, condition: Any, message: str = "Expected Tensor with single nonzero value"
) -> None:
    # A guard's says what it raises (capture/guards.py).
    said = message if message.partition(": ")[2].startswith(CHECK) else f"RuntimeError: {message}"
    call.fault(jnp.asarray(condition).reshape(()) == 0, said)
