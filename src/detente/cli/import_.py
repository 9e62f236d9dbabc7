"""``detente import``: take a session from another machine."""

from __future__ import annotations

from pathlib import Path

import click

from detente.records.folders import data_folder


@click.command("import", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> int:
    """Put the session in FILE (a spool, or what `detente export` wrote) into the store, and say how to read it."""
    from detente.store.files import import_file
    from detente.store.sessions import open_store

    session = import_file(file)
    store = open_store(data_folder())
    store.write_session(session)
    store.close()
    print(session.id)
    click.echo(f"{len(session.processes)} processes; `detente report {session.id}` tells them", err=True)
    return 0
