"""Standard output that is closed, full or read no further; disks that are full or cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
from fabricate import make_session

from detente.records.session import Session
from detente.session.proofs import keep_proof, read_proof
from detente.store.spool import Spool, read_spool

TINY = "compare gemm --size tiny --stacks torch-eager --blocks 1 --no-aa --no-memory"


@pytest.fixture
def stored(tmp_path: Path) -> Session:
    session = make_session(6)
    Spool.create(tmp_path / "home" / "data" / "sessions", session).close()
    return session


def shell(tmp_path: Path, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which ``detente`` is ours; its exit code is that of detente, not of the pipe's end."""
    command = f'detente() {{ "{sys.executable}" -m detente "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "DETENTE_HOME": str(tmp_path / "home"), **environment},
    )


REPORTS = ("report", "report --format json", "audit", "sessions list", "history", "export -o {out}")


@pytest.mark.parametrize("command", REPORTS)
def test_full_output_is_3_and_says_so(command: str, stored: Session, tmp_path: Path) -> None:
    done = shell(tmp_path, f"detente {command.format(out=tmp_path / 'o.jsonl')} > /dev/full")
    assert done.returncode == 3, done.stderr
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert (
        "bug" not in done.stderr and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    )


@pytest.mark.parametrize("command", REPORTS)
def test_closed_output_is_3_and_says_so(command: str, stored: Session, tmp_path: Path) -> None:
    done = shell(tmp_path, f"detente {command.format(out=tmp_path / 'o.jsonl')} >&-")
    assert done.returncode == 3 and "standard output is closed" in done.stderr, done.stderr


@pytest.mark.parametrize("command", ["report --full", "rule P1", "--help", "report --format json"])
def test_a_reader_that_goes_away_is_no_error(command: str, stored: Session, tmp_path: Path) -> None:
    done = shell(tmp_path, f'detente {command} | head -c 1 > /dev/null; exit "${{PIPESTATUS[0]}}"')
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_error_output_does_not_reach_the_result(stored: Session, tmp_path: Path) -> None:
    done = shell(
        tmp_path, "detente export -o out.jsonl 2>&-; rm -f out.jsonl; detente report --format json 2>&-"
    )
    assert json.loads(done.stdout.split("\n", 1)[1])["schema"] == "detente/compare/1"
    assert shell(tmp_path, "detente nonsense 2>&-").stdout == ""
    assert shell(tmp_path, "detente report --format json 2> /dev/full").returncode == 0


def test_a_comparison_whose_output_is_lost_is_kept(tmp_path: Path, home: Path) -> None:
    here = {"DETENTE_HOME": str(home)}  # where weights are prepared
    done = shell(tmp_path, f"detente {TINY} > /dev/full", **here)
    assert done.returncode == 3, done.stderr
    assert "detente report" in done.stderr
    told = shell(tmp_path, "detente report --format json", **here)
    assert json.loads(told.stdout)["session"]["blocks"] == 1


@pytest.mark.parametrize("part", ["cache", "state"])
def test_a_folder_that_cannot_be_written_is_3_and_names_itself(part: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # A file in its place refuses root too, whom a read-only folder would not.
    (home / part).write_text("")
    done = shell(tmp_path, f"detente {TINY} --format json")
    assert done.returncode == 3, done.stderr
    error = json.loads(done.stdout)["error"]
    assert str(home / part) in error["message"] and "DETENTE_HOME" in error["hint"], error


def test_a_cache_disk_that_fills_up_stops_the_session_and_keeps_it(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse what is larger than 100 KB, as a full disk does: the weights are."""
    done = shell(tmp_path, f"ulimit -f 100; detente {TINY.replace('gemm', 'ffn')} --format json")
    assert done.returncode == 3, done.stderr + done.stdout
    error = json.loads(done.stdout)["error"]
    assert "could not write" in error["message"] or "cannot write" in error["message"], error
    assert "bug" not in done.stderr
    (spool,) = (tmp_path / "home/data/sessions").glob("*.jsonl")
    assert read_spool(spool).id == spool.stem
    # With room again it goes on.
    done = shell(tmp_path, f"detente {TINY.replace('gemm', 'ffn')} --format json --resume")
    assert json.loads(done.stdout)["session"]["id"] == spool.stem, done.stderr


def test_a_proof_that_cannot_be_cached_costs_nothing_else(tmp_path: Path) -> None:
    process: Any = make_session(1).processes[0]
    (tmp_path / "file").write_text("")
    assert "cannot be cached" in keep_proof(tmp_path / "file" / "proof.json", process)
    assert keep_proof(tmp_path / "proofs" / "proof.json", process) == ""
    assert read_proof(tmp_path / "proofs" / "proof.json") == process
    # Torn by an older version that wrote in place: made again, never a crash.
    text = (tmp_path / "proofs" / "proof.json").read_text()
    for torn in ("", text[:100], "[]", text.replace('"wall_ns":', '"wall_ns":-')):
        (tmp_path / "proofs" / "proof.json").write_text(torn)
        assert read_proof(tmp_path / "proofs" / "proof.json") is None


def test_it_runs_where_standard_output_is_no_file() -> None:
    """As under a notebook, which puts an object of its own there."""
    code = (
        "import contextlib, io\nfrom detente.cli import main\nheard = io.StringIO()\n"
        "with contextlib.redirect_stdout(heard), contextlib.suppress(SystemExit): main(['--help'])\n"
        "assert 'compare' in heard.getvalue()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
