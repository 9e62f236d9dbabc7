"""The database gives back exactly what was stored, whoever else writes, and says in one line what is wrong."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest
import sqlalchemy as sa
from fabricate import make_session

from detente.records.fault import StoreFault, UsageFault
from detente.records.sample import Sample
from detente.store import tables
from detente.store.sessions import open_store, process_median


def test_a_session_comes_back_equal(tmp_path):
    whole = make_session(blocks=3)
    with open_store(tmp_path) as store:
        store.write_session(replace(whole, processes=(), ended=None))
        for process in whole.processes:
            store.add_process(whole.id, process)
        store.write_session(replace(whole, note="done"))
    with open_store(tmp_path) as store:
        assert store.read_session(whole.id) == replace(whole, note="done")


def test_nan_and_empty_evidence_survive(tmp_path):
    whole = make_session(blocks=1)
    evidence = replace(
        whole.processes[0].evidence, losses=(math.inf,), samples=(), status="failed", reason="loss is inf"
    )
    odd = replace(whole, processes=(replace(whole.processes[0], evidence=evidence),))
    with open_store(tmp_path) as store:
        store.write_session(odd)
        assert store.read_session() == odd


def test_writing_again_adds_what_is_missing_and_nothing_twice(tmp_path):
    whole = make_session(blocks=3)
    with open_store(tmp_path) as store:
        store.write_session(replace(whole, processes=whole.processes[:4]))
        store.write_session(whole)
        store.write_session(whole)
        assert store.read_session() == whole


def test_another_session_with_the_same_id_is_refused(tmp_path):
    with open_store(tmp_path) as store:
        store.write_session(make_session(blocks=1))
        with pytest.raises(StoreFault, match="another session with the id"):
            store.write_session(make_session(blocks=1, machine={"processor": "another"}))


def test_names(tmp_path):
    with open_store(tmp_path) as store:
        with pytest.raises(UsageFault, match="no session is stored"):
            store.read_session()
        store.write_session(make_session(blocks=0, id="20260101-aaaa", started=1.0))
        store.write_session(make_session(blocks=0, id="20260102-bbbb", started=3.0))
        store.write_session(make_session(blocks=0, id="2026_103-cccc", started=2.0))
        assert store.read_session("latest").id == "20260102-bbbb"
        assert store.read_session("20260101").id == "20260101-aaaa"
        # The underscore is a wildcard of SQL's LIKE; here it is a letter.
        assert store.read_session("2026_").id == "2026_103-cccc"
        with pytest.raises(UsageFault, match="several sessions begin with '2026'"):
            store.read_session("2026")
        with pytest.raises(UsageFault, match="did you mean 20260102-bbbb"):
            store.read_session("20260102-bbbx")
        assert [x.id for x in store.list_sessions()] == ["20260102-bbbb", "2026_103-cccc", "20260101-aaaa"]


def test_list_by_workload_and_stack(tmp_path):
    with open_store(tmp_path) as store:
        store.write_session(make_session(blocks=1))
        assert [x.processes for x in store.list_sessions(workload="gpt2", stack="jax")] == [3]
        assert store.list_sessions(workload="gemm") == ()


def test_a_process_of_an_unknown_session_is_refused(tmp_path):
    with open_store(tmp_path) as store, pytest.raises(StoreFault, match="no session x is stored"):
        store.add_process("x", make_session(blocks=1).processes[0])


def test_a_number_that_no_database_holds(tmp_path):
    whole = make_session(blocks=1)
    evidence = replace(whole.processes[0].evidence, samples=(Sample(10**30),))
    with open_store(tmp_path) as store, pytest.raises(StoreFault, match="does not fit"):
        store.write_session(replace(whole, processes=(replace(whole.processes[0], evidence=evidence),)))


def test_median_is_per_step():
    assert (
        process_median([Sample(4_000_000_000, 2), Sample(3_000_000_000, 1), Sample(1_000_000_000, 1)]) == 2.0
    )
    assert process_median([]) is None


def test_a_damaged_database_is_named_and_the_way_out_is_told(tmp_path):
    (tmp_path / "detente.db").write_bytes(b"this is no database" * 400)
    with pytest.raises(StoreFault, match="is damaged") as caught:
        open_store(tmp_path)
    # An import of what lies in the store itself says "nothing new", and is not needed.
    assert "`detente sessions` makes another one" in caught.value.hint and caught.value.exit_code == 3


def test_damage_inside_is_found_when_it_is_met(tmp_path):
    with open_store(tmp_path) as store:
        for n in range(20):
            store.write_session(make_session(blocks=3, id=f"s{n}", samples=20))
    path = tmp_path / "detente.db"
    data = bytearray(path.read_bytes())
    for page in range(8, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
    path.write_bytes(data)
    with pytest.raises(StoreFault, match="damaged"), open_store(tmp_path) as store:
        for n in range(20):
            store.read_session(f"s{n}")


def test_a_newer_database_is_left_alone(tmp_path):
    open_store(tmp_path).close()
    with sqlite3.connect(tmp_path / "detente.db") as raw:
        raw.execute("UPDATE detente_meta SET value = '99' WHERE key = 'version'")
    with pytest.raises(StoreFault, match="newer detente \\(schema 99"):
        open_store(tmp_path)
    with sqlite3.connect(tmp_path / "detente.db") as raw:
        assert raw.execute("SELECT value FROM detente_meta").fetchone() == ("99",)


def test_an_older_database_is_migrated_in_one_transaction(tmp_path, monkeypatch):
    with open_store(tmp_path) as store:
        store.write_session(make_session(blocks=1))

    def broken(connection):
        connection.exec_driver_sql("CREATE TABLE half (x)")
        raise StoreFault("the migration failed")

    newer = tables.VERSION
    monkeypatch.setattr(tables, "VERSION", newer + 1)
    monkeypatch.setitem(tables.MIGRATIONS, newer, broken)
    with pytest.raises(StoreFault, match="the migration failed"):
        open_store(tmp_path)
    monkeypatch.setitem(tables.MIGRATIONS, newer, lambda c: c.exec_driver_sql("CREATE TABLE more (x)"))
    with open_store(tmp_path) as store:
        names = sa.inspect(store.engine).get_table_names()
        assert "more" in names and "half" not in names
        assert store.read_session() == make_session(blocks=1)


def test_a_database_of_the_first_version_is_read_and_written(tmp_path):
    """It had a column for a device's clock, which nothing filled and every row had to have."""
    whole = make_session(blocks=2)
    with open_store(tmp_path) as store:
        store.write_session(replace(whole, processes=whole.processes[:3]))
    with sqlite3.connect(tmp_path / "detente.db") as raw:
        raw.execute("ALTER TABLE samples ADD COLUMN clock_mhz INTEGER NOT NULL DEFAULT 0")
        raw.execute("ALTER TABLE judgements DROP COLUMN load")
        raw.execute("UPDATE detente_meta SET value = '1' WHERE key = 'version'")
    with open_store(tmp_path) as store:
        assert store.read_session() == replace(whole, processes=whole.processes[:3])
        store.write_session(whole)
        assert store.read_session() == whole
        assert "clock_mhz" not in [c["name"] for c in sa.inspect(store.engine).get_columns("samples")]


