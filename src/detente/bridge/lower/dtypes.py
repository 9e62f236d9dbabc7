"""ATen's dtype rules in JAX: names, promotion, and the wider dtype that arithmetic runs in.

JAX promotes by its own lattice (a Python scalar is *weak*), so an entry never relies on it: it casts its operands
here and rounds once at the end, as ATen's kernels do (``opmath`` in ATen's sources).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_PYTHON = {bool: "bool", int: "int64", float: "float32", complex: "complex64"}
_REDUCED = {"bfloat16", "float16"}


def jax_dtype(name: str) -> np.dtype:
    """The JAX dtype of a torch dtype name, after JAX's own ``x64`` setting: ``int64`` is ``int32`` without it.

    Raises TypeError for a dtype that XLA does not have (``complex32``, quantised).
    """
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(name))
    except TypeError as error:
        raise TypeError(f"XLA has no dtype for torch.{name}; cast the tensor before this call") from error


def out_dtype(call: Any, index: int | None = None) -> np.dtype:
    """The dtype that ATen gives the result of ``call`` (output ``index`` of several)."""
    out = call.out if index is None else call.out[index]
    return jax_dtype(out.dtype)


def wide(dtype: Any) -> np.dtype:
    """The dtype that ATen computes in for ``dtype``: float32 for float16 and bfloat16, else ``dtype`` itself."""
    dtype = jnp.dtype(dtype)
    return jnp.dtype(jnp.float32) if dtype.name in _REDUCED else dtype


def compute(operand: Any, dtype: Any) -> np.dtype:
    """The dtype that an operand of a result of ``dtype`` is computed in. A complex operand of a real result (a size, a
    distance) stays complex: in the result's dtype it would lose its imaginary part."""
    kind = getattr(operand, "dtype", None)
    return jnp.dtype(kind) if kind is not None and is_complex(kind) and not is_complex(dtype) else wide(dtype)


class NotForComplex(TypeError):
    """The entry was not written for complex numbers: it would lose the imaginary part, or take another branch."""


def spread(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """``x`` broadcast to ``shape``. The gradient of what is broadcast is a sum, and ATen sums 16-bit floats in float32
    and rounds once; JAX's transpose sums in the dtype that was broadcast."""
    return jnp.broadcast_to(x.astype(wide(x.dtype)), tuple(shape)).astype(x.dtype)


def is_float(dtype: Any) -> bool:
    """True for real floating dtypes, the 16-bit ones included."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def torchs_gradient(gradient: Any) -> Any:
    """JAX's gradient as torch means it, and back: of a complex value one is the conjugate of the other."""
    return jnp.conj(gradient) if is_complex(gradient.dtype) else gradient


def is_complex(dtype: Any) -> bool:
    """True for complex dtypes."""
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def is_bool(dtype: Any) -> bool:
    """True for bool alone."""
    return jnp.dtype(dtype).name == "bool"


def is_integer(dtype: Any) -> bool:
    """True for signed and unsigned integers, False for bool."""
    return bool(jnp.issubdtype(dtype, jnp.integer))


def cast(value: Any, dtype: Any, *, real_part: bool = False) -> jax.Array:
    """``value`` (array or Python number) in ``dtype``. Float to integer follows ATen on CPU: towards zero, modulo the
    width, and for NaN and what the integer does not hold what this processor's own conversion gives. Complex to real
    is meant only where the user asks for it (``real_part``); else it raises NotForComplex."""
    dtype = jnp.dtype(dtype)
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        if isinstance(value, int) and is_integer(dtype):
            # -1 among bytes is 255.
            bits = 8 * dtype.itemsize
            value = np.array(value & (2**bits - 1), f"uint{bits}").astype(dtype)
        return jnp.asarray(value, dtype)
    if value.dtype == dtype:
        return jnp.asarray(value)
    if is_complex(value.dtype) and not is_complex(dtype) and not is_bool(dtype):
        if not real_part:
            raise NotForComplex(f"{value.dtype.name} would be cast to {dtype.name}")
        value = jnp.real(value)
    if is_integer(dtype) and dtype.itemsize < 4 and is_float(value.dtype):
        # XLA saturates; C++ goes through a wider integer and keeps the low bits, and so does ATen.
        return _whole(value, jnp.dtype(jnp.int32)).astype(dtype)
    if is_integer(dtype) and is_float(value.dtype):
        return _whole(value, dtype)
    return jnp.asarray(value).astype(dtype)


def _whole(value: Any, dtype: np.dtype) -> jax.Array:
    """A float as an integer of 32 or 64 bits. C leaves NaN and what is beyond open, and ATen takes what the processor
    gives: on x86 the smallest integer, at which a look-up raises; XLA would give 0 for NaN, and the nearest end."""
    value, (low, high) = jnp.asarray(value), _ends(dtype)
    # The ends are powers of two, so that every float dtype that holds them holds them exactly; float16 holds neither.
    wider = value if value.dtype.itemsize > 2 else value.astype(jnp.float32)
    whole = value.astype(dtype)
    for beyond, odd in zip((jnp.isnan(wider), wider < low, wider >= high), _odd(dtype), strict=True):
        whole = jnp.where(beyond, jnp.asarray(odd, dtype), whole)
    return whole


def _ends(dtype: np.dtype) -> tuple[float, float]:
    bits = 8 * dtype.itemsize
    return (0.0, 2.0**bits) if dtype.kind == "u" else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))


