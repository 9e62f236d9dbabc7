"""A result on the terminal."""

from __future__ import annotations

import sys
from typing import Any


def print_text(result: Any, full: bool) -> None:
    """The page as text, as wide as the terminal is, coloured for a person at a terminal who did not decline it."""
    from detente.report.terminal import render_text, wants_colour, width_of

    told = render_text(result, width=width_of(sys.stdout), full=full, colour=wants_colour(sys.stdout))
    print(told, end="")
