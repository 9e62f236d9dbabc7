"""`make museum`: every room, quiet and beside a neighbour that computes; the page docs/results/museum.md by itself.

PYTHONPATH=src:. python -m tests.museum                     # everything, both times, and the page
PYTHONPATH=src:. python -m tests.museum step harness        # these rooms alone; no page
PYTHONPATH=src:. python -m tests.museum --only quiet ...    # one of the two conditions
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.museum.page import Seen, page
from tests.museum.rooms import ROOMS
from tests.museum.visit import ROOT, findings, label, visit, wrong_with_fair, wrong_with_planted

CONDITIONS = ("quiet", "neighbour")
PAGE = ROOT / "docs" / "results" / "museum.md"
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


def walk(names: list[str], condition: str) -> Iterator[Seen]:
    """Every row of the rooms, as it was found under one condition. A part of a room is one session, and the fair rows
    are in the first: what a rule says of a difference is said beside them, so that one is in every part."""
    for name in names:
        room = ROOMS[name]
        planted = tuple(room.planted)
        parts = [planted[i : i + ROWS] for i in range(0, len(planted), ROWS)] or [()]
        for number, part in enumerate(parts):
            fair = room.fair if number == 0 else room.fair[:2]
            begun = time.monotonic()
            with neighbour(condition == "neighbour"):
                cells = visit(room, part, fair)
            for stack in fair if number == 0 else ():
                cell = cells[label(stack)]
                yield Seen(name, label(stack), condition, "", wrong_with_fair(cell), findings(cell))
            for exhibit in part:
                wrong = wrong_with_planted(room, exhibit, cells[exhibit])
                rule = room.planted[exhibit].rule
                yield Seen(name, exhibit, condition, rule, wrong, findings(cells[exhibit]))
            print(f"{name} ({condition}): {len(cells)} rows in {time.monotonic() - begun:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.museum")
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], help="these alone, and no page")
    parser.add_argument("--only", choices=CONDITIONS)
    asked = parser.parse_args()
    conditions = [asked.only] if asked.only else list(CONDITIONS)
    seen: list[Seen] = []
    for condition in conditions:
        for row in walk(asked.rooms or list(ROOMS), condition):
            seen.append(row)
            if row.wrong:
                print(f"  WRONG {row.room} {row.name} ({condition}): {row.wrong}", flush=True)
    wrong = [row for row in seen if row.wrong]
    exhibits, fair = [r for r in seen if r.rule], [r for r in seen if not r.rule]
    print(
        f"{sum(not r.wrong for r in exhibits)} of {len(exhibits)} exhibits caught, "
        f"{sum(not r.wrong for r in fair)} of {len(fair)} fair rows not void"
    )
    if not asked.rooms and not asked.only:
        PAGE.write_text(page(seen), encoding="utf-8")
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
