"""A session and its captured programs in one file: the same on the other side, and nothing that a stranger put in."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabricate import make_session

from detente.records.fault import StoreFault
from detente.records.session import Session
from detente.stacks.protocol import Capture
from detente.store.artefacts import artefacts_of
from detente.store.bundle import FOLDER, SESSION, open_bundle, write_bundle
from detente.store.lines import session_lines
from detente.store.spool import read_spool
from detente.worker.artefacts import keep_programs

HLO, TEXT = os.urandom(5000), b"module @step {}\n" * 100
CAPTURES = (Capture("hlo", "step", HLO), Capture("stablehlo", "step", TEXT, {"alias_bytes": 8.0}))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """One whose processes name the two programs that a worker's job kept in ``tmp_path/here``."""
    made = make_session(blocks=2)
    programs = keep_programs(artefacts_of(tmp_path / "here").folder, CAPTURES)
    first, *rest = made.processes
    first = replace(first, evidence=replace(first.evidence, programs=programs))
    second = replace(rest[0], evidence=replace(rest[0].evidence, programs=programs[:1]))
    return replace(made, processes=(first, second, *rest[1:]))


def test_there_and_back(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "session.zip"
    written = write_bundle(session, artefacts_of(tmp_path / "here"), file)
    assert (written.programs, written.bytes, written.absent) == (2, len(HLO) + len(TEXT), 0)
    there = artefacts_of(tmp_path / "there")
    with open_bundle(file) as bundle:
        found = read_spool(bundle.session_file)
        assert bundle.keep(found, there) == 2
    assert found == session
    assert [there.read(p.sha256) for p in found.processes[0].evidence.programs] == [HLO, TEXT]
    # Where a record says that its program lies, relative to the folder, it lies there too.
    assert [(there.folder / p.path).read_bytes() for p in found.processes[0].evidence.programs] == [HLO, TEXT]


def test_the_same_session_makes_the_same_bytes(session: Session, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        write_bundle(session, artefacts_of(tmp_path / "here"), tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_program_that_is_gone_is_counted(session: Session, tmp_path: Path) -> None:
    here = artefacts_of(tmp_path / "here")
    here.path(hashlib.sha256(HLO).hexdigest()).unlink()
    written = write_bundle(session, here, tmp_path / "session.zip")
    assert (written.programs, written.absent) == (1, 1)


def test_a_program_that_changed_is_not_exported(session: Session, tmp_path: Path) -> None:
    here = artefacts_of(tmp_path / "here")
    here.path(hashlib.sha256(HLO).hexdigest()).write_bytes(b"other")
    with pytest.raises(StoreFault, match="is damaged"):
        write_bundle(session, here, tmp_path / "session.zip")
    assert not list(tmp_path.glob("*session.zip*")), "half a file is left"


def test_any_other_file_is_read_as_it_is(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(b"".join(session_lines(session)))
    with open_bundle(file) as bundle:
        assert (bundle.session_file, bundle.programs) == (file, ())


GOOD = hashlib.sha256(TEXT).hexdigest()
STRANGE: dict[str, tuple[dict[str, bytes], str]] = {
    "no session": ({FOLDER + GOOD: TEXT}, r"does not hold one session\.jsonl"),
    "a path": ({SESSION: b"{}", "../../evil": b"x"}, r"holds '../../evil'"),
    "an absolute path": ({SESSION: b"{}", "/etc/cron.d/x": b"x"}, "holds '/etc/cron.d/x'"),
    "a path below": ({SESSION: b"{}", FOLDER + "../" + GOOD: TEXT}, "which is no program's name"),
    "a program that is something else": ({SESSION: b"{}", FOLDER + GOOD: b"evil"}, "do not have that hash"),
    "a name in capitals": ({SESSION: b"{}", FOLDER + GOOD.upper(): TEXT}, "which is no program's name"),
    "a folder": ({SESSION: b"{}", FOLDER: b""}, "which is no program's name"),
}


def write_zip(file: Path, entries: list[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in entries:
            made.writestr(name, data)


@pytest.mark.parametrize("case", STRANGE)
def test_what_a_stranger_put_in_is_refused(case: str, tmp_path: Path) -> None:
    entries, says = STRANGE[case]
    write_zip(tmp_path / "x.zip", list(entries.items()))
    with pytest.raises(StoreFault, match=says), open_bundle(tmp_path / "x.zip"):
        raise AssertionError("it was taken")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", [SESSION, FOLDER + GOOD])
def test_a_name_twice_is_refused(name: str, tmp_path: Path) -> None:
    write_zip(tmp_path / "x.zip", [(SESSION, b"{}"), (FOLDER + GOOD, TEXT), (name, TEXT)])
    with pytest.raises(StoreFault, match=r"twice|one session"), open_bundle(tmp_path / "x.zip"):
        raise AssertionError("it was taken")


def test_what_unpacks_to_too_much_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    zeros = bytes(8 << 20)
    write_zip(tmp_path / "x.zip", [(SESSION, b"{}"), (FOLDER + hashlib.sha256(zeros).hexdigest(), zeros)])
    assert (tmp_path / "x.zip").stat().st_size < 1 << 20
    with pytest.raises(StoreFault, match="1,000,000 are allowed"), open_bundle(tmp_path / "x.zip", 1_000_000):
        raise AssertionError("it was taken")


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9, 0.999])
def test_a_torn_or_damaged_zip_is_refused(at: float, session: Session, tmp_path: Path) -> None:
    file = tmp_path / "session.zip"
    write_bundle(session, artefacts_of(tmp_path / "here"), file)
    data = file.read_bytes()
    for broken in (data[: int(at * len(data))], damaged(data, int(at * len(data)))):
        file.write_bytes(broken)
        try:
            with open_bundle(file) as bundle:
                found = read_spool(bundle.session_file)
        except StoreFault as fault:
            assert str(file) in fault.message and fault.hint
        else:
            # A byte that carries nothing (a date, an attribute): then everything is what it was.
            assert found == session


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def test_the_command_line_carries_them(detente: Any, session: Session, tmp_path: Path) -> None:
    """Export in one home, import in another, from the file that the first one printed."""
    here, there = tmp_path / "one", tmp_path / "two"
    for process in session.processes[:1]:
        keep_programs(here / "data/artefacts", CAPTURES)
        assert process.evidence.programs
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(b"".join(session_lines(session)))
    assert detente("import", str(lines), DETENTE_HOME=str(here)).returncode == 0
    out = tmp_path / "out.zip"
    done = detente("export", session.id, "--artefacts", "-o", str(out), DETENTE_HOME=str(here))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(out) and "2 programs of 0.0 MiB" in done.stderr
    done = detente("import", str(out), DETENTE_HOME=str(there))
    assert done.returncode == 0 and done.stdout.strip() == session.id, done.stderr
    assert "2 captured programs" in done.stderr
    kept = artefacts_of(there / "data")
    assert [kept.read(p.sha256) for p in session.processes[0].evidence.programs] == [HLO, TEXT]
    done = detente("audit", str(out), "--format", "json", DETENTE_HOME=str(there))
    assert json.loads(done.stdout)["session"] == session.id
    done = detente("export", session.id, "--artefacts", "--as", "pyperf", DETENTE_HOME=str(there))
    assert done.returncode == 2 and "our own format" in done.stderr
