"""Whether this process names what it traces after the model's modules. One that captures asks once, before anything is
traced; one that is timed never does: naming makes tracing slower, and a trace that was made without names is what
JAX's caches give back."""

from __future__ import annotations

_ASKED = [False]


def ask_for_names() -> None:
    """From now on what this process traces is named."""
    _ASKED[0] = True


def names_are_asked() -> bool:
    """Whether this process captures."""
    return _ASKED[0]
