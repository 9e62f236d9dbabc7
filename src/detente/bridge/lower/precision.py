"""The adapter around jax's switches of numeric precision (their spelling moved between jax 0.7 and 0.10)."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager

import jax


def x64() -> AbstractContextManager[object]:
    """64-bit integers and floats, as torch has them, for what is traced inside."""
    if callable(getattr(jax, "enable_x64", None)):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64(True)


def in_tf32(matmul: str) -> bool:
    """Whether products of float32 are multiplied in TF32 here: asked for, and on a GPU. A CPU has none, and a TPU makes
    something else of the same word, in more bits."""
    return matmul == "tensorfloat32" and jax.default_backend() == "gpu"


@contextmanager
def torch_numerics(matmul: str = "highest"):
    """The numeric settings of torch for everything traced inside: x64 kinds, and fp32 products in fp32.

    ``matmul``: ``highest`` (torch's default for float32), ``tensorfloat32`` (torch's ``high``), or another
    value of ``jax.default_matmul_precision``. It has no effect on bfloat16 operands.
    """
    with ExitStack() as stack:
        stack.enter_context(x64())
        stack.enter_context(jax.default_matmul_precision(matmul))
        yield


def known_matmul(name: str, value: str) -> str:
    """A precision that ``torch_numerics`` takes. Raises ValueError for another."""
    try:
        with jax.default_matmul_precision(value):
            return value
    except (TypeError, ValueError) as error:
        what = (
            f"{name} is {value!r}; it is 'highest', 'tensorfloat32', or another precision of JAX's ({error})"
        )
        raise ValueError(what) from None
