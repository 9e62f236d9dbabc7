"""A result on the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any


def wants_colour() -> bool:
    """Colour only for a person at a terminal who did not decline it (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_text(result: Any, full: bool) -> None:
    """The page as text, as wide as the terminal is."""
    from detente.report.terminal import render_text

    width = min(140, shutil.get_terminal_size((100, 24)).columns)
    print(render_text(result, width=width, full=full, colour=wants_colour()))
