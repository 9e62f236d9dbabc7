"""Output where the terminal does not know every character: the nearest plain one instead of an error."""

from __future__ import annotations

import codecs
from typing import TextIO

_LIKE = {
    "é": "e",
    "·": "-",
    "–": "-",
    "…": "...",
    "µ": "u",
    "×": "x",
    "±": "+-",
    "≤": "<=",
    "✓": "+",
    "✗": "x",
    "░": ".",
    "│": "|",
    "━": "=",
    "─": "-",
    "●": "o",
    "\u00a0": " ",
}


def forgive(stream: TextIO) -> None:
    """Let ``stream`` write any text. A stream that is no file (tests, notebooks) is left alone."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        codecs.register_error("detente", _nearest)
        reconfigure(errors="detente")


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_LIKE.get(c, "?") for c in error.object[error.start : error.end]), error.end
