"""``detente import``: take a session from another machine."""

from __future__ import annotations

from pathlib import Path

import click

from detente.records.folders import data_folder


@click.command("import", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> int:
    """Put the session in FILE (a spool, or what `detente export` wrote) into the store, and say how to read it.

    \b
    Example:
      detente import session.jsonl
    """
    from detente.store.artefacts import artefacts_of
    from detente.store.bundle import open_bundle
    from detente.store.files import import_file
    from detente.store.sessions import open_store

    with open_bundle(file) as bundle:
        session = import_file(bundle.session_file)
        store = open_store(data_folder())
        store.write_session(session)
        store.close()
        programs = bundle.keep(session, artefacts_of(data_folder()))
    print(session.id)
    if programs:
        click.echo(f"{programs} captured programs", err=True)
    click.echo(f"{len(session.processes)} processes; `detente report {session.id}` tells them", err=True)
    return 0
