"""``python -m zoo [--rows FILE] [--page FILE] [--only REGEX] [--again OUTCOME,...] [--limit N] [--commit HASH]``."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path
from time import perf_counter

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
    parser.add_argument(
        "--commit", default="", help="of the sources, where the working folder is no checkout"
    )
    options = parser.parse_args()
    serve.prepare()
    found, known = architectures(), _read(options.rows)
    again = set(options.again.split(","))
    todo = [
        a
        for a in found
        if re.search(options.only, a.name)
        and (a.name not in known or known[a.name]["outcome"] in again or "all" in again)
    ][: options.limit]
    commit = options.commit or _commit()
    for number, architecture in enumerate(todo, 1):
        start = perf_counter()
        record = serve.run(architecture) | {"commit": commit}
        known[architecture.name] = record
        with options.rows.open("a") as out:
            out.write(json.dumps(record, sort_keys=True) + "\n")
        print(
            f"{number}/{len(todo)} {architecture.name}: {record['outcome']} ({perf_counter() - start:.0f} s) "
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


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


main()
