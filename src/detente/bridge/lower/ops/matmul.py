"""Products: mm, matmul, linear, addmm, bmm, einsum, outer and grouped products.

Operands keep their dtype. XLA accumulates half-precision products in float32, and a bias is added before the one
rounding, as ATen's gemm does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.contract import contracted
from detente.bridge.lower.dtypes import cast, is_bool, is_float, out_dtype, wide
from detente.bridge.lower.table import lowers


def _times(a: jax.Array, b: jax.Array, kind: Any) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=kind)


def by_rows(x: jax.Array, weight: jax.Array, kind: Any) -> jax.Array:
    """``x @ weight.T``: no transposed copy of the weight enters the program."""
    last = (((x.ndim - 1,), (weight.ndim - 1,)), ((), ()))
    return lax.dot_general(x, weight, last, preferred_element_type=kind)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a @ b`` in the accumulation dtype: float32 for half precision, so that the caller rounds once."""
    if is_float(a.dtype) and wide(a.dtype) != a.dtype:
        return contracted(_times, a, b, wide(a.dtype))
    if is_bool(a.dtype):
        return jnp.matmul(a.astype(jnp.int32), b.astype(jnp.int32)) > 0
    return jnp.matmul(a, b)


@lowers(
    "aten.mm.default",
    "aten.bmm.default",
    "aten.matmul.default",
    "aten.linalg_matmul.default",
    "aten.mv.default",
    "aten.dot.default",
    "aten.inner.default",
)
def _matmul(call: Any, a: jax.Array, b: jax.Array) -> jax.Array:
    dtype = out_dtype(call)
    if call.node.op == "aten.inner.default":
        return cast(jnp.inner(cast(a, wide(dtype)), cast(b, wide(dtype))), dtype)
    if a.shape[-1] == 0:
        return jnp.zeros(call.out.shape, dtype)
    return cast(product(a, b), dtype)


@lowers("aten.vdot.default", "aten.linalg_vecdot.default")
def _vdot(call: Any, a: jax.Array, b: jax.Array, *, dim: int = -1) -> jax.Array:
    dtype = out_dtype(call)
    return cast(jnp.sum(jnp.conj(cast(a, wide(dtype))) * cast(b, wide(dtype)), dim), dtype)


