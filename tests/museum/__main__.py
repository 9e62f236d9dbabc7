"""`make museum`: every room, quiet and beside a neighbour that computes; the page docs/results/museum.md by itself.

PYTHONPATH=src:. python -m tests.museum                     # everything, both times
PYTHONPATH=src:. python -m tests.museum step harness        # these rooms alone
PYTHONPATH=src:. python -m tests.museum --only quiet ...    # one of the two conditions
PYTHONPATH=src:. python -m tests.museum --rows Half,jax ... # these rows alone
PYTHONPATH=src:. python -m tests.museum --page              # the page from what was seen; nothing is run

Every look is a line of docs/results/museum.jsonl; the page tells the newest of each row.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from detente.session.fingerprint import machine
from tests.museum.page import Seen, keep, newest, page
from tests.museum.rooms import ROOMS
from tests.museum.visit import ROOT, Cells, findings, label, visit, wrong_with_fair, wrong_with_planted

CONDITIONS = ("quiet", "neighbour")
PAGE = ROOT / "docs" / "results" / "museum.md"
LINES = PAGE.with_suffix(".jsonl")
# As many rows as a visit takes at once: a session that is interrupted loses one of them, and not a room of thirty.
ROWS = 12


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """A process that multiplies matrices on the last core until the visit is over."""
    if not wanted:
        yield
        return
    core = max(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nimport numpy as np\na = np.ones((512, 512))\n"
    code += "while True: a @ a"
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    try:
        yield
    finally:
        child.kill()
        child.wait()


def walk(names: list[str], condition: str, rows: frozenset[str]) -> Iterator[list[Seen]]:
    """Every row of the rooms (or these ``rows`` alone), as it was found under one condition, a session's at a time. A
    part of a room is one session, and the fair rows are in the first: what a rule says of a difference is said beside
    them, so that one is in every part."""
    for name in names:
        room = ROOMS[name]
        planted = tuple(n for n in room.planted if not rows or n in rows)
        fair = tuple(s for s in room.fair if not rows or label(s) in rows)
        parts = [planted[i : i + ROWS] for i in range(0, len(planted), ROWS)] or [()]
        for number, part in enumerate(parts if planted or fair else []):
            beside = (*(fair if number == 0 else ()), *room.fair[:2])
            begun = time.monotonic()
            with neighbour(condition == "neighbour"):
                cells = visit(room, part, tuple(dict.fromkeys(beside)))
            print(f"{name} ({condition}): {len(cells)} rows in {time.monotonic() - begun:.0f} s", flush=True)
            yield seen_in(name, condition, cells, part, fair if number == 0 else ())


def seen_in(
    name: str, condition: str, cells: Cells, part: tuple[str, ...], fair: tuple[str, ...]
) -> list[Seen]:
    """What one session says of these rows of a room."""
    room, when = ROOMS[name], (time.strftime("%Y-%m-%d", time.gmtime()), machine()["processor"])
    found = []
    for stack in fair:
        cell = cells[label(stack)]
        found.append(Seen(name, label(stack), condition, "", wrong_with_fair(cell), findings(cell), *when))
    for exhibit in part:
        cell, rule = cells[exhibit], room.planted[exhibit].rule
        wrong = wrong_with_planted(room, exhibit, cell)
        found.append(Seen(name, exhibit, condition, rule, wrong, findings(cell), *when))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.museum")
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], help="these alone")
    parser.add_argument("--only", choices=CONDITIONS)
    parser.add_argument("--rows", default="", help="these alone, with commas between")
    parser.add_argument("--page", action="store_true", help="run nothing")
    asked = parser.parse_args()
    rows = frozenset(filter(None, asked.rows.split(",")))
    seen: list[Seen] = []
    for condition in () if asked.page else [asked.only] if asked.only else CONDITIONS:
        for found in walk(asked.rooms or list(ROOMS), condition, rows):
            keep(LINES, found)
            seen += found
            for row in found:
                if row.wrong:
                    print(f"  WRONG {row.room} {row.name} ({condition}): {row.wrong}", flush=True)
    seen = newest(LINES) if asked.page else seen
    wrong = [row for row in seen if row.wrong]
    exhibits, fair = [r for r in seen if r.rule], [r for r in seen if not r.rule]
    print(
        f"{sum(not r.wrong for r in exhibits)} of {len(exhibits)} exhibits caught, "
        f"{sum(not r.wrong for r in fair)} of {len(fair)} fair rows not void"
    )
    PAGE.write_text(page(newest(LINES)), encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
