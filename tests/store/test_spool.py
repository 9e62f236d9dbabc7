"""The spool keeps every finished process, whatever happens to the writer or the disk."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from fabricate import make_session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detente.records.fault import StoreFault
from detente.store import spool as spool_module
from detente.store.lines import session_lines
from detente.store.spool import Spool, read_spool


def test_every_appended_process_comes_back(tmp_path):
    whole = make_session(blocks=2)
    with Spool.create(tmp_path, replace(whole, processes=(), ended=None)) as spool:
        for process in whole.processes:
            spool.append(process)
        assert read_spool(spool.path).processes == whole.processes
        spool.amend(ended=whole.ended, note="done", skipped={"a/b": "no such device"})
    back = read_spool(tmp_path / f"{whole.id}.jsonl")
    assert back == replace(whole, note="done", skipped={**whole.skipped, "a/b": "no such device"})


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_last_line_is_left_out_and_cut_off_on_resume(tmp_path, cut):
    whole = make_session(blocks=2)
    path = Spool.create(tmp_path, whole).path
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    # Without its newline the last line is still whole; cut further it is not.
    expected = whole.processes if cut == 1 else whole.processes[:-1]
    assert read_spool(path).processes == expected
    spool, session = Spool.open(path)
    assert session.processes == expected
    assert bool(spool.torn) == (cut > 1)
    another = replace(whole.processes[-1], started=whole.processes[-1].started + 1)
    spool.append(another)
    spool.close()
    assert read_spool(path).processes == (*expected, another)


def test_a_broken_line_inside_is_a_fault_that_names_it(tmp_path):
    path = Spool.create(tmp_path, make_session(blocks=1)).path
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:50] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(StoreFault, match="line 3 is not a line of a session"):
        read_spool(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b'{"schema":"detente/sess', "its only line is torn"),
        (b'{"schema":"detente/session/2"}\n', "newer detente"),
        (b'{"name":"something else"}\n', "not a line of a detente session"),
        (b"[1, 2]\n", "not a line of a detente session"),
        (b'{"schema":"detente/process/1"}\n', "line 1"),
        (b"\xff\xfe\x00", "is not a session file"),
        (b"name,value\n1,2\n", "is not a session file"),
    ],
)
def test_what_is_no_session_is_refused_with_a_reason(tmp_path, content, message):
    path = tmp_path / "file.jsonl"
    path.write_bytes(content)
    with pytest.raises(StoreFault, match=message):
        read_spool(path)


def test_missing_folder_and_unwritable_places(tmp_path):
    with pytest.raises(StoreFault, match="there is no file"):
        read_spool(tmp_path / "absent.jsonl")
    with pytest.raises(StoreFault, match="is a folder"):
        read_spool(tmp_path)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(StoreFault, match="cannot make the folder") as caught:
        Spool.create(in_the_way / "spools", make_session(blocks=0))
    assert "DETENTE_HOME" in caught.value.hint and caught.value.exit_code == 3


def test_a_second_writer_is_refused(tmp_path):
    session = make_session(blocks=1)
    with Spool.create(tmp_path, session) as spool:
        with pytest.raises(StoreFault, match="there already"):
            Spool.create(tmp_path, session)
        with pytest.raises(StoreFault, match="another process is writing"):
            Spool.open(spool.path)
    again, _ = Spool.open(tmp_path / f"{session.id}.jsonl")
    again.close()


def test_an_id_that_leaves_the_folder_is_refused(tmp_path):
    with pytest.raises(StoreFault, match="cannot name a session"):
        Spool.create(tmp_path, replace(make_session(blocks=0), id="../elsewhere"))


def test_a_full_disk_loses_nothing_that_was_finished(tmp_path, monkeypatch):
    """The write really happens in part, and then fails as a full disk makes it fail."""
    whole = make_session(blocks=2)
    spool = Spool.create(tmp_path, replace(whole, processes=whole.processes[:3]))
    real = spool._file

    class Full:
        def write(self, data):
            real.write(bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __getattr__(self, name):
            return getattr(real, name)

    spool._file = Full()
    with pytest.raises(StoreFault, match="No space left") as caught:
        spool.append(whole.processes[3])
    assert "free some space" in caught.value.hint
    assert read_spool(spool.path).processes == whole.processes[:3]
    spool._file = real
    spool.append(whole.processes[3])
    spool.close()
    assert read_spool(spool.path).processes == whole.processes[:4]


def test_a_file_system_that_is_really_full(tmp_path):
    """A limit on the file's size (RLIMIT_FSIZE) makes the kernel itself refuse the write in the middle."""
    script = f"""
import resource, signal, sys
sys.path[:0] = {sys.path!r}
from dataclasses import replace
from detente.records.fault import StoreFault
from detente.store.spool import Spool
from fabricate import make_session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
whole = make_session(blocks=8)
spool = Spool.create({str(tmp_path)!r}, replace(whole, processes=()))
done = 0
try:
    for process in whole.processes:
        spool.append(process)
        done += 1
except StoreFault as fault:
    print(done, fault.message)
"""
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    done = int(out.stdout.split()[0])
    assert "cannot write to" in out.stdout
    whole = make_session(blocks=8)
    assert 0 < done < len(whole.processes)
    assert read_spool(tmp_path / f"{whole.id}.jsonl").processes == whole.processes[:done]


