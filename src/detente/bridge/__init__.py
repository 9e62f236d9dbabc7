"""The bridge: an unmodified torch module, its loss and its optimizer as one XLA program.

``compile``, ``check``, ``extend`` and ``functional`` are resolved when first used: importing this imports no
framework.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "compile": "detente.bridge.doors.entry",
    "check": "detente.bridge.doors.entry",
    "extend": "detente.bridge.doors.extension",
    "functional": "detente.bridge.doors.pure",
    "Refused": "detente.bridge.refusal",
    "Reason": "detente.bridge.refusal",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
