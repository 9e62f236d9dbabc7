"""Whether what is traced now is differentiated backwards and no other way: a training step is, while a user of
``detente.functional`` may ask for ``jax.jvp`` or ``jax.hessian``. A lowering may then bring a derivative of its own
(``jax.custom_vjp``), which has no forward mode.

And whether it is so once: what stands in a loss that holds a gradient itself (a penalty) is differentiated again, the
derivative with it, and a kernel's own has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

_ONLY: ContextVar[bool] = ContextVar("only_backwards", default=False)
_AGAIN: ContextVar[bool] = ContextVar("backwards_again", default=False)


def only_backwards() -> bool:
    """Whether no forward derivative will be taken, but perhaps one of a derivative."""
    return _ONLY.get()


def backwards_once() -> bool:
    """Whether the only derivative that will be taken is one backwards, and none of that."""
    return _ONLY.get() and not _AGAIN.get()


@contextmanager
def _within(what: ContextVar[bool]) -> Iterator[None]:
    before = what.set(True)
    try:
        yield
    finally:
        what.reset(before)


def backwards() -> AbstractContextManager[None]:
    """What is traced inside is a training step's."""
    return _within(_ONLY)


def again() -> AbstractContextManager[None]:
    """What is traced inside is differentiated there already."""
    return _within(_AGAIN)
