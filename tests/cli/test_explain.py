"""``detente explain``, as a user types it: one clear error for what cannot be asked, and the whole way once."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from detente.cli.explain import command
from detente.records.session import Session
from detente.session.request import Request
from detente.store.artefacts import Artefacts
from detente.store.bundle import write_bundle
from detente.store.lines import session_lines
from tests.explain.test_answer import session

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpt2", "jax"), "is not a question"),
        (("gpt2", "jax", "jax"), "takes as long as itself"),
        (("gpt3", "jax", "detente"), "did you mean 'gpt2'?"),
        (("gpt2", "jaxx", "detente"), "did you mean 'jax'?"),
        (("gpt2", "jax[fusion=off]", "detente"), "an arm is no stack"),
        (("gpt2", "jax", "detente", "--size", "tinny"), "did you mean 'tiny'?"),
        (("gpt2", "jax", "torch-xla"), "stacks add torch-xla"),
        (("gemm", "jax", "jax-scan"), "no repeated layers"),
        (("gpt2", "jax", "detente", "--budget", "soon"), "is no duration"),
        (("gpt2", "jax", "detente", "--align", "nothere.toml"), "nothere.toml"),
        (("--session", "20000101"), "20000101"),
    ],
)
def test_what_cannot_be_asked_is_said(detente: Run, tmp_path: Path, arguments, says: str) -> None:
    found = detente("explain", *arguments, DETENTE_HOME=str(tmp_path / "home"))
    assert found.returncode in (2, 3), found.stderr
    assert says in found.stderr and "Traceback" not in found.stderr
    assert not list(tmp_path.rglob("why.html"))


def test_without_a_session_there_is_nothing_to_explain(detente: Run, tmp_path: Path) -> None:
    found = detente("explain", DETENTE_HOME=str(tmp_path / "home"))
    assert found.returncode != 0 and "detente compare" in found.stderr


@pytest.fixture(scope="module")
def told(detente: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    pytest.importorskip("jax", reason="jax is not installed")
    folder = tmp_path_factory.mktemp("why")
    page = folder / "why.html"
    found = detente(
        *("explain", "ffn", "torch-eager", "jax", "--size", "tiny", "--blocks", "1", "--no-arms"),
        *("--format", "json", "--html", str(page)),
        timeout=600,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout), page


def test_the_whole_way(told: tuple[dict, Path]) -> None:
    document, page = told
    assert document["schema"] == "detente/explain/1"
    # One block decides nothing, and nothing is drawn of it.
    assert document["waterfall"] is None and "not settled" in document["reason"]
    assert set(document["causes"]) == {"runtime", "program", "fusion"}
    rows = {e["row"]: e for e in document["arms"]}
    assert {"detente[fusion=off]", "jax[fusion=off]"} <= rows.keys()
    for label in ("torch-eager", "jax"):
        known = document["coverage"][label]
        assert known["operations"]["name"] + known["operations"]["flow"] >= 0.9, (label, known)
        assert known["time"], label
    flops = [sum(p["flops"][k] for p in document["parts"]) for k in (0, 1)]
    assert flops[0] == flops[1] > 0
    assert page.read_text().startswith("<!doctype html>")


def test_a_stored_session_tells_the_same_and_measures_nothing(
    told: tuple[dict, Path], detente: Run, tmp_path: Path
) -> None:
    document, _ = told
    found = detente(
        *("explain", "ffn", "torch-eager", "jax", "--size", "tiny", "--session", document["session"]),
        *("--format", "json", "--html", str(tmp_path / "again.html")),
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    again = json.loads(found.stdout)
    assert again["parts"] == document["parts"] and again["coverage"] == document["coverage"]
    assert "block" not in found.stderr


# A session that somebody else measured ------------------------------------------------------------------------------


def as_file(made: Session, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(session_lines(made)))
    return path


def under_names(made: Session, stack: str, other: str) -> Session:
    """With a stack under another name."""

    def named(cell):
        return replace(cell, stack=other) if cell.stack == stack else cell

    ran = tuple(replace(p, cell=named(p.cell)) for p in made.processes)
    return replace(made, planned=tuple(map(named, made.planned)), processes=ran)


def test_a_stack_that_is_not_here_is_told_by_name(detente: Run, tmp_path: Path) -> None:
    """With names, --session laid the request out as if it were to run, and refused what is not installed."""
    file = as_file(under_names(session(tmp_path / "art"), "detente", "torch-xla"), tmp_path / "s.jsonl")
    asked = ("gpt2", "torch-xla", "jax", "--size", "paper", "--session", str(file))
    found = detente(
        *("explain", *asked, "--html", str(tmp_path / "w.html")), DETENTE_HOME=str(tmp_path / "home")
    )
    assert found.returncode == 0 and "torch-xla is 1.25x slower than jax" in found.stdout, found.stderr
    other = detente("explain", *asked[:2], "pax", *asked[3:], DETENTE_HOME=str(tmp_path / "home"))
    assert other.returncode == 2 and "has no rows of torch-xla and pax" in other.stderr


def test_a_bundles_programs_are_read(detente: Run, tmp_path: Path) -> None:
    bundle = tmp_path / "it.zip"
    write_bundle(session(tmp_path / "art"), Artefacts(tmp_path / "art"), bundle)
    page = tmp_path / "w.html"
    found = detente(
        *("explain", "--session", str(bundle), "--format", "json", "--html", str(page)),
        DETENTE_HOME=str(tmp_path / "home"),
    )
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["missing"] == {} and document["parts"] and document["findings"] and document["imported"]
    assert "Imported, not measured here" in page.read_text()


@pytest.mark.parametrize(
    "probes", [{"built": {"alias_bytes": "x", "executables": 1}}, {"built": [1]}, {"anchors": [1]}]
)
def test_evidence_that_no_worker_writes_is_no_bug_of_ours(
    detente: Run, tmp_path: Path, probes: dict[str, object]
) -> None:
    made = session(tmp_path / "art")
    built = {"built": {"alias_bytes": 9, "executables": 1}}
    ran = tuple(
        replace(
            p,
            evidence=replace(
                p.evidence, probes={**p.evidence.probes, **built, **(probes if p.cell.stack == "jax" else {})}
            ),
        )
        if p.kind == "capture"
        else p
        for p in made.processes
    )
    bundle = tmp_path / "it.zip"
    write_bundle(replace(made, processes=ran), Artefacts(tmp_path / "art"), bundle)
    found = detente(
        *("explain", "--session", str(bundle), "--html", str(tmp_path / "w.html")),
        DETENTE_HOME=str(tmp_path / "home"),
    )
    assert found.returncode == 3 and "is not what a worker writes" in found.stderr, found.stderr
    assert "Traceback" not in found.stderr


def test_a_strangers_session_runs_no_file_of_the_readers(detente: Run, tmp_path: Path) -> None:
    """A stack that a session names was asked for, and for that its file was loaded."""
    mark = tmp_path / "it-ran"
    mine = tmp_path / "train.py"
    mine.write_text(f"open({str(mark)!r}, 'w').write('x')\n")
    own = under_names(session(tmp_path / "art"), "jax", f"{mine}:Nope")
    file = as_file(own, tmp_path / "s.jsonl")
    for _ in ("there", "gone"):
        found = detente(
            *("explain", "--session", str(file), "--html", str(tmp_path / "w.html")),
            DETENTE_HOME=str(tmp_path / "home"),
        )
        assert found.returncode == 0 and "Nope" in found.stdout, found.stderr
        assert not mark.exists()
        mine.unlink(missing_ok=True)


def test_where_the_page_cannot_be_written_the_error_is_the_only_object(detente: Run, tmp_path: Path) -> None:
    file = as_file(session(tmp_path / "art"), tmp_path / "s.jsonl")
    found = detente(
        *("explain", "--session", str(file), "--format", "json", "--html", "/nonexistent/why.html"),
        DETENTE_HOME=str(tmp_path / "home"),
    )
    assert found.returncode == 2  # said before anything is asked
    assert "no folder /nonexistent" in str(json.loads(found.stdout)["error"])


@pytest.mark.parametrize(
    ("typed", "threads", "seed"),
    [((), 1, 7), (("--threads", "3"), 3, 7), (("--seed", "20260101"), 1, 20260101)],
)
def test_without_names_the_last_session_is_asked_again_as_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...], threads: int, seed: int
) -> None:
    """A gap that was found at one thread was explained at all of them."""
    made = session(tmp_path / "art", captures=False)
    settings = {**made.fingerprint.settings, "threads": 1, "seed": 7, "feed": "loader"}
    made = replace(made, fingerprint=replace(made.fingerprint, settings=settings))
    home = tmp_path / "home"
    as_file(made, home / "data" / "sessions" / f"{made.id}.jsonl")
    asked: list[Request] = []

    class Enough(Exception):
        pass

    def caught(request: Request, *rest: object) -> None:
        asked.append(request)
        raise Enough

    monkeypatch.setenv("DETENTE_HOME", str(home))
    monkeypatch.setattr("detente.explain.ask_and_answer.measured", caught)
    done = CliRunner().invoke(command, [*typed, "--html", os.devnull])
    assert isinstance(done.exception, Enough), done.output
    (request,) = asked
    assert (request.threads, request.seed, request.feed) == (threads, seed, "loader")
    assert f"seed {seed} and feed loader" in done.output
