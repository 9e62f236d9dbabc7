"""The pages' templates, and their one way to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detente.records.fault import MachineFault
from detente.report.text import clean
from detente.store.spool import disk_fault


def template_environment() -> Any:
    """A Jinja environment over the pages' templates. Whatever text goes into one is escaped, and cleaned line by line:
    a reason or a label may be a stranger's. Raises MachineFault without Jinja2."""
    try:
        import jinja2
    except ImportError:
        raise MachineFault(
            "an HTML page needs jinja2, which is not installed",
            "pip install 'detente[judge]'; `--format md` needs nothing",
        ) from None
    return jinja2.Environment(
        loader=jinja2.PackageLoader("detente.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_cleaned,
    )


def _cleaned(value: Any) -> Any:
    # What is marked as safe is a string of a kind of its own: our own style, script and drawings.
    return "\n".join(map(clean, value.split("\n"))) if type(value) is str else value


def write_page(text: str, path: Path) -> None:
    """Write a page. Raises StoreFault where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise disk_fault("write", path, error) from error
