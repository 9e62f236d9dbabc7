"""Linear algebra: inverse, solve, Cholesky, QR, SVD, eigenvalues, determinants, norms of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import linalg as scipy_linalg

from detente.bridge.lower.dtypes import cast, is_complex, out_dtype, wide
from detente.bridge.lower.ops.pointwise import absolute
from detente.bridge.lower.ops.reduce import axes, linalg_vector_norm, vector_norm
from detente.bridge.lower.table import lowers
from detente.bridge.refusal import refuse


def _turned(x: jax.Array) -> jax.Array:
    y = jnp.swapaxes(x, -1, -2)
    return jnp.conj(y) if is_complex(y.dtype) else y


def _zero_pivot(call: Any, index: int, x: jax.Array) -> jax.Array:
    """LAPACK's info of an LU factorisation: which pivot is the first that is zero, counted from 1, or 0."""
    lu, _, _ = lax.linalg.lu(lax.stop_gradient(x))
    return _first(call, index, jnp.diagonal(lu, axis1=-2, axis2=-1) == 0)


def _first(call: Any, index: int, wrong: jax.Array) -> jax.Array:
    """The place of the first True of the last axis, counted from 1, or 0."""
    shape, kind = call.out[index].shape, out_dtype(call, index)
    if not wrong.shape[-1]:
        return jnp.zeros(shape, kind)
    found = jnp.where(jnp.any(wrong, -1), jnp.argmax(wrong, -1) + 1, 0)
    return cast(jnp.broadcast_to(found, shape), kind)