def test_a_database_of_another_program_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / "detente.db") as raw:
        raw.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreFault, match="is not one of detente's"):
        open_store(tmp_path)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFault, match="cannot make the folder"):
        open_store(tmp_path / "file" / "store")
    # Root may write anywhere but here.
    with pytest.raises(StoreFault, match="cannot make the folder"):
        open_store("/proc/detente")


def test_a_full_database_keeps_what_was_committed(tmp_path):
    """SQLite itself refuses to grow (SQLITE_FULL), as it does on a full disk."""
    whole = make_session(blocks=200, samples=20)
    with open_store(tmp_path) as store:
        store.write_session(replace(whole, processes=whole.processes[:30]))
        sa.event.listen(store.engine, "connect", lambda c, _: c.execute("PRAGMA max_page_count=120"))
        store.engine.dispose()
        with pytest.raises(StoreFault, match="the disk is full") as caught:
            store.write_session(whole)
        assert "free some space" in caught.value.hint
        assert store.read_session().processes == whole.processes[:30]
    with open_store(tmp_path) as store:
        store.write_session(whole)
        assert store.read_session() == whole


def test_a_disk_that_really_refuses(tmp_path):
    """The kernel refuses every byte beyond a limit, in the middle of SQLite's own write."""
    script = f"""
import resource, signal, sys
sys.path[:0] = {sys.path!r}
from dataclasses import replace
from detente.records.fault import StoreFault
from detente.store.sessions import open_store
from fabricate import make_session
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
whole = make_session(blocks=200)
store = open_store({str(tmp_path)!r})
store.write_session(replace(whole, processes=()))
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
done = 0
try:
    for process in whole.processes:
        store.add_process(whole.id, process)
        done += 1
except StoreFault as fault:
    print(done, fault.message)
"""
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert "the disk is full or failing" in out.stdout
    done = int(out.stdout.split()[0])
    whole = make_session(blocks=200)
    with open_store(tmp_path) as store:
        assert 0 < done < len(whole.processes)
        assert store.read_session().processes == whole.processes[:done]


def test_two_processes_open_and_write_at_once(tmp_path):
    script = """
import sys
sys.path[:0] = {path!r}
from dataclasses import replace
from detente.store.sessions import open_store
from fabricate import make_session
whole = make_session(blocks=12, id={id!r})
sys.stdin.readline()
with open_store({folder!r}) as store:
    store.write_session(replace(whole, processes=()))
    for process in whole.processes:
        store.add_process(whole.id, process)
"""
    folder = str(tmp_path / "store")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script.format(path=sys.path, id=id_, folder=folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for id_ in ("one", "two", "three")
    ]
    for w in writers:
        w.stdin.write("go\n")
        w.stdin.flush()
    for w in writers:
        _, said = w.communicate(timeout=100)
        assert w.returncode == 0, said
    with open_store(folder) as store:
        for id_ in ("one", "two", "three"):
            assert store.read_session(id_) == make_session(blocks=12, id=id_)
