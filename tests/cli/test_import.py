"""A stranger's file: one refusal that names the field and the value, or a session that is marked everywhere."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
from fabricate import make_session

from detente.records.session import Session
from detente.store.lines import session_lines
from detente.store.sessions import open_store
from detente.store.spool import Spool, read_spool

MARK = "not measured here"
ID = make_session().id


def lines(session: Session | None = None) -> list[dict[str, Any]]:
    return [json.loads(x) for x in session_lines(session or make_session(5))]


def write(path: Path, found: list[dict[str, Any]]) -> Path:
    # As a stranger writes it: json.dumps lets NaN, Infinity and lone surrogates through.
    path.write_text("".join(json.dumps(x) + "\n" for x in found))
    return path


def put(found: list[dict[str, Any]], line: int, path: str, value: Any) -> list[dict[str, Any]]:
    place: Any = found[line]
    *way, last = path.split(".")
    for key in way:
        place = place[int(key) if key.isdigit() else key]
    place[int(last) if last.isdigit() else last] = value
    return found


@pytest.fixture
def at(detente: Any, tmp_path: Path) -> Callable[..., Any]:
    """The command line in a home of its own."""
    return lambda *arguments, **environment: detente(
        *arguments, DETENTE_HOME=str(tmp_path / "home"), **environment
    )


def stored(tmp_path: Path) -> list[str]:
    return sorted(
        str(p.relative_to(tmp_path / "home"))
        for p in (tmp_path / "home").rglob("*")
        if p.is_file() and "detente.db" not in p.name
    )


def rows(tmp_path: Path) -> int:
    with open_store(tmp_path / "home" / "data") as store:
        return len(store.counts())


DEEP: Any = 1
for _ in range(60):
    DEEP = {"a": DEEP}

# (line, field, value, what the refusal names)
MALFORMED = [
    (0, "id", "../../evil", ("Session.id", "../../evil")),
    (0, "id", "/etc/passwd", ("Session.id", "/etc/passwd")),
    (0, "id", "x" * 10_000, ("Session.id", "10000 characters")),
    (0, "id", "séance", ("Session.id", "séance")),
    (0, "id", "latest", ("Session.id", "latest")),
    (0, "id", "", ("Session.id", "''")),
    (0, "id", "a\nb", ("Session.id",)),
    (0, "started", 1e300, ("Session.started", "1e+300")),
    (0, "started", -1.0, ("Session.started", "-1.0")),
    (0, "started", 10**400, ("Session.started", "larger than any float")),
    (0, "started", "yesterday", ("Session.started", "yesterday")),
    (0, "ended", 1e300, ("Session.ended", "1e+300")),
    (0, "imported", "never", ("Session.imported", "never")),
    (0, "looked", -1, ("Session.looked", "-1")),
    (0, "looked", "often", ("Session.looked", "often")),
    (0, "planned.0.contract.precision", "fp7", ("planned[0].contract.precision", "fp7")),
    (0, "planned.0.label", "a/b", ("planned[0].label", "a/b")),
    (0, "planned.0.label", "\x1b[2J", ("planned[0].label", "control")),
    (0, "planned.0.label", "x" * 5_000, ("planned[0].label", "5000 characters")),
    (0, "planned.1", None, ("planned[1]", "None")),
    (0, "fingerprint.settings", {"workloads": []}, ("settings", "workloads")),
    (0, "fingerprint.settings", {"workloads": {"g": {"flops": 1e400}}}, ("line 1",)),
    (0, "fingerprint.settings", {"blocks": "five"}, ("settings", "five")),
    (0, "fingerprint.machine", DEEP, ("machine", "deeper than 24")),
    (0, "schema", "detente/session/2", ("newer detente",)),
    (0, "schema", "detente/session/99999999999999999999", ("newer detente",)),
    (1, "schema", "detente/nothing/1", ("line 2", "detente/nothing/1")),
    (1, "schema", None, ("line 2",)),
    (1, "kind", "steal", ("Process.kind", "steal")),
    (1, "block", -2, ("Process.block", "-2")),
    (1, "wall_s", -3.0, ("Process.wall_s", "-3.0")),
    (1, "foreign", 7.0, ("Process.foreign", "7.0")),
    (1, "evidence.samples.0.wall_ns", 0, ("samples[0].wall_ns", "0")),
    (1, "evidence.samples.0.wall_ns", 1e400, ("line 2", "Infinity is not JSON")),
    (1, "evidence.samples.0.wall_ns", -5, ("samples[0].wall_ns", "-5")),
    (1, "evidence.samples.0.wall_ns", 10**30, ("samples[0].wall_ns",)),
    (1, "evidence.samples.0.steps", 0, ("samples[0].steps", "0")),
    (1, "evidence.samples.0.steps", True, ("samples[0].steps", "True")),
    (1, "evidence.first_s", float("nan"), ("line 2", "NaN is not JSON")),
    (1, "evidence.first_s", "nan", ("evidence.first_s", "nan")),
    (1, "evidence.memory", {"process_peak": -1}, ("evidence.memory",)),
    (1, "evidence.status", "splendid", ("evidence.status", "splendid")),
    (1, "evidence.reason", "x" * 30_000, ("evidence.reason", "30000 characters")),
    (1, "evidence.probes", {"a": [[0] * 1000] * 1000}, ("evidence.probes", "values")),
    (1, "evidence.probes", DEEP, ("evidence.probes", "deeper than 24")),
    (1, "evidence.errors.0.err", -1.0, ("errors[0].err", "-1.0")),
    (1, "cell.contract.region", "everything", ("contract.region", "everything")),
]


@pytest.mark.parametrize(
    ("line", "field", "value", "says"),
    MALFORMED,
    ids=[f"{f}-{i}" for i, (_, f, _, _) in enumerate(MALFORMED)],
)
def test_a_malformed_value_is_one_refusal(
    line: int, field: str, value: Any, says: tuple[str, ...], tmp_path: Path
) -> None:
    """Through the same reader that `import`, `report FILE` and `audit FILE` use."""
    from detente.records.fault import StoreFault

    path = write(tmp_path / "file.jsonl", put(lines(), line, field, value))
    with pytest.raises(StoreFault) as caught:
        read_spool(path)
    assert caught.value.exit_code == 3
    for part in says:
        assert part in caught.value.message, caught.value.message
    assert len(caught.value.message) < 600


@pytest.mark.parametrize("index", [0, 7, 13, 29, 32])
def test_the_command_refuses_it_with_3_and_keeps_nothing(index: int, at: Any, tmp_path: Path) -> None:
    line, field, value, says = MALFORMED[index]
    path = write(tmp_path / "file.jsonl", put(lines(), line, field, value))
    for command in ("import", "report", "audit", "export"):
        done = at(command, str(path))
        assert done.returncode == 3, (command, done.stderr)
        assert says[0] in done.stderr and "bug" not in done.stderr and "Traceback" not in done.stderr
        assert "\x1b" not in done.stderr
    assert stored(tmp_path) == []


def data(found: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(x) + "\n" for x in found).encode()


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "it is empty"),
    "gzip": (lambda: gzip.compress(data(lines())), "compressed with gzip"),
    "byte order mark": (lambda: b"\xef\xbb\xbf" + data(lines()), "byte order mark"),
    "utf-16": (lambda: data(lines()).decode().encode("utf-16"), "byte order mark"),
    "binary": (lambda: os.urandom(4000), "is not a session file"),
    "two sessions": (lambda: data([*lines(), *lines()]), "a second session"),
    "the same process twice": (lambda: data([*lines(), lines()[1]]), "repeats the process of line 2"),
    "the same cell planned twice": (
        lambda: data(put(lines(), 0, "planned", lines()[0]["planned"] * 2)),
        "planned twice",
    ),
    "deep nesting": (
        lambda: data(lines()) + b'{"schema":' + b"[" * 200_000 + b"\n{}\n",
        "not a line of a session",
    ),
    "one endless line": (lambda: b'{"schema":"detente/session/1"' + b" " * (17 << 20), "longer than 16 MiB"),
    "processes in the head": (
        lambda: data(put(lines(), 0, "processes", lines()[1:2])),
        "each is a line of its own",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_what_is_no_session_is_one_refusal(what: str, at: Any, tmp_path: Path) -> None:
    make, says = FILES[what]
    path = tmp_path / "file.jsonl"
    path.write_bytes(make())
    done = at("import", str(path))
    assert done.returncode == 3, done.stderr
    assert says in done.stderr and "bug" not in done.stderr
    assert stored(tmp_path) == []


def test_evidence_that_no_rule_can_read_is_the_files_fault(at: Any, tmp_path: Path) -> None:
    """The free-form part has no schema: the session is judged once before it is let in."""
    found = lines()
    for line in found[1:]:
        line["evidence"]["probes"] = {"peak": 7, "threads": "many", "slope": [], "region": 3, "precision": []}
    done = at("import", str(write(tmp_path / "file.jsonl", found)))
    assert done.returncode == 3, done.stderr
    assert "cannot be judged" in done.stderr and "bug" not in done.stderr
    assert stored(tmp_path) == []


def test_a_file_that_is_too_large_is_refused_before_it_is_read(at: Any, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(data(lines()))
    with path.open("r+b") as file:
        file.truncate(65 << 20)  # a hole: nothing is written
    done = at("import", str(path))
    assert done.returncode == 3
    assert "65 MiB, and 64 MiB are read" in done.stderr and "--max-size" in done.stderr
    small = write(tmp_path / "small.jsonl", lines())
    assert "is too large" in at("import", str(small), "--max-size", "1K").stderr
    assert at("import", str(small), "--max-size", "1M").returncode == 0
    assert at("import", str(small), "--max-size", "much").returncode == 2


def test_a_device_is_not_read_and_a_pipe_is(at: Any, tmp_path: Path) -> None:
    for device in ("/dev/zero", "/dev/null"):
        done = at("import", device)
        assert (done.returncode, "is not a file" in done.stderr) == (3, True)
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(data(lines())))
    writer.start()
    assert at("import", str(pipe)).returncode == 0
    writer.join()


def test_an_imported_session_is_marked_wherever_it_is_shown(at: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "file.jsonl", lines(make_session(6)))
    done = at("import", str(path))
    assert (done.returncode, done.stdout.strip()) == (0, ID), done.stderr
    assert MARK in done.stderr
    # It keeps a spool like a measured one.
    assert read_spool(tmp_path / "home/data/sessions" / f"{ID}.jsonl").imported is not None
    page = tmp_path / "page.html"
    assert MARK in at("report", "--html", str(page)).stdout
    assert MARK in page.read_text()
    for command in (
        ("report", "--format", "md"),
        ("report", str(path)),
        ("audit",),
        ("history", "gpt2"),
        ("sessions", "list"),
        ("sessions", "show"),
        ("history", "--sessions"),
    ):
        done = at(*command)
        assert MARK in done.stdout, (command, done.stdout, done.stderr)
    assert json.loads(at("report", "--format", "json").stdout)["session"]["imported"] > 0
    assert json.loads(at("audit", "--format", "json").stdout)["imported"] > 0
    assert json.loads(at("sessions", "list", "--format", "json").stdout)["sessions"][0]["imported"] > 0
    points = json.loads(at("history", "--format", "json").stdout)["series"][0]["points"]
    assert points[0]["imported"] > 0


def test_a_file_cannot_say_that_it_was_measured_here(at: Any, tmp_path: Path) -> None:
    """Whatever its head says; and what others measured is never continued."""
    path = write(tmp_path / "file.jsonl", put(lines(), 0, "imported", None))
    assert at("import", str(path)).returncode == 0
    assert MARK in at("report").stdout
    done = at("compare", "gemm", "--resume", ID)
    assert done.returncode == 2 and "cannot be continued" in done.stderr


def test_the_command_of_a_stranger_is_shown_as_his(at: Any, tmp_path: Path) -> None:
    command = ["detente", "compare", "gpt2; rm -rf ~", "\x1b]0;owned\x07", "\u202egnp.exe"]
    path = write(tmp_path / "file.jsonl", put(lines(), 0, "command", command))
    told = at("report", str(path)).stdout
    assert "Run it again" not in told
    assert "The file says that this made it" in told and "read it before you run it" in told
    assert "\x1b" not in told and "\u202e" not in told and "\x07" not in told


HOSTILE = "\x1b[2J\x1b]0;owned\x07red\u202eder\r\nforged: line\x9b31m\ud800"


def test_nothing_of_a_stranger_steers_the_terminal_or_ends_the_process(at: Any, tmp_path: Path) -> None:
    """Reasons, notes, machine, versions, parameter names: texts are let in as they are, and cleaned where they are
    shown."""
    found = lines(make_session(6))
    found[0]["note"] = HOSTILE
    found[0]["skipped"] = {"gpt2/tiny/train-step/fp32/cpu/torch-xla": HOSTILE}
    found[0]["fingerprint"]["machine"] = {"processor": HOSTILE, HOSTILE: 1}
    for line in found[1:]:
        line["evidence"]["versions"] = {"jax": HOSTILE}
        line["evidence"]["memory"] = {HOSTILE: 1 << 30, "process_peak": 2 << 30}
        line["evidence"]["errors"][0]["name"] = HOSTILE
    found[-1]["evidence"] |= {"status": "failed", "reason": HOSTILE}
    path = write(tmp_path / "file.jsonl", found)
    assert at("import", str(path)).returncode == 0
    page = tmp_path / "page.html"
    for command in (
        ("report", "--full", "--html", str(page)),
        ("report", "--format", "md"),
        ("audit", "--all"),
        ("history",),
        ("sessions", "list"),
        ("sessions", "show"),
        ("export", "-o", str(tmp_path / "\x1b[31mout.jsonl")),
    ):
        done = at(*command)
        assert done.returncode in (0, 1), (command, done.stderr)
        for stream in (done.stdout, done.stderr):
            bad = [c for c in stream if not c.isprintable() and c != "\n"]
            assert not bad, (command, bad)
            assert not any(x.startswith("forged") for x in stream.splitlines()), command
    assert "\x1b" not in page.read_text()


def test_a_label_with_control_characters_that_is_stored_already_is_drawn(tmp_path: Path) -> None:
    """vl-convert ends the process (SIGABRT) over them: the chart is cleaned, whoever let them in."""
    from detente.report.charts import draw
    from detente.report.page import Chart, Mark

    for label in (HOSTILE, "x" * 1_000_000, "\x00", "\ud800", ""):
        drawing = draw(Chart("ratios", label, (Mark(label, 1.5, 1.4, 1.6, label, "good", label),), 0.02))
        assert drawing.wide.startswith("<svg") and "\x1b" not in drawing.wide


def test_two_imports_of_one_id(at: Any, tmp_path: Path) -> None:
    whole = make_session(6)
    short = replace(whole, processes=whole.processes[:9])
    first = write(tmp_path / "first.jsonl", lines(short))
    assert at("import", str(first)).returncode == 0
    again = at("import", str(first))
    assert again.returncode == 0 and "0 processes" in again.stderr
    # A longer export of the same session adds what is new; one that says otherwise of a process is refused.
    changed = put(lines(whole), 1, "evidence.samples.0.wall_ns", 5)
    done = at("import", str(write(tmp_path / "changed.jsonl", changed)))
    assert done.returncode == 3 and "with other values" in done.stderr
    done = at("import", str(write(tmp_path / "whole.jsonl", lines(whole))))
    assert done.returncode == 0 and f"{len(whole.processes) - 9} processes" in done.stderr
    assert len(read_spool(tmp_path / f"home/data/sessions/{ID}.jsonl").processes) == len(whole.processes)
    other = write(tmp_path / "other.jsonl", lines(replace(whole, started=whole.started - 5)))
    done = at("import", str(other))
    assert done.returncode == 3 and "another session with the id" in done.stderr
    assert rows(tmp_path) == 1


def test_a_file_cannot_add_to_a_session_that_was_measured_here(at: Any, tmp_path: Path) -> None:
    """Also while it is being measured: its writer holds the spool."""
    whole = make_session(6)
    with Spool.create(tmp_path / "home/data/sessions", replace(whole, processes=whole.processes[:9])):
        done = at("import", str(write(tmp_path / "file.jsonl", lines(whole))))
        assert done.returncode == 3 and "was measured here" in done.stderr
        done = at(
            "import",
            str(write(tmp_path / "same.jsonl", lines(replace(whole, processes=whole.processes[:4])))),
        )
        assert done.returncode == 0 and "nothing new" in done.stderr
        assert len(read_spool(tmp_path / f"home/data/sessions/{ID}.jsonl").processes) == 9


def test_latest_is_what_began_last_and_not_what_the_clock_on_the_wall_says(at: Any, tmp_path: Path) -> None:
    """The clock was put back between the two, or one ran in a container: the later one has the smaller name."""
    folder = tmp_path / "home/data/sessions"
    for id, started in (("20261025-025500-aaaa", 1.7929e9), ("20261025-021500-bbbb", 1.7929e9 + 1200.0)):
        Spool.create(folder, make_session(5, id=id, started=started)).close()
    assert "20261025-021500-bbbb" in at("audit").stdout.splitlines()[0]


def test_latest_is_what_was_measured_here(at: Any, tmp_path: Path) -> None:
    Spool.create(tmp_path / "home/data/sessions", make_session(5)).close()
    path = write(tmp_path / "file.jsonl", lines(make_session(5, id="zzz-newest-of-all")))
    assert at("import", str(path)).returncode == 0
    assert f"session {ID}" in at("report").stdout


def test_a_truncated_file_is_imported_without_its_last_line_and_says_so(at: Any, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(data(lines())[:-30])
    done = at("import", str(path))
    assert done.returncode == 0
    assert "line 16 is not a line of a session" in done.stderr and "left out" in done.stderr


def test_a_gate_never_compares_with_what_was_imported(at: Any, tmp_path: Path) -> None:
    """A file that claims this machine's fingerprint and half of its times would fail every gate after it."""
    fast = make_session(6, id="forged", scale=0.5, started=1_700_000_000.0)
    assert at("import", str(write(tmp_path / "file.jsonl", lines(fast)))).returncode == 0
    Spool.create(tmp_path / "home/data/sessions", make_session(6)).close()
    done = at("history", "--gate")
    assert done.returncode == 0, done.stdout
    assert "NOT COMPARABLE" in done.stdout and "one was imported" in done.stdout
