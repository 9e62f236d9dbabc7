"""``detente history``: what changed between sessions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from detente.cli.options import format_option
from detente.cli.text import say
from detente.records.codec import to_json
from detente.records.fault import UsageFault
from detente.records.folders import data_folder

if TYPE_CHECKING:
    from detente.store.history import Series


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("workload", required=False)
@click.option("--stack", help="Only this row.")
@click.option("--cell", help="Only cells whose key begins so: gpt2/paper/train-step/fp32.")
@click.option("--last", type=click.IntRange(1), default=30, show_default=True, help="Sessions to look back.")
@click.option("--sessions", is_flag=True, help="List the stored sessions instead.")
@click.option(
    "--gate",
    is_flag=True,
    help="Exit 1 when the newest point of a row is CHANGED and slower: by 1.25x at the least, unless three earlier "
    "sessions say how far sessions of one thing lie apart; and when a row is void or failed in the newest session that "
    "ran it.",
)
@format_option("text", "json")
def command(
    workload: str | None,
    stack: str | None,
    cell: str | None,
    last: int,
    sessions: bool,
    gate: bool,
    form: str,
) -> int:
    """Compare each cell with itself over time. Sessions are not paired, so the words are CHANGED, NO CHANGE SEEN
    and NOT COMPARABLE; a verdict needs one session with both sides in it.

    \b
    Examples:
      detente history gpt2 --stack jax
      detente history gpt2 --last 5
      detente history gpt2 --gate
    """
    if sessions:
        # What the list was called before it had a command of its own.
        from detente.cli.stored import list_

        return list_.callback(form)  # type: ignore[misc]
    from detente.cli.judged import judge_stored
    from detente.report.numbers import count
    from detente.store.files import catch_up
    from detente.store.history import history, unjudged
    from detente.store.sessions import open_store

    bad: dict[str, str] = {}
    with open_store(data_folder()) as store:
        # Sessions that were measured where the database could not be written are in their spools.
        grown = catch_up(store, data_folder() / "sessions", bad.__setitem__)
        wanted = unjudged(store, workload=workload, stack=stack, sessions=last)
        judge_stored(store, dict.fromkeys((*grown, *wanted)), bad.__setitem__)
        series = history(
            store,
            workload=workload,
            stack=stack,
            cell=cell,
            sessions=last,
            bad=bad.__setitem__,
            without=tuple(bad),
        )
    for id, why in sorted(bad.items()):
        say(f"note: session {id} is left out: {why}; `detente sessions remove` removes it", error=True)
    if form == "json":
        print(json.dumps({"schema": "detente/history/1", "series": [to_json(s) for s in series]}))
    else:
        from detente.report.history_page import render_history
        from detente.report.terminal import wants_colour, width_of

        told = render_history(series, width=width_of(sys.stdout), colour=wants_colour(sys.stdout))
        print(told, end="")
    if not gate:
        return 0
    if not series and (asked := [name for name in (workload, stack, cell) if name]):
        # A gate that looks at nothing lets everything through, for as long as the name is misspelled.
        raise UsageFault(
            f"the gate looked at nothing: no row of {' and '.join(map(repr, asked))} has a time in the last "
            f"{count(last, 'session')}",
            "`detente sessions` lists the sessions with their rows",
        )
    return _gate(series)


def _gate(series: Sequence[Series]) -> int:
    """1 for a row that became slower, or has no time any more. As of a machine whose noise is not known, a small change
    counts only where it is known how far sessions of one thing lie apart."""
    from detente.judge.headline import LEAST_RATIO

    lost = [s for s in series if s.lost is not None]
    for s in lost:
        assert s.lost is not None
        say(f"detente: {s.cell} is {s.lost.status} in {s.lost.session}: {s.lost.reason}", error=True)
    series = [s for s in series if s.lost is None]
    for s in series:
        if (change := s.points[-1].change) is None or change.word == "NOT COMPARABLE":
            why = f": {change.reason}" if change is not None else ""
            say(f"note: the gate holds {s.cell} against no earlier session{why}", error=True)
    found = [(s, c) for s in series if (c := s.points[-1].change) and c.word == "CHANGED"]
    slower = [(s, c) for s, c in found if (c.ratio or 0.0) > 1]
    worse = [s for s, c in slower if c.known or (c.low or 0.0) >= LEAST_RATIO]
    for s, c in slower:
        if s not in worse:
            say(
                f"note: {s.cell} is {c.ratio:.3g}x slower, and does not fail the gate: how far sessions of it lie "
                f"apart, three earlier ones tell, and without them only {LEAST_RATIO}x counts",
                error=True,
            )
    return 1 if worse or lost else 0
