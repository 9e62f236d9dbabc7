"""Every row of the tables in its own process, two at a time; interrupt it at will, the next call goes on.

``python -m tests.third_party.models [--only REGEX] [--first N] [--again OUTCOME,...] [--stale] [--jobs N] [--rows FILE]
[--page FILE]``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from tests import forked
from tests.commit_of import commit_of_bridge
from tests.third_party import stand_in
from tests.third_party.models import ROWS
from tests.third_party.page import page
from tests.third_party.row import Row

LIMITS = forked.Limits(seconds=150, waiting=600.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.third_party.models")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/third-party-models.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/third-party-models.md"))
    parser.add_argument("--only", default="", help="a regular expression on 'package name'")
    parser.add_argument(
        "--first", type=int, default=0, help="so many rows of the tables' order, and the known ones"
    )
    parser.add_argument("--again", default="", help="outcomes to run again, or 'all'")
    parser.add_argument("--stale", action="store_true", help="run again what another commit made")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    stand_in.install()
    _prepare()
    known = _read(options.rows)
    again, commit = set(options.again.split(",")), commit_of_bridge()

    def wanted(row: Row) -> bool:
        record = known.get(_key(row))
        if not re.search(options.only, f"{row.package} {row.name}"):
            return False
        if record is None or record["signature"] != row.signature or "all" in again:
            return True
        return record["outcome"] in again or (options.stale and record["commit"] != commit)

    first = {_key(row) for row in ROWS[: options.first or None]}
    todo = [row for row in ROWS if (_key(row) in first or _key(row) in known) and wanted(row)]
    start = perf_counter()
    works = [_work(row) for row in todo]
    for number, record in forked.each(works, options.jobs, LIMITS, not options.verbose):
        row = todo[number]
        whole = _about(row) | {"commit": commit} | record
        known[_key(row)] = whole
        with options.rows.open("a") as out:
            out.write(json.dumps(whole, sort_keys=True) + "\n")
        print(
            f"{number + 1}/{len(todo)} {row.package} {row.name}: {whole['outcome']} "
            f"({whole.get('bridge_s', 0):.0f} s, {perf_counter() - start:.0f} in all) "
            f"{whole.get('where', '')[:100]} {whole.get('detail', '')[:200]}",
            flush=True,
        )
    kept = [known[_key(row)] for row in ROWS if _key(row) in known]
    options.rows.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in kept))
    options.page.write_text(page(kept, ROWS))
    counts = Counter(record["outcome"] for record in kept)
    print(dict(counts))
    return 1 if counts["wrong"] or counts["crashed"] else 0


def _prepare() -> None:
    """What every child needs, and one thread."""
    from zoo import serve

    serve.prepare()


def _work(row: Row) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        import warnings

        from tests.third_party.attempt import attempt

        warnings.simplefilter("ignore")
        return attempt(row)

    return work


def _about(row: Row) -> dict[str, Any]:
    return {
        "package": row.package,
        "name": row.name,
        "domain": row.domain,
        "version": version(row.package),
        "torch": version("torch"),
        "jax": version("jax"),
        "signature": row.signature,
    }


def _key(row: Row) -> tuple[str, str]:
    return row.package, row.name


def _read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The last record of each row."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(record["package"], record["name"]): record for record in map(json.loads, lines)}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
