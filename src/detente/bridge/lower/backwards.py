"""Whether what is traced now is differentiated backwards and no other way: a training step is, while a user of
``detente.functional`` may ask for ``jax.jvp`` or ``jax.hessian``. A lowering may then bring a derivative of its own
(``jax.custom_vjp``), which has no forward mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ONLY: ContextVar[bool] = ContextVar("only_backwards", default=False)


def only_backwards() -> bool:
    """Whether no forward derivative will be taken."""
    return _ONLY.get()


@contextmanager
def backwards() -> Iterator[None]:
    """What is traced inside is a training step's."""
    before = _ONLY.set(True)
    try:
        yield
    finally:
        _ONLY.reset(before)
