"""``detente export``: a session as a file."""

from __future__ import annotations

from pathlib import Path

import click

from detente.cli.sessions import find_session
from detente.cli.text import say


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("session", default="latest")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.  [default: ID.jsonl]",
)
@click.option(
    "--as", "form", default="detente", show_default=True, help="detente, google-benchmark or pyperf."
)
def command(session: str, output: Path | None, form: str) -> int:
    """Write SESSION, raw samples and all, so that another machine can judge it."""
    from detente.store.files import export_session

    found = find_session(session)
    path = output or Path(f"{found.id}.jsonl" if form == "detente" else f"{found.id}.{form}.json")
    export_session(found, path, form)
    say(str(path))
    say(f"{len(found.processes)} processes of session {found.id}", error=True)
    return 0