@lowers("aten.linear.default")
def _linear(call: Any, x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    dtype = out_dtype(call)
    y = contracted(by_rows, x, weight, wide(x.dtype) if is_float(x.dtype) else None)
    return cast(y if bias is None else y + cast(bias, y.dtype), dtype)


def _scaled(call: Any, x: jax.Array, y: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    """``beta * x + alpha * y`` rounded once; with ``beta == 0`` NaN in ``x`` does not count (BLAS' rule)."""
    dtype = out_dtype(call)
    y = cast(y, wide(dtype))
    if alpha != 1:
        y = y * jnp.asarray(alpha, y.dtype)
    if beta == 0:
        return cast(jnp.broadcast_to(y, call.out.shape), dtype)
    x = cast(x, wide(dtype))
    return cast((x if beta == 1 else x * jnp.asarray(beta, x.dtype)) + y, dtype)


@lowers(
    "aten.addmm.default",
    "aten.addmv.default",
    "aten.baddbmm.default",
    "aten.addbmm.default",
    "aten.addr.default",
)
def _addmm(
    call: Any, x: jax.Array, a: jax.Array, b: jax.Array, *, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    if call.node.op == "aten.addr.default":
        y = cast(a, out_dtype(call))[:, None] * cast(b, out_dtype(call))[None, :]
        if is_bool(y.dtype):
            return (y & bool(alpha)) | (x & bool(beta))
        return _scaled(call, x, y, beta, alpha)
    y = product(a, b)
    return _scaled(call, x, jnp.sum(y, 0) if call.node.op == "aten.addbmm.default" else y, beta, alpha)


@lowers("aten.outer.default", "aten.ger.default")
def _outer(call: Any, a: jax.Array, b: jax.Array) -> jax.Array:
    dtype = out_dtype(call)
    return cast(cast(a, dtype)[:, None] * cast(b, dtype)[None, :], dtype)


@lowers("aten.kron.default")
def _kron(call: Any, a: jax.Array, b: jax.Array) -> jax.Array:
    dtype = out_dtype(call)
    return cast(jnp.kron(cast(a, wide(dtype)), cast(b, wide(dtype))), dtype)


def _einstein(equation: str, a: jax.Array, b: jax.Array, kind: Any) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=kind)


@lowers("aten.einsum.default")
def _einsum(call: Any, equation: str, operands: Sequence[jax.Array], *, path: Any = None) -> jax.Array:
    dtype = out_dtype(call)
    kind = wide(dtype) if is_float(dtype) else None
    if len(operands) != 2:
        return cast(jnp.einsum(equation, *operands, preferred_element_type=kind), dtype)
    a, b = operands
    return cast(contracted(partial(_einstein, equation), a, b, kind), dtype)


def _tensors(dims: Any, a: jax.Array, b: jax.Array, kind: Any) -> jax.Array:
    return jnp.tensordot(a, b, dims, preferred_element_type=kind)


@lowers("aten.tensordot.default")
def _tensordot(
    call: Any, a: jax.Array, b: jax.Array, dims_self: Sequence[int], dims_other: Sequence[int]
) -> jax.Array:
    dtype = out_dtype(call)
    kind = wide(dtype) if is_float(dtype) else None
    for i, j in zip(dims_self, dims_other, strict=True):
        # A contracted dimension of size 1 is broadcast against the other.
        if a.shape[i] == 1 != b.shape[j]:
            b = jnp.sum(b, j, keepdims=True)
        elif b.shape[j] == 1 != a.shape[i]:
            a = jnp.sum(a, i, keepdims=True)
    return cast(contracted(partial(_tensors, (tuple(dims_self), tuple(dims_other))), a, b, kind), dtype)


@lowers("aten.bilinear.default")
def _bilinear(
    call: Any, a: jax.Array, b: jax.Array, weight: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
    dtype = out_dtype(call)
    y = jnp.einsum("...i,oij,...j->...o", a, weight, b, preferred_element_type=wide(dtype))
    return cast(y if bias is None else y + cast(bias, y.dtype), dtype)


@lowers("aten.linalg_multi_dot.default", "aten.chain_matmul.default")
def _multi_dot(call: Any, tensors: Sequence[jax.Array]) -> jax.Array:
    return cast(jnp.linalg.multi_dot(list(tensors)), out_dtype(call))


@lowers("aten.matrix_power.default", "aten.linalg_matrix_power.default")
def _matrix_power(call: Any, x: jax.Array, n: int) -> jax.Array:
    return jnp.linalg.matrix_power(x, n)


@lowers("aten.cross.default", "aten.linalg_cross.default")
def _cross(call: Any, a: jax.Array, b: jax.Array, dim: int | None = None) -> jax.Array:
    dtype = out_dtype(call)
    a, b = jnp.broadcast_arrays(cast(a, dtype), cast(b, dtype))
    if dim is None:
        dim = a.shape.index(3) if call.node.op == "aten.cross.default" else -1
    return jnp.cross(a, b, axis=dim)


@lowers("transformers.grouped_mm_fallback.default", "aten._grouped_mm.default")
def _grouped_mm(
    call: Any, x: jax.Array, weight: jax.Array, offs: jax.Array, bias: Any = None, out_dtype: Any = None
) -> jax.Array:
    """Rows ``offs[g-1]:offs[g]`` of ``x`` (N, K) times ``weight[g]`` (G, K, M): (N, M)."""
    sizes = jnp.diff(offs.astype(jnp.int32), prepend=jnp.zeros(1, jnp.int32))
    return cast(lax.ragged_dot(x, weight, sizes), x.dtype)
