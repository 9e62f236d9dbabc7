"""``detente audit``: judge a session again, running nothing."""

from __future__ import annotations

import click

from detente.cli.judged import judged
from detente.cli.options import format_option
from detente.cli.sessions import find_session
from detente.cli.stored import IMPORTED
from detente.cli.text import say
from detente.records.codec import to_json


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("session", default="latest")
@format_option("text", "json")
@click.option("--all", "everything", is_flag=True, help="Also list the rules that could not be checked.")
def command(session: str, form: str, everything: bool) -> int:
    """Judge SESSION (an id, its beginning, or an exported file) from its stored evidence.

    Nothing is run and no framework is imported. Exit code 1 when a row is void.
    """
    import json

    found = find_session(session)
    result = judged(found)
    void = [c for c in result.cells if c.status == "void"]
    if form == "json":
        print(
            json.dumps(
                {
                    "schema": "detente/audit/1",
                    "session": found.id,
                    "imported": found.imported,
                    "cells": [
                        {
                            "cell": f"{c.group}/{c.label}",
                            "status": c.status,
                            "reason": c.reason,
                            "findings": to_json(c.findings),
                        }
                        for c in result.cells
                    ],
                }
            )
        )
        return 1 if void else 0
    say(
        f"session {found.id}: {len(result.cells)} rows, {result.session.blocks} whole blocks, {result.session.state}"
    )
    if found.imported is not None:
        say(f"{IMPORTED}: what follows is what the file says")
    for cell in result.cells:
        told = [f for f in cell.findings if f.severity != "unchecked"]
        unchecked = [f for f in cell.findings if f.severity == "unchecked"]
        say()
        say(f"{cell.group}/{cell.label}: {cell.status}" + (f", {cell.reason}" if cell.reason else ""))
        if cell.parity is not None:
            say(
                f"  parity: same function {cell.parity.same_function}, same precision {cell.parity.same_precision}"
            )
        for f in told:
            say(f"  {f.severity:5} {f.rule}: {f.what}")
        if not told:
            say("  no finding")
        for f in unchecked if everything else ():
            say(f"  not checked {f.rule}: {f.what}")
        if unchecked and not everything:
            say(f"  {len(unchecked)} rules not checked (--all lists them)")
    return 1 if void else 0
