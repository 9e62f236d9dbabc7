"""Détente: one referee for the training stacks, and a bridge between them.

Importing this package imports no framework; the public names are resolved when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detente.still import import_still

__version__ = "0.1.0"

# What an editor and a type checker see; at run time the table below imports them one by one.
if TYPE_CHECKING:
    from detente.bridge.doors.entry import compile as compile
    from detente.bridge.doors.extension import extend as extend
    from detente.bridge.doors.pure import functional as functional
    from detente.session.compare import compare as compare

# Public name -> (module, attribute).
_PUBLIC: dict[str, tuple[str, str]] = {
    "compare": ("detente.session.compare", "compare"),
    "compile": ("detente.bridge.doors.entry", "compile"),
    "functional": ("detente.bridge.doors.pure", "functional"),
    "extend": ("detente.bridge.doors.extension", "extend"),
}

__all__ = ["__version__", "compare", "compile", "extend", "functional"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'detente' has no attribute {name!r}; it has {', '.join(_PUBLIC)}")
    module, attribute = _PUBLIC[name]
    return getattr(import_still(module), attribute)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
