"""What is exported can be imported, by us and by the tools whose formats we write."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest
from fabricate import make_session

from detente.records.fault import StoreFault
from detente.store.files import catch_up, export_session
from detente.store.sessions import open_store
from detente.store.spool import Spool, read_spool


def test_a_round_trip_through_file_and_store(tmp_path):
    whole = make_session(blocks=3)
    with open_store(tmp_path / "a") as store:
        store.write_session(whole)
        export_session(store.read_session(), tmp_path / "session.jsonl")
    with open_store(tmp_path / "b") as store:
        store.write_session(read_spool(tmp_path / "session.jsonl"))
        assert store.read_session() == whole


def test_an_export_is_readable_like_any_file_and_replaces_whole(tmp_path):
    path = tmp_path / "session.jsonl"
    path.write_text("old")
    export_session(make_session(blocks=1), path)
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert read_spool(path) == make_session(blocks=1)
    assert {p.name for p in tmp_path.iterdir()} == {"session.jsonl", "plain"}


def test_an_export_that_fails_leaves_nothing_half(tmp_path):
    with pytest.raises(StoreFault, match="cannot write"):
        export_session(make_session(blocks=1), tmp_path / "absent" / "session.jsonl")
    with pytest.raises(StoreFault, match="no format is called 'csv'"):
        export_session(make_session(blocks=1), tmp_path / "x", "csv")
    empty = make_session(blocks=0)
    with pytest.raises(StoreFault, match="no timed process"):
        export_session(empty, tmp_path / "x", "pyperf")
    assert not list(tmp_path.iterdir())


def test_pyperf_values_are_seconds_per_step(tmp_path):
    whole = make_session(blocks=4)
    export_session(whole, tmp_path / "p.json", "pyperf")
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["version"] == "1.0" and len(data["benchmarks"]) == 3
    jax = next(b for b in data["benchmarks"] if b["metadata"]["name"].endswith("/jax"))
    assert len(jax["runs"]) == 4
    assert statistics.median(v for r in jax["runs"] for v in r["values"]) == pytest.approx(0.1, rel=0.03)


def test_google_benchmark_repetitions_are_processes(tmp_path):
    whole = make_session(blocks=4)
    # A failed process does not count, and neither does a block that is not whole.
    bad = next(p for p in whole.processes if p.cell.label == "jax")
    failed = replace(bad, evidence=replace(bad.evidence, status="failed"))
    kept = tuple(failed if p is bad else p for p in whole.processes[:-1])
    export_session(replace(whole, processes=kept), tmp_path / "g.json", "google-benchmark")
    data = json.loads((tmp_path / "g.json").read_text())
    rows = [r for r in data["benchmarks"] if r["run_name"].endswith("/jax")]
    assert [r["repetition_index"] for r in rows] == [0, 1] and {r["repetitions"] for r in rows} == {2}
    assert rows[0]["time_unit"] == "ns" and rows[0]["real_time"] == pytest.approx(1e8, rel=0.05)


def test_the_store_catches_up_with_the_spools(tmp_path):
    one, two, three = (make_session(blocks=3, id=x) for x in ("one", "two", "three"))
    for session in (one, two, three):
        Spool.create(tmp_path / "sessions", session).close()
    (tmp_path / "sessions" / "broken.jsonl").write_text("not a session\n")
    with open_store(tmp_path) as store:
        store.write_session(one)
        # The database lost its last processes, and one from the middle.
        store.write_session(replace(two, processes=(*two.processes[:2], *two.processes[3:5])))
        assert catch_up(store, tmp_path / "sessions") == ("three", "two")
        assert catch_up(store, tmp_path / "sessions") == ()
        assert store.read_session("three") == three
        assert store.read_session("two") == two
