"""`detente compare --resume` alone goes on: everything that was asked for is read from the session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detente.records.folders import data_folder
from detente.records.job import Sampling
from detente.records.session import Fingerprint, Session
from detente.session.asked import settings_of
from detente.session.continued import request_of
from detente.session.layout import lay_out
from detente.session.request import Request

ASKED = (
    "compare",
    "gemm",
    "--stacks",
    "torch-eager",
    "--size",
    "tiny",
    "--blocks",
    "2",
    "--no-aa",
    "--no-memory",
)


@pytest.fixture(scope="module")
def cut(detente: Any) -> Path:
    """A session of two blocks whose second one never ran: its spool without the last process and the end."""
    done = detente(*ASKED, "--format", "json")
    assert done.returncode == 0, done.stderr
    spool = data_folder() / "sessions" / f"{json.loads(done.stdout)['session']['id']}.jsonl"
    cut_short(spool)
    return spool


def cut_short(spool: Path) -> None:
    lines = spool.read_bytes().splitlines(keepends=True)
    timed = [i for i, line in enumerate(lines) if b'"kind":"time"' in line]
    assert len(timed) == 2
    spool.write_bytes(b"".join(lines[: timed[-1]]))


def test_resume_alone_measures_what_is_missing(detente: Any, cut: Path) -> None:
    done = detente("compare", "--resume", cut.stem, "--format", "json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["session"]["id"] == cut.stem and result["session"]["blocks"] == 2
    assert "block 2" in done.stderr and "block 1 took" not in done.stderr
    assert result["cells"][0]["steady_s"]["processes"] == 2


def test_without_an_id_it_is_the_newest_session(detente: Any, cut: Path) -> None:
    cut_short(cut)
    done = detente("compare", "--resume", "--format", "json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["session"]["id"] == cut.stem and result["session"]["blocks"] == 2


def test_another_question_is_refused_with_what_differs(detente: Any, cut: Path) -> None:
    done = detente("compare", "--resume", cut.stem, "--seed", "7")
    assert done.returncode == 2 and "settings seed: 20260101 -> 7" in done.stderr, done.stderr


def test_no_workload_and_no_resume_says_what_to_type(detente: Any) -> None:
    done = detente("compare")
    assert done.returncode == 2 and "detente compare gpt2" in done.stderr


@pytest.mark.parametrize(
    "asked",
    [
        Request(
            ("gpt2", "gemm"), ("torch-eager", "jax"), "tiny", "gradient", "bf16", budget_s=600.0, aa=False
        ),
        Request(
            ("ffn",), feed="loader", blocks=3, memory=False, memory_cap=2**31, sampling=Sampling(samples=3)
        ),
        Request(("gemm",), threads=1, options={"a": [1, 2]}),
    ],
    ids=["many", "loader", "options"],
)
def test_a_request_comes_back_from_its_session(asked: Request) -> None:
    layout = lay_out(asked)
    settings = settings_of(asked, layout)
    session = Session("x", 0.0, (), Fingerprint({}, json.loads(json.dumps(settings)), ""), layout.cells)
    again = request_of(session)
    assert settings_of(again, lay_out(again)) == settings
    assert again.workloads == asked.workloads