def test_a_killed_writer_leaves_every_process_that_it_reported(tmp_path):
    script = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from dataclasses import replace
from detente.store.spool import Spool
from fabricate import make_session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
whole = make_session(blocks=40)
spool = Spool.create({str(tmp_path)!r}, replace(whole, processes=()))
for n, process in enumerate(whole.processes, 1):
    spool.append(process)
    print(n, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        reported = 0
        while reported < 5:
            reported = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        reported = max([reported, *map(int, writer.stdout.read().split())])
    whole = make_session(blocks=40)
    back = read_spool(tmp_path / f"{whole.id}.jsonl").processes
    assert len(back) >= reported
    assert back == whole.processes[: len(back)]


def test_the_spool_needs_the_standard_library_alone():
    script = "import sys; import detente.store.spool; print(*sys.modules)"
    source = spool_module.__file__.split("/detente/")[0]
    out = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {source!r}); {script}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    foreign = {"numpy", "sqlalchemy", "scipy", "torch", "jax", "click"} & set(out.stdout.split())
    assert not foreign


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_in_a_file_the_only_error_is_a_fault(tmp_path, data):
    """One value anywhere in a sound file is replaced by another; reading gives a session or a StoreFault."""
    lines = [json.loads(x) for x in session_lines(make_session(blocks=1, samples=2))]
    line = data.draw(st.sampled_from(lines))
    places: list[tuple[object, object]] = []

    def walk(value):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, key))
            if isinstance(inner, dict | list):
                walk(inner)

    walk(line)
    holder, key = data.draw(st.sampled_from(range(len(places))).map(places.__getitem__))
    holder[key] = data.draw(
        st.sampled_from([None, True, -1, 1.5, "x", "nan", [], [1], [1, 2, 3], {}, {"a": 1}, 10**30])
    )
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"".join(json.dumps(x).encode() + b"\n" for x in lines))
    with contextlib.suppress(StoreFault):
        read_spool(path)


@pytest.mark.parametrize(
    ("field", "value"), [("aa", ["a", "b", "c"]), ("aa", ["a"]), ("planned", [7]), ("id", 7)]
)
def test_a_head_of_the_wrong_shape_is_a_fault(tmp_path, field, value):
    head = json.loads(next(session_lines(make_session(blocks=0))))
    path = tmp_path / "file.jsonl"
    path.write_text(json.dumps({**head, field: value}) + "\n")
    with pytest.raises(StoreFault, match="line 1"):
        read_spool(path)


def test_nesting_without_end_is_a_fault(tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_bytes(b'{"schema":"detente/session/1","id":' + b"[" * 100_000 + b"\n")
    with pytest.raises(StoreFault):
        read_spool(path)


def test_what_somebody_else_writes_into_it_ends_the_session(tmp_path):
    """A row's own process made its rival's times three times as long, in a line as long as it was."""
    whole = make_session(blocks=2)
    with Spool.create(tmp_path, replace(whole, processes=whole.processes[:-1])) as spool:
        data = spool.path.read_bytes()
        with spool.path.open("r+b") as file:
            file.seek(len(data) - 40)
            file.write(bytes([data[-40] ^ 1]))
        with pytest.raises(StoreFault, match="was changed while its session ran"):
            spool.append(whole.processes[-1])
        with spool.path.open("r+b") as file:
            file.write(data)
        spool.append(whole.processes[-1])
        kept = spool.path.read_bytes()
        spool.path.unlink()
        with pytest.raises(StoreFault, match="taken away"):
            spool.amend(note="done")
        spool.path.write_bytes(kept)
        with pytest.raises(StoreFault, match="another file put in its place"):
            spool.amend(note="done")


def test_it_is_known_whole_where_it_is_continued(tmp_path):
    whole = make_session(blocks=2)
    path = Spool.create(tmp_path, replace(whole, processes=whole.processes[:-1])).path
    spool, _ = Spool.open(path)
    with spool:
        spool.append(whole.processes[-1])
        path.write_bytes(path.read_bytes().replace(b"time", b"tima", 1))
        with pytest.raises(StoreFault, match="was changed"):
            spool.amend(note="done")
