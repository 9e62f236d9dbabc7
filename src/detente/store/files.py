"""Sessions as files: our own lines, and the formats of Google Benchmark and pyperf. Standard library only."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from detente.records.fault import StoreFault
from detente.records.session import Process, Session
from detente.store.lines import PROCESS, session_lines
from detente.store.spool import read_spool
from detente.store.whole_file import whole_file


def export_session(session: Session, file: Path | str, form: str = "detente") -> None:
    """Write a session to a file: ``detente`` (JSON lines, everything), ``google-benchmark`` or ``pyperf``
    (the timed processes, for other tools to test again). The file appears when it is whole; one that is
    there is replaced.

    Raises StoreFault when it cannot be written or the format is unknown.
    """
    if form not in FORMS:
        raise StoreFault(f"no format is called {form!r}", f"the formats are {', '.join(FORMS)}")
    path = Path(file)
    with whole_file(path) as out:
        for line in FORMS[form](session):
            out.write(line)


def catch_up(
    store: Keeper, folder: Path | str, bad: Callable[[str, str], None] = lambda id, why: None
) -> tuple[str, ...]:
    """Bring the sessions whose spools lie in ``folder`` into the store, where it lacks them or some of their
    processes: measured without SQLAlchemy, while the disk was full, or by a parent that was killed. Returns
    the ids of those that were new or grew. A spool that cannot be read is left alone, and told to ``bad``.
    """
    known = store.counts()
    grown = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        # Lines are counted first: reading every spool whole would cost seconds where there are hundreds.
        if path.stem in known and process_lines(path) <= known[path.stem]:
            continue
        try:
            session = read_spool(path)
            if session.id != path.stem:
                raise StoreFault(f"{path} holds the session {session.id}", "a spool is named by its session")
            store.write_session(session)
            grown.append(session.id)
        except StoreFault as fault:
            bad(path.stem, fault.message)
    return tuple(grown)


class Keeper(Protocol):
    """What ``catch_up`` needs of a store."""

    def counts(self) -> dict[str, int]: ...
    def write_session(self, session: Session) -> None: ...


def process_lines(path: Path) -> int:
    """How many lines of a spool begin as a process does, whole or not; 0 when it cannot be read."""
    start = f'{{"schema":"{PROCESS}"'.encode()
    try:
        with open(path, "rb") as file:
            return sum(line.startswith(start) for line in file)
    except OSError:
        return 0


def google_benchmark(session: Session) -> dict[str, Any]:
    """The object that Google Benchmark writes with ``--benchmark_format=json``: one repetition per process,
    its time the median nanoseconds per step. Its ``compare.py`` then tests with the processes as
    replicates.

    Source: the user guide of Google Benchmark, "Output Formats".
    """
    machine = session.fingerprint.machine
    cells = dict.fromkeys(p.cell for p in _timed(session))
    rows = []
    for family, cell in enumerate(cells):
        runs = [p for p in _timed(session) if p.cell == cell]
        for n, p in enumerate(runs):
            walls = sorted((s.wall_ns / s.steps, s.cpu_ns / s.steps) for s in p.evidence.samples)
            wall, cpu = walls[len(walls) // 2]
            rows.append(
                {
                    "name": cell.key,
                    "family_index": family,
                    "per_family_instance_index": 0,
                    "run_name": cell.key,
                    "run_type": "iteration",
                    "repetitions": len(runs),
                    "repetition_index": n,
                    "threads": 1,
                    "iterations": sum(s.steps for s in p.evidence.samples),
                    "real_time": wall,
                    "cpu_time": cpu,
                    "time_unit": "ns",
                }
            )
    context = {
        "date": _date(session.started),
        "host_name": str(machine.get("host", "")),
        "executable": "detente",
        "num_cpus": machine.get("cores", 0),
        "mhz_per_cpu": 0,
        "cpu_scaling_enabled": False,
        "caches": [],
        "load_avg": [],
        "library_build_type": "release",
        "detente_session": session.id,
    }
    return {"context": context, "benchmarks": rows}


def pyperf(session: Session) -> dict[str, Any]:
    """The object that pyperf writes: one benchmark per cell, one run per process, its values seconds per
    step.

    Source: pyperf's documentation, "pyperf benchmark file format"; version 1.0.
    """
    benchmarks = []
    for cell in dict.fromkeys(p.cell for p in _timed(session)):
        runs = [
            {
                "metadata": {
                    "date": _date(p.started),
                    "duration": p.wall_s,
                    "loops": p.evidence.samples[0].steps,
                },
                "values": [s.wall_ns / s.steps / 1e9 for s in p.evidence.samples],
            }
            for p in _timed(session)
            if p.cell == cell
        ]
        benchmarks.append({"metadata": {"name": cell.key, "unit": "second"}, "runs": runs})
    if not benchmarks:
        raise StoreFault(f"session {session.id} has no timed process", "pyperf has no empty benchmark file")
    metadata = {"description": f"detente session {session.id}"}
    return {"benchmarks": benchmarks, "metadata": metadata, "version": "1.0"}


def _timed(session: Session) -> tuple[Process, ...]:
    """Processes that may stand in a table of times: timed, ended well, with samples, and in a whole block."""
    blocks = set(session.whole_blocks())
    return tuple(
        p
        for p in session.processes
        if p.kind == "time" and p.evidence.status == "ok" and p.evidence.samples and p.block in blocks
    )


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def _object(make: Callable[[Session], dict[str, Any]]) -> Callable[[Session], Iterator[bytes]]:
    def lines(session: Session) -> Iterator[bytes]:
        yield json.dumps(make(session), indent=2, allow_nan=False).encode() + b"\n"

    return lines


FORMS: dict[str, Callable[[Session], Iterable[bytes]]] = {
    "detente": session_lines,
    "google-benchmark": _object(google_benchmark),
    "pyperf": _object(pyperf),
}
