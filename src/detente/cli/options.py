"""Options and parsing that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


class Duration(click.ParamType):
    """``90``, ``90s``, ``8m``, ``1.5h`` as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip())
        if not found:
            self.fail(f"{value!r} is no duration; write 90s, 8m or 1.5h", param, ctx)
        return float(found.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[found.group(2)]


class Bytes(click.ParamType):
    """``800M``, ``2G`` as bytes."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)i?B?", str(value).strip())
        if not found:
            self.fail(f"{value!r} is no size; write 800M or 2G", param, ctx)
        return int(float(found.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found.group(2)])


class Names(click.ParamType):
    """``torch-eager,jax`` as a tuple."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        found = tuple(s.strip() for s in str(value).split(",") if s.strip())
        if not found:
            # Of a script whose variable is empty: to leave the option out means all, and is not what was meant.
            self.fail(f"{value!r} holds no name; leave the option out for its default", param, ctx)
        return found


class PageFile(click.Path):
    """A file that a measurement of many minutes ends with: that it cannot be written is said before."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail(f"{value!r} names no file; write report.html, or leave the option out", param, ctx)
        path: Any = super().convert(value, param, ctx)
        folder = path.parent
        if not folder.is_dir():
            self.fail(f"{path} cannot be written: there is no folder {folder}; make it first", param, ctx)
        if not os.access(path if path.exists() else folder, os.W_OK):
            self.fail(f"{path} cannot be written: name a folder in which you may write", param, ctx)
        return path


def precision_option() -> Callable[[Any], Any]:
    """``--precision``; which one a contract takes is said where it is not taken."""
    return click.option(
        "--precision",
        default="fp32",
        show_default=True,
        help="fp32, tf32, bf16, or bf16-true (weights too; not a training step).",
    )


def format_option(*forms: str) -> Callable[[Any], Any]:
    """``--format``; text is the default."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(forms or ("text", "json", "md")),
        default="text",
        show_default=True,
        help="Form of the result on standard output.",
    )
