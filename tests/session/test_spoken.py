"""What a worker says last: evidence that no reader of the session would take is none, and of a log its end is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detente.records.codec import dumps, to_json
from detente.records.evidence import Evidence
from detente.records.limits import LONGEST_EVIDENCE, LONGEST_LINE
from detente.records.session import Process
from detente.session.spawn import _tail, _Watch
from detente.store.lines import process_line
from tests.store.fabricate import make_session


@pytest.fixture
def watch() -> _Watch:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return _Watch(child, {}, lambda phase: None)


def line(size: int, letter: str = "x") -> bytes:
    """Evidence of so many bytes, as a worker tells it."""
    texts = [letter * 10_000] * (size // (10_000 * len(letter.encode())))
    evidence = to_json(Evidence("ok", "done", probes={"long": texts}))
    return json.dumps({"event": "evidence", "evidence": evidence}, ensure_ascii=False).encode()


def test_what_a_session_can_hold_is_taken_and_can_be_read(watch: _Watch) -> None:
    watch._hear(line(LONGEST_EVIDENCE - 2**20))
    assert watch.evidence is not None and watch.spoken == ""
    some = make_session(1).processes[0]
    kept = Process(some.cell, "time", 0, 0, 1.0, 1.0, 0.0, watch.evidence)
    assert len(process_line(kept)) <= LONGEST_LINE


@pytest.mark.parametrize(
    ("size", "letter"),
    [(LONGEST_EVIDENCE + 2**20, "x"), (LONGEST_EVIDENCE // 2, "\u00e9")],
    ids=["long", "longer when we write it"],
)
def test_what_no_reader_takes_is_no_evidence(watch: _Watch, size: int, letter: str) -> None:
    told = line(size, letter)
    assert len(dumps({"x": json.loads(told)})) > LONGEST_EVIDENCE
    watch._hear(told)
    assert watch.evidence is None and "a session holds 15 MiB of one process" in watch.spoken


def test_of_a_log_of_gigabytes_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.seek(64 * 2**30)  # a hole: whoever reads it whole needs 64 GiB
        file.write(b"MemoryError: the end\n")
    assert _tail(log).endswith("MemoryError: the end\n") and len(_tail(log)) <= 4000
    log.write_text("short")
    assert _tail(log) == "short" and _tail(tmp_path / "absent") == ""