@cache
def _odd(dtype: np.dtype) -> tuple[int, int, int]:
    """What this processor makes of NaN, of too little and of too much."""
    with np.errstate(invalid="ignore"):
        return tuple(int(x) for x in np.array([np.nan, -1e30, 1e30], np.float32).astype(dtype))  # type: ignore[return-value]


def _combine(higher: np.dtype | None, lower: np.dtype | None) -> np.dtype | None:
    """ATen's ``combine_categories``: ``higher`` decides unless ``lower`` is of a higher category."""
    if higher is None or lower is None:
        return higher if lower is None else lower
    if is_complex(higher):
        return higher
    if is_float(higher):
        return jnp.promote_types(higher, jnp.complex64) if is_complex(lower) else higher
    if is_bool(higher) or is_float(lower) or is_complex(lower):
        return jnp.promote_types(higher, lower)
    return higher


def promote(*operands: Any) -> np.dtype:
    """``torch.result_type`` of arrays and Python numbers: tensors with dimensions before 0-d tensors before
    Python numbers; a later one counts only when its category (bool, int, float, complex) is higher."""
    ranks: list[np.dtype | None] = [None, None, None]
    for operand in operands:
        if operand is None:
            continue
        if isinstance(operand, bool | int | float | complex):
            rank, dtype = 2, jax_dtype(_PYTHON[type(operand)])
        else:
            rank, dtype = (0 if jnp.ndim(operand) else 1), jnp.dtype(operand.dtype)
        known = ranks[rank]
        ranks[rank] = dtype if known is None else jnp.promote_types(known, dtype)
    result = _combine(ranks[0], _combine(ranks[1], ranks[2]))
    if result is None:
        raise TypeError("promote() needs at least one operand")
    return result


def float_type(operand: Any) -> np.dtype:
    """The dtype of a function that makes floats of integers: float32 (torch's default) for integers and bools."""
    dtype = promote(operand)
    return dtype if is_float(dtype) or is_complex(dtype) else jnp.dtype(jnp.float32)


def lowest(dtype: Any) -> Any:
    """The identity of max in ``dtype``: minus infinity, the smallest integer, or False."""
    dtype = jnp.dtype(dtype)
    if is_bool(dtype):
        return False
    return -np.inf if is_float(dtype) else int(jnp.iinfo(dtype).min)


def highest(dtype: Any) -> Any:
    """The identity of min in ``dtype``."""
    dtype = jnp.dtype(dtype)
    if is_bool(dtype):
        return True
    return np.inf if is_float(dtype) else int(jnp.iinfo(dtype).max)
