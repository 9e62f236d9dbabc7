"""The bridge: an unmodified torch module, its loss and its optimizer as one XLA program.

``compile``, ``check``, ``extend`` and ``functional`` are resolved when first used: importing this imports no
framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detente.still import import_still

# What an editor and a type checker see; at run time the table below imports them one by one.
if TYPE_CHECKING:
    from detente.bridge.doors.entry import check as check
    from detente.bridge.doors.entry import compile as compile
    from detente.bridge.doors.extension import extend as extend
    from detente.bridge.doors.pure import functional as functional
    from detente.bridge.refusal import Reason as Reason
    from detente.bridge.refusal import Refused as Refused

_PUBLIC = {
    "compile": "detente.bridge.doors.entry",
    "check": "detente.bridge.doors.entry",
    "extend": "detente.bridge.doors.extension",
    "functional": "detente.bridge.doors.pure",
    "Refused": "detente.bridge.refusal",
    "Reason": "detente.bridge.refusal",
}


__all__ = ["Reason", "Refused", "check", "compile", "extend", "functional"]


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(import_still(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_PUBLIC)}")
