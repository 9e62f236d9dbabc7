"""The pages' templates, and their one way to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detente.records.fault import MachineFault
from detente.store.spool import disk_fault


def template_environment() -> Any:
    """A Jinja environment over the pages' templates. Raises MachineFault without Jinja2."""
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
    )


def write_page(text: str, path: Path) -> None:
    """Write a page. Raises StoreFault where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise disk_fault("write", path, error) from error
