"""``detente sessions``: what is stored, and how to be rid of it."""

from __future__ import annotations

import importlib.util
import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import click

from detente.cli.options import format_option
from detente.cli.sessions import find_session
from detente.cli.text import say
from detente.records.codec import to_json
from detente.records.fault import StoreFault
from detente.records.folders import data_folder, state_folder
from detente.records.session import Session
from detente.store.spool import parse_spool

IMPORTED = "imported, not measured here"


@click.group(
    "sessions",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: detente sessions remove 20261122-101500-ab12",
)
@click.pass_context
def command(context: click.Context) -> int:
    """List, show and remove the stored sessions, those measured here and those imported."""
    return context.invoke(list_) if context.invoked_subcommand is None else 0


@dataclass(frozen=True)
class Entry:
    """One session in the list. ``fault`` says why it cannot be read; the rest is then empty."""

    id: str
    started: float | None = None
    state: str = ""
    processes: int = 0
    workloads: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    imported: float | None = None
    note: str = ""
    fault: str = ""


@command.command("list", epilog="Example: detente sessions list --format json")
@format_option("text", "json")
def list_(form: str = "text") -> int:
    """List every stored session, the newest first: id, when, state, what, and whether it was measured here."""
    found = entries(data_folder())
    if form == "json":
        print(json.dumps({"schema": "detente/sessions/1", "sessions": [to_json(e) for e in found]}))
        return 0
    for e in found:
        if e.fault:
            say(f"{e.id:22} cannot be read: {e.fault}")
            continue
        assert e.started is not None
        what = f"{', '.join(e.workloads)}: {', '.join(e.labels)}"
        origin = f"  ({IMPORTED})" if e.imported is not None else ""
        say(f"{e.id:22} {when(e.started)}  {e.state:11} {e.processes:4} processes  {what}{origin}")
    if not found:
        say(f"no session is stored in {data_folder()}; `detente compare gpt2` makes one", error=True)
    return 0


@command.command("show", epilog="Example: detente sessions show latest")
@click.argument("session", default="latest")
@format_option("text", "json")
def show(session: str, form: str) -> int:
    """Tell what is stored of SESSION (an id, its beginning, or a file), judging nothing."""
    found = find_session(session)
    counted = Counter((p.kind, p.evidence.status) for p in found.processes)
    broken = [p for p in found.processes if p.evidence.status not in ("ok", "skipped")]
    if form == "json":
        data = {
            "session": to_json(_entry(found)),
            "command": list(found.command),
            "processes": [{"kind": k, "status": s, "number": n} for (k, s), n in counted.items()],
            "broken": [
                {"cell": p.cell.key, "kind": p.kind, "block": p.block, "reason": p.evidence.reason}
                for p in broken
            ],
        }
        print(json.dumps({"schema": "detente/stored/1", **data}))
        return 0
    entry = _entry(found)
    say(f"session    {found.id}")
    say(f"origin     {'measured here' if found.imported is None else IMPORTED}")
    if found.imported is not None:
        say(f"imported   {when(found.imported)}")
    say(f"started    {when(found.started)}")
    say(f"state      {entry.state}{f' ({found.note})' if found.note not in ('', entry.state) else ''}")
    say(f"command    {' '.join(found.command)!r}")
    for cell in found.planned:
        why = found.skipped.get(cell.key)
        say(f"planned    {cell.key}{f': skipped: {why}' if why else ''}")
    for (kind, status), number in sorted(counted.items()):
        say(f"processes  {number} of kind {kind} ended {status}")
    for p in broken:
        again = "; it ran again" if found.ran_again(p) else ""
        block = f", block {p.block + 1}" if p.block >= 0 else ""
        say(f"ended ill  {p.cell.label}, {p.kind}{block}: {p.evidence.reason}{again}")
    return 0


@command.command("remove", epilog="Example: detente sessions remove 20261122-101500-ab12")
@click.argument("id")
def remove(id: str) -> int:
    """Delete the session ID from the store: its rows, its spool, and the artefacts that no other session names.

    The whole id must be given: nothing that is nearly it is deleted.
    """
    from detente.store.removal import remove_session

    gone = remove_session(id, data_folder(), state_folder())
    parts = [
        *(["its rows in the database"] if gone.rows else []),
        *(["its spool"] if gone.spool else []),
        *([f"{gone.artefacts} artefacts"] if gone.artefacts else []),
    ]
    say(f"removed {id}: {', '.join(parts)}")
    if gone.note:
        say(f"note: {gone.note}", error=True)
    return 0


def entries(data: Path) -> tuple[Entry, ...]:
    """Every session of the store, the newest first, and those that cannot be read at the end, each once."""
    faults: dict[str, str] = {}
    found: dict[str, Entry] = {}
    if importlib.util.find_spec("sqlalchemy") is not None:
        from detente.store.files import catch_up
        from detente.store.sessions import open_store

        with open_store(data) as store:
            catch_up(store, data / "sessions", faults.__setitem__)
            for s in store.list_sessions(limit=1_000_000, bad=faults.__setitem__):
                state = _state(s.ended, s.note)
                found[s.id] = Entry(
                    s.id, s.started, state, s.processes, s.workloads, s.labels, s.imported, s.note
                )
    else:
        for path in (data / "sessions").glob("*.jsonl"):
            try:
                found[path.stem] = _entry(parse_spool(path).session)
            except StoreFault as fault:
                faults[path.stem] = fault.message
    ordered = sorted(found.values(), key=lambda e: (e.started or 0.0, e.id), reverse=True)
    # A damaged spool whose session the database has is told from there.
    bad = tuple(Entry(id, fault=why) for id, why in sorted(faults.items()) if id not in found)
    return (*ordered, *bad)


def _entry(s: Session) -> Entry:
    return Entry(
        s.id,
        s.started,
        _state(s.ended, s.note),
        len(s.processes),
        tuple(dict.fromkeys(c.workload for c in s.planned)),
        tuple(dict.fromkeys(c.label for c in s.planned)),
        s.imported,
        s.note,
    )


def _state(ended: float | None, note: str) -> str:
    if note == "interrupted":
        return note
    return "unfinished" if ended is None else "whole"


def when(seconds: float) -> str:
    """Local date and minute; the limits let in only what is a date."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
