"""``detente export``: a session as a file."""

from __future__ import annotations

from pathlib import Path

import click

from detente.cli.sessions import find_session
from detente.cli.text import say
from detente.records.fault import UsageFault
from detente.records.folders import data_folder
from detente.records.session import Session


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
@click.option(
    "--artefacts", is_flag=True, help="Also the programs that were captured, with the session in one .zip."
)
def command(session: str, output: Path | None, form: str, artefacts: bool) -> int:
    """Write SESSION, raw samples and all, so that another machine can judge it.

    \b
    Examples:
      detente export
      detente export 20261121-1537 --output session.jsonl
      detente export --as pyperf
    """
    from detente.store.files import export_session

    if artefacts and form != "detente":
        raise UsageFault(f"--artefacts goes with our own format, not with {form}", "leave --as out")
    found = find_session(session)
    if artefacts:
        return _with_artefacts(found, output)
    path = output or Path(f"{found.id}.jsonl" if form == "detente" else f"{found.id}.{form}.json")
    export_session(found, path, form)
    say(str(path))
    say(f"{_processes(found)} of session {found.id}", error=True)
    return 0


def _with_artefacts(session: Session, output: Path | None) -> int:
    from detente.store.artefacts import artefacts_of
    from detente.store.bundle import write_bundle

    path = output or Path(f"{session.id}.zip")
    written = write_bundle(session, artefacts_of(data_folder()), path)
    say(str(path))
    told = f"{_processes(session)} of session {session.id}, {written.programs} programs"
    say(
        f"{told} of {written.bytes / 2**20:.1f} MiB ({path.stat().st_size / 2**20:.1f} MiB packed)",
        error=True,
    )
    if written.absent:
        say(f"{written.absent} programs that it names are no longer here", error=True)
    return 0


def _processes(session: Session) -> str:
    count = len(session.processes)
    return f"{count} process{'es' if count != 1 else ''}"
