"""How fast `history` answers over a million stored samples.

    python benchmarks/history.py            builds the database (about a minute); writes docs/results/history.md
    python benchmarks/history.py --keep DIR builds it there, or uses it when it is there

The clock runs over the whole answer in a fresh connection each time: opening, query, comparisons.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from detente.records.cell import Cell
from detente.records.codec import dumps
from detente.records.contract import CONTRACTS
from detente.records.evidence import Evidence
from detente.records.session import Fingerprint, Process, Session
from detente.session.fingerprint import machine
from detente.store import tables
from detente.store.history import history
from detente.store.sessions import Store, comparable_hash, open_store

SESSIONS, BLOCKS, SAMPLES = 500, 10, 20
WORKLOADS = ("gemm", "ffn", "mha", "gpt2")
STACKS = ("torch-eager", "torch-compile", "jax", "jax#aa", "torch-xla")
LIMIT_S = 0.1
PAGE = Path(__file__).resolve().parent.parent / "docs/results/history.md"


def build(store: Store) -> int:
    """Fill the store with made-up sessions; return the number of samples. Rows are inserted in bulk: only the
    reading is measured."""
    cells = [
        Cell(w, "paper", s.split("#")[0], CONTRACTS["train-step"], "cpu", s)
        for w in WORKLOADS
        for s in STACKS
    ]
    random_ = random.Random(3)
    hashes = {"v1": json.dumps({"jax": "0.10.1"}), "v2": json.dumps({"jax": "0.10.2"})}
    body = dumps(Process(cells[0], "time", 0, 0, 0.0, 9.0, 0.0, Evidence("ok", "done")))
    number = process_id = 0
    with store.engine.connect().execution_options(write=True) as connection, connection.begin():
        connection.execute(sa.insert(tables.versions), [{"hash": k, "body": v} for k, v in hashes.items()])
        for n in range(SESSIONS):
            # A tenth of the sessions ran on another machine.
            machine = {"processor": "another" if n % 10 == 3 else "made up", "cores": 2}
            head = Session(
                f"s{n:05}",
                1e9 + 3600 * n,
                ("detente",),
                Fingerprint(machine, {"threads": 2}, "0" * 64),
                tuple(cells),
            )
            connection.execute(
                sa.insert(tables.sessions).values(
                    id=head.id,
                    started=head.started,
                    head=dumps(head),
                    fingerprint=comparable_hash(head.fingerprint),
                )
            )
            processes, samples = [], []
            # Each session has one workload, like a real one; its rows are run in BLOCKS blocks.
            chosen = [c for c in cells if c.workload == WORKLOADS[n % len(WORKLOADS)]]
            for block in range(BLOCKS):
                for cell in random_.sample(chosen, len(chosen)):
                    median = 0.1 * random_.lognormvariate(0, 0.01)
                    process_id += 1
                    processes.append(
                        dict(
                            id=process_id, session_id=head.id, number=len(processes), cell=cell.key, kind="time",
                            workload=cell.workload, label=cell.label, block=block, status="ok", median_s=median,
                            versions="v1" if n < SESSIONS - 10 else "v2", body=body,
                        )
                    )  # fmt: skip
                    for k in range(SAMPLES * 2):
                        wall = round(median * 1e9 * random_.lognormvariate(0, 0.003))
                        samples.append(
                            dict(process_id=process_id, number=k, wall_ns=wall, steps=1, cpu_ns=2 * wall,
                                 compile_events=0)
                        )  # fmt: skip
            connection.execute(sa.insert(tables.processes), processes)
            connection.execute(sa.insert(tables.samples), samples)
            number += len(samples)
    return number


def measure(folder: Path, **asked: Any) -> tuple[float, int]:
    """Median seconds of seven answers, and the number of points in one."""
    times, points = [], 0
    for _ in range(7):
        begin = time.perf_counter()
        with open_store(folder) as store:
            answer = history(store, **asked)
        times.append(time.perf_counter() - begin)
        points = sum(len(s.points) for s in answer)
    return statistics.median(times), points


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--keep", type=Path, help="build the database in this folder, or use the one that is there"
    )
    keep = parser.parse_args().keep
    with contextlib.ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with open_store(folder) as store:
            if not store.list_sessions(limit=1):
                print("building the database ...", file=sys.stderr)
                build(store)
            with store.engine.connect() as connection:
                stored = connection.execute(
                    sa.select(sa.func.count()).select_from(tables.samples)
                ).scalar_one()
        history_of = {
            "one workload, one stack": {"workload": "gpt2", "stack": "jax"},
            "one workload": {"workload": "gpt2"},
            "everything": {},
            "one stack, all sessions": {"workload": "gpt2", "stack": "jax", "sessions": SESSIONS},
        }
        # The first answer loads scipy's t distribution once per process.
        with open_store(folder) as store:
            history(store, workload="gpt2", stack="jax")
        lines = [
            "# How fast `history` answers",
            "",
            f"`python benchmarks/history.py`: {stored:,} made-up samples in {SESSIONS} sessions, a fresh connection "
            f"for every answer, median of 7. Processor: {machine()['processor']}. Limit: {LIMIT_S * 1e3:.0f} ms.",
            "",
            "| asked for | ms | points in the answer |",
            "|---|---|---|",
        ]
        worst = 0.0
        for name, asked in history_of.items():
            seconds, points = measure(folder, **asked)
            worst = max(worst, seconds)
            lines.append(f"| {name} | {seconds * 1e3:.0f} | {points} |")
    text = "\n".join(lines) + "\n"
    print(text)
    PAGE.write_text(text, encoding="utf-8")
    print("under 100 ms" if worst < LIMIT_S else "NOT under 100 ms")
    return 0 if worst < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
