"""``detente import``: take a session from another machine."""

from __future__ import annotations

import time
from pathlib import Path

import click

from detente.cli.judged import can_judge, judge_stored, judged
from detente.cli.options import Bytes
from detente.cli.text import say
from detente.records.folders import data_folder
from detente.store.artefacts import artefacts_of
from detente.store.bundle import open_bundle
from detente.store.imports import import_session
from detente.store.recorder import open_recorder
from detente.store.spool import LARGEST_FILE


@click.command(
    "import",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: detente import session.jsonl",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--max-size",
    type=Bytes(),
    default=LARGEST_FILE,
    help="Refuse a larger file.  [default: 64M]",
)
def command(file: Path, max_size: int) -> int:
    """Put the session in FILE (a spool, or what `detente export` wrote) into the store, and say how to read it.

    Ids, ranges, types and size are checked first, and the session is judged once: a file that fails in any of them is
    refused as a whole, with exit code 3. The session stays marked as imported, not measured here.
    """
    store = open_recorder()
    try:
        with open_bundle(file) as bundle:
            done = import_session(
                bundle.session_file,
                data_folder() / "sessions",
                time.time(),
                store,
                most=max_size,
                try_out=_try_out,
            )
            programs = bundle.keep(done.session, artefacts_of(data_folder()))
        if store is not None and done.session.imported is not None:
            # What was tried out is remembered: history shows no row that is void.
            judge_stored(store, [done.session.id], _told)
    finally:
        if store is not None:
            store.close()
    id = done.session.id
    say(id)
    if done.torn:
        say(f"note: {done.torn}; that line is left out", error=True)
    if programs:
        say(f"{programs} captured programs", error=True)
    if done.session.imported is None:
        say(f"nothing new: this session was measured here; `detente report {id}` tells it", error=True)
    else:
        say(
            f"{done.new} processes, imported, not measured here; `detente report {id}` tells them, "
            f"`detente sessions remove {id}` removes them",
            error=True,
        )
    return 0


def _told(id: str, why: str) -> None:
    say(f"note: {id} is stored and not judged: {why}", error=True)


def _try_out(session: object) -> None:
    if not can_judge():
        return
    from detente.records.session import Session

    assert isinstance(session, Session)
    judged(session, page=True)
