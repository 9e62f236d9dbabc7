"""``python -m zoo``: every architecture through the bridge; ``--help`` lists what can be asked for."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from time import perf_counter

from tests.commit_of import commit_of_bridge
from zoo import serve
from zoo.architectures import architectures
from zoo.table import page


def main() -> None:
    parser = argparse.ArgumentParser(prog="zoo", description=__doc__)
    parser.add_argument("--rows", type=Path, default=Path("docs/results/bridge-coverage.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/bridge-coverage.md"))
    parser.add_argument("--only", default="", help="a regular expression on class names")
    parser.add_argument("--again", default="", help="outcomes to run again, or 'all'")
    parser.add_argument("--limit", type=int, default=10**6)
    parser.add_argument("--stale", action="store_true", help="run again what another commit made")
    parser.add_argument("--jobs", type=int, default=2, help="architectures at a time")
    options = parser.parse_args()
    serve.prepare()
    found, known = architectures(), _read(options.rows)
    again, commit = set(options.again.split(",")), commit_of_bridge()

    def wanted(name: str) -> bool:
        record = known.get(name)
        if record is None or record["outcome"] in again or "all" in again:
            return True
        return options.stale and record["commit"] != commit

    todo = [a for a in found if re.search(options.only, a.name) and wanted(a.name)][: options.limit]
    start = perf_counter()
    for number, (architecture, found_out) in enumerate(serve.each(todo, options.jobs), 1):
        record = found_out | {"commit": commit}
        known[architecture.name] = record
        with options.rows.open("a") as out:
            out.write(json.dumps(record, sort_keys=True) + "\n")
        print(
            f"{number}/{len(todo)} {architecture.name}: {record['outcome']} ({perf_counter() - start:.0f} s in all) "
            f"{record.get('where', '')} {record.get('detail', '')[:150]}",
            flush=True,
        )
    rows = [known[a.name] for a in found if a.name in known]
    options.rows.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in rows))
    options.page.write_text(page(rows, found))


def _read(path: Path) -> dict[str, dict]:
    """The last record of each architecture."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {record["name"]: record for record in map(json.loads, lines)}


main()
