"""Text for where it goes: colours in a terminal that wants them, plain characters everywhere else."""

from __future__ import annotations

import io
import itertools
import os
import shutil
from collections.abc import Mapping
from typing import TextIO

from detente.records.result import Result
from detente.report.compose import compose
from detente.report.page import Page
from detente.report.text import Line, Screen, lay_out, to_plain

_STYLES = {"strong": "bold", "code": "cyan", "quiet": "dim", "good": "green", "warn": "yellow", "bad": "red"}


def render_text(result: Result, *, width: int = 100, full: bool = False, colour: bool = False) -> str:
    """A judged session as text. ``full`` also tells proof, start, floor, memory, versions and settings.

    With ``colour`` and rich installed the same characters carry ANSI styles; without rich they stay plain.
    """
    return render_page(compose(result), width=width, full=full, colour=colour)


def render_page(page: Page, *, width: int = 100, full: bool = False, colour: bool = False) -> str:
    """Any page as text; see ``render_text``."""
    lines = lay_out(page, Screen(width, full))
    return _coloured(lines, width) if colour else to_plain(lines)


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether colours help there: a terminal, no NO_COLOR (any value but the empty one), not a dumb one."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    """Columns to write in: the terminal's, between 60 and 140; 100 where there is no terminal, so that a
    file does not depend on the window that happened to be open."""
    return min(140, max(60, shutil.get_terminal_size().columns)) if stream.isatty() else 100


def _coloured(lines: list[Line], width: int) -> str:
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return to_plain(lines)
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=True,
        color_system="standard",
        width=width + 400,
        highlight=False,
        no_color=False,
    )
    for line in lines:
        # One escape sequence per run of words, not per word.
        runs = itertools.groupby(line, key=lambda s: _STYLES.get(s.style, ""))
        text = Text.assemble(*(("".join(s.text for s in run), style) for style, run in runs))
        text.rstrip()
        console.print(text, soft_wrap=True)
    return out.getvalue()
