"""``detente report``: a stored session as a page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from detente.cli.compare import tell
from detente.cli.options import format_option
from detente.cli.sessions import find_session


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("session", default="latest")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one offline HTML file here."
)
@click.option("--open", "open_", is_flag=True, help="Open the HTML file in a browser.")
@click.option("--full", is_flag=True, help="Also print proof, start, floor, memory and versions.")
@format_option("text", "json", "md")
def command(session: str, html: Path | None, open_: bool, full: bool, form: str) -> int:
    """Tell SESSION (an id, its beginning, an exported file; the latest by default) again. Runs nothing.

    \b
    Examples:
      detente report
      detente report 20261121-1537 --html report.html --open
      detente report session.jsonl --format md
    """
    found = find_session(session)
    tell(found, None, form, full, html)
    if open_ and html is not None:
        webbrowser.open(html.resolve().as_uri())
    return 0