def _pivots(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cholesky's factor of each (n, n) matrix column by column, up to the first pivot that is not positive, and which
    columns have such a pivot (…, n). Where all are, it is what LAPACK's is; where one is not, what LAPACK leaves: the
    columns before it, and the rest as it was."""
    n = x.shape[-1]
    rows = jnp.arange(n)

    def column(j: Any, carry: Any) -> Any:
        rest, factor, wrong = carry
        pivot = jnp.real(rest[..., j, j])
        bad = ~(pivot > 0)
        stopped = jnp.any(wrong, -1) | bad
        root = jnp.sqrt(jnp.where(bad, 1, pivot)).astype(x.dtype)
        below = jnp.where(rows >= j, rest[..., :, j] / root[..., None], 0)
        taken = below[..., :, None] * jnp.conj(below)[..., None, :]
        rest = jnp.where(stopped[..., None, None], rest, rest - taken)
        column = jnp.where(stopped[..., None], factor[..., :, j], below)
        return rest, factor.at[..., :, j].set(column), wrong.at[..., j].set(bad)

    start = (x, jnp.tril(x), jnp.zeros(x.shape[:-1], bool))
    _, factor, wrong = lax.fori_loop(0, n, column, start)
    return factor, wrong


def _hermitian(x: jax.Array, upper: bool = False) -> jax.Array:
    """The Hermitian matrix whose lower (or upper) triangle ``x`` has; its gradient is spread over both, as torch's."""
    part = jnp.triu(x) if upper else jnp.tril(x)
    value = part + _turned(jnp.triu(x, 1) if upper else jnp.tril(x, -1))
    spread = (x + _turned(x)) / 2
    return lax.stop_gradient(value) + (spread - lax.stop_gradient(spread))


def _singular(call: Any, result: jax.Array) -> None:
    """torch raises on a singular matrix; LAPACK's result is then not finite."""
    call.fault(
        ~jnp.isfinite(jnp.sum(jnp.abs(result))), "RuntimeError: the matrix is singular (or not finite)"
    )


@lowers("aten.linalg_inv.default", "aten.inverse.default")
def _inv(call: Any, x: jax.Array) -> jax.Array:
    result = jnp.linalg.inv(x)
    _singular(call, result)
    return result


@lowers("aten.linalg_inv_ex.default")
def _inv_ex(call: Any, x: jax.Array, *, check_errors: bool = False) -> tuple[jax.Array, jax.Array]:
    return jnp.linalg.inv(x), _zero_pivot(call, 1, x)


@lowers("aten.linalg_det.default", "aten.det.default")
def _det(call: Any, x: jax.Array) -> jax.Array:
    return jnp.linalg.det(x) if x.shape[-1] else jnp.ones(call.out.shape, x.dtype)


@lowers("aten._linalg_det.default")
def _det_parts(call: Any, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    lu, pivots, _ = lax.linalg.lu(x)
    return jnp.linalg.det(x), lu, cast(pivots + 1, out_dtype(call, 2))


@lowers("aten.linalg_slogdet.default", "aten.slogdet.default")
def _slogdet(call: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    sign, size = jnp.linalg.slogdet(x)
    return sign, size


@lowers("aten._linalg_slogdet.default")
def _slogdet_parts(call: Any, x: jax.Array) -> tuple[jax.Array, ...]:
    lu, pivots, _ = lax.linalg.lu(x)
    return *jnp.linalg.slogdet(x), lu, cast(pivots + 1, out_dtype(call, 3))


@lowers("aten.logdet.default")
def _logdet(call: Any, x: jax.Array) -> jax.Array:
    sign, size = jnp.linalg.slogdet(x)
    return jnp.log(sign) + size if is_complex(x.dtype) else jnp.where(sign < 0, jnp.nan, size)


@lowers("aten.linalg_cholesky.default", "aten.cholesky.default")
def _cholesky(call: Any, x: jax.Array, upper: bool = False) -> jax.Array:
    factor = jnp.linalg.cholesky(_hermitian(x, upper), symmetrize_input=True)
    _singular(call, factor)
    return _turned(factor) if upper else factor


@lowers("aten.linalg_cholesky_ex.default")
def _cholesky_ex(
    call: Any, x: jax.Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array]:
    if x.shape[-1] == 0:  # no pivot, and none that failed
        return x, jnp.zeros(call.out[1].shape, out_dtype(call, 1))
    x = _hermitian(x, upper)
    tried = jnp.linalg.cholesky(lax.stop_gradient(x), symmetrize_input=True)
    failed = jnp.any(~jnp.isfinite(tried), (-1, -2))

    def looked(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        factor, wrong = _pivots(x)
        return factor, _first(call, 1, wrong)

    def fine(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros_like(x), jnp.zeros(call.out[1].shape, out_dtype(call, 1))

    left, info = lax.cond(jnp.any(failed), looked, fine, lax.stop_gradient(x))
    # One that has no factor is left out of the derivative: NaN would reach those that have one through any mask.
    failed = failed[..., None, None]
    safe = jnp.where(failed, jnp.eye(x.shape[-1], dtype=x.dtype), x)
    factor = jnp.where(failed, left, jnp.linalg.cholesky(safe, symmetrize_input=True))
    return (_turned(factor) if upper else factor), info


@lowers("aten.cholesky_solve.default")
def _cholesky_solve(call: Any, b: jax.Array, factor: jax.Array, upper: bool = False) -> jax.Array:
    lower = _turned(jnp.triu(factor)) if upper else jnp.tril(factor)
    lower, b = _matched(lower, b)
    half = lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)
    return lax.linalg.triangular_solve(
        lower, half, left_side=True, lower=True, transpose_a=True, conjugate_a=True
    )


@lowers("aten.cholesky_inverse.default")
def _cholesky_inverse(call: Any, factor: jax.Array, upper: bool = False) -> jax.Array:
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return _cholesky_solve(call, eye, factor, upper)


def _matched(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both with the batch dimensions that they broadcast to."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, lead + a.shape[-2:]), jnp.broadcast_to(b, lead + b.shape[-2:])


def _solve(call: Any, a: jax.Array, b: jax.Array, left: bool) -> jax.Array:
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    b = b[..., None] if vector else b
    if not left:
        a, b = jnp.swapaxes(a, -1, -2), jnp.swapaxes(b, -1, -2)
    a, b = _matched(a, b)
    x = jnp.linalg.solve(a, b)
    x = x if left else jnp.swapaxes(x, -1, -2)
    return x[..., 0] if vector else x


@lowers("aten.linalg_solve.default")
def _solve_entry(call: Any, a: jax.Array, b: jax.Array, *, left: bool = True) -> jax.Array:
    x = _solve(call, a, b, left)
    _singular(call, x)
    return x


@lowers("aten.linalg_solve_ex.default")
def _solve_ex(
    call: Any, a: jax.Array, b: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array]:
    return _solve(call, a, b, left), _zero_pivot(call, 1, a)


@lowers("aten._linalg_solve_ex.default")
def _solve_parts(
    call: Any, a: jax.Array, b: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, ...]:
    lu, pivots, _ = lax.linalg.lu(a)
    info = _first(call, 3, jnp.diagonal(lax.stop_gradient(lu), axis1=-2, axis2=-1) == 0)
    return _solve(call, a, b, left), lu, cast(pivots + 1, out_dtype(call, 2)), info


@lowers("aten.linalg_solve_triangular.default")
def _solve_triangular(
    call: Any, a: jax.Array, b: jax.Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    a, b = _matched(a, b)
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@lowers("aten.triangular_solve.default")
def _triangular_solve(
    call: Any,
    b: jax.Array,
    a: jax.Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[jax.Array, jax.Array]:
    a, b = _matched(a, b)
    x = lax.linalg.triangular_solve(
        a, b, left_side=True, lower=not upper, transpose_a=transpose, unit_diagonal=unitriangular
    )
    return x, a


@lowers("aten.linalg_qr.default")
def _qr(call: Any, x: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    if mode == "r":
        return jnp.zeros(call.out[0].shape, x.dtype), jnp.linalg.qr(x, mode="r")
    q, r = jnp.linalg.qr(x, mode=mode)
    return q, r


@lowers("aten._linalg_svd.default", "aten.linalg_svd.default")
def _svd(
    call: Any, x: jax.Array, full_matrices: bool = True, compute_uv: bool = True, *, driver: Any = None
) -> tuple[jax.Array, ...]:
    if not compute_uv:
        s = jnp.linalg.svd(x, compute_uv=False)
        return jnp.zeros(call.out[0].shape, x.dtype), s, jnp.zeros(call.out[2].shape, x.dtype)
    u, s, v = jnp.linalg.svd(x, full_matrices=full_matrices)
    return u, s, v


@lowers("aten.linalg_svdvals.default")
def _svdvals(call: Any, x: jax.Array, *, driver: Any = None) -> jax.Array:
    return jnp.linalg.svd(x, compute_uv=False)


@lowers("aten._linalg_eigh.default", "aten.linalg_eigh.default")
def _eigh(call: Any, x: jax.Array, UPLO: str = "L", compute_v: bool = True) -> tuple[jax.Array, jax.Array]:  # noqa: N803
    values, vectors = jnp.linalg.eigh(_hermitian(x, UPLO == "U"), symmetrize_input=True)
    return values, (vectors if compute_v else jnp.zeros(call.out[1].shape, x.dtype))


@lowers("aten.linalg_eigvalsh.default")
def _eigvalsh(call: Any, x: jax.Array, UPLO: str = "L") -> jax.Array:  # noqa: N803
    return jnp.linalg.eigh(_hermitian(x, UPLO == "U"), symmetrize_input=True)[0]


@lowers(
    "aten.linalg_pinv.default",
    "aten.linalg_pinv.atol_rtol_float",
    "aten.linalg_pinv.atol_rtol_tensor",
    "aten.pinverse.default",
)
def _pinv(
    call: Any,
    x: jax.Array,
    rcond: float | None = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> jax.Array:
    if atol is not None:
        raise refuse("op", f"{call.node.op} with an absolute tolerance", call.node.where, "use rtol alone")
    if x.size == 0:
        return jnp.zeros(call.out.shape, x.dtype)
    rtol = rcond if rtol is None else rtol
    if rtol is None:
        # torch's default; jax's is ten times as large.
        rtol = (
            1e-15
            if call.node.op == "aten.pinverse.default"
            else max(x.shape[-2:]) * float(jnp.finfo(x.dtype).eps)
        )
    if hermitian:
        # The general form, whose derivative JAX has; torch's gradient is not spread over the triangles here.
        x = lax.stop_gradient(_hermitian(x)) + (x - lax.stop_gradient(x))
    return jnp.linalg.pinv(x, rtol=rtol)


@lowers("aten.linalg_matrix_exp.default", "aten.matrix_exp.default")
def _matrix_exp(call: Any, x: jax.Array) -> jax.Array:
    if x.size == 0:
        return x
    wider = cast(x, wide(x.dtype)).reshape(-1, *x.shape[-2:])
    return cast(jax.vmap(scipy_linalg.expm)(wider).reshape(x.shape), x.dtype)


@lowers("aten.linalg_lu_factor.default")
def _lu_factor(call: Any, x: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, jax.Array]:
    lu, pivots, _ = lax.linalg.lu(x)
    return lu, cast(pivots + 1, out_dtype(call, 1))


@lowers("aten.linalg_matrix_norm.default", "aten.linalg_matrix_norm.str_ord")
def _matrix_norm(
    call: Any,
    x: jax.Array,
    ord: Any = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    dtype: Any = None,
) -> jax.Array:
    kind = out_dtype(call)
    x = cast(x, wide(x.dtype) if dtype is None or is_complex(x.dtype) else wide(kind))
    x = jnp.moveaxis(x, tuple(dim), (-2, -1))
    if ord == "fro":
        y = vector_norm(x, 2.0, (x.ndim - 2, x.ndim - 1), False)
    elif ord == "nuc":
        y = jnp.linalg.norm(x, ord, (-2, -1))
    else:
        # singular values (2), sums of columns (1) or of rows (inf): the largest, or the smallest where the order is
        # negative. Not jnp.linalg.norm: its maximum has 0 as one candidate more, which takes half the gradient at zero.
        if abs(ord) == 2:
            found = jnp.linalg.svd(x, compute_uv=False)
        else:
            found = jnp.sum(absolute(x), -2 if abs(ord) == 1 else -1)
        y = jnp.max(found, -1, initial=None if found.shape[-1] else 0) if ord > 0 else jnp.min(found, -1)
    if keepdim:
        for d in sorted(d % x.ndim for d in dim):
            y = jnp.expand_dims(y, d)
    return cast(y, kind)


@lowers("aten.linalg_norm.default", "aten.linalg_norm.ord_str")
def _norm(
    call: Any, x: jax.Array, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> jax.Array:
    over = axes(x, dim)
    if ord is None or len(over) == 1:
        return linalg_vector_norm(call, x, 2.0 if ord is None else ord, dim, keepdim, dtype)
    return _matrix_norm(call, x, ord, over, keepdim, dtype)
