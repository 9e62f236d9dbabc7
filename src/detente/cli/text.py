"""What goes to the terminal: a result as a page, and single lines that may hold a stranger's words."""

from __future__ import annotations

import sys
from typing import Any

# A line of a person's terminal; what is longer was not written for one.
LONGEST = 2_000


def print_text(result: Any, full: bool) -> None:
    """The page as text, as wide as the terminal is, coloured for a person at a terminal who did not decline it."""
    from detente.report.terminal import render_text, wants_colour, width_of

    told = render_text(result, width=width_of(sys.stdout), full=full, colour=wants_colour(sys.stdout))
    print(told, end="")


def say(line: str = "", *, error: bool = False) -> None:
    """One line on standard output or standard error, cleaned. Every command prints through here what may come from a
    file: a label, a reason, a path. What it holds of control characters, newlines and reversals of the writing
    direction would steer the reader's terminal."""
    from detente.report.text import clean

    shown = clean(line)
    if len(shown) > LONGEST:
        shown = f"{shown[:LONGEST]}... ({len(shown)} characters)"
    print(shown, file=sys.stderr if error else sys.stdout)
