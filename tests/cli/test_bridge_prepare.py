"""``detente bridge prepare``: what a first step would build and measure, and what it says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def prepare(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {"XDG_CACHE_HOME": str(folder), "DETENTE_HOME": str(folder / "home"), **variables}
    kept = {k: v for k, v in os.environ.items() if k != "DETENTE_KERNELS"}
    return subprocess.run(
        [sys.executable, "-m", "detente", "bridge", "prepare", *arguments],
        capture_output=True, text=True, check=False, timeout=300, env=kept | own,
    )  # fmt: skip


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_everything_that_is_decided_is_measured_once_and_anew_when_asked(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    first = told(prepare(tmp_path, "--format", "json"))
    if first["why"]:
        pytest.skip(first["why"])
    assert first["schema"] == "detente/bridge-prepare/1" and Path(first["file"]).is_file()
    from detente.bridge.kernels.trials import DECIDED

    assert {of: set(leads) for of, leads in first["leads"].items()} == {
        of: set(k) for of, k in DECIDED.items()
    }
    assert Path(first["folder"]) == tmp_path / "detente/kernels"
    assert told(prepare(tmp_path, "--format", "json")) == first, "remembered"
    again = told(prepare(tmp_path, "--again", "--format", "json"))
    assert again["leads"] != first["leads"] and {**again, "leads": 0} == {**first, "leads": 0}


@pytest.mark.long
def test_a_reader_is_told_what_is_called(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    kernels = tmp_path / "detente/kernels"
    if (why := told(prepare(tmp_path, "--format", "json"))["why"]) != "":
        pytest.skip(why)
    (file,) = kernels.glob("leads-convolutions-*.json")
    for lead, what in ((1.05, "called"), (1.04, "XLA's own")):
        file.write_text(json.dumps({"leads": {"convolutions": lead}, "patience": 8}))
        done = prepare(tmp_path)
        line = next(x for x in done.stdout.splitlines() if x.strip().startswith("convolutions"))
        assert line.split(maxsplit=2) == ["convolutions", f"{lead:.2f}", what], done.stdout


def test_who_declined_is_told_so(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    done = prepare(tmp_path, DETENTE_KERNELS="0")
    assert (
        done.stdout == "The bridge calls no kernels here: DETENTE_KERNELS is 0. Its steps are XLA's alone.\n"
    )


def test_who_wants_every_call_is_told_no_figure_that_nobody_measured(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    found = told(prepare(tmp_path, "--format", "json", DETENTE_KERNELS="1"))
    if found["why"]:
        pytest.skip(found["why"])
    assert not found["measured"] and found["leads"] == {} and not list(tmp_path.rglob("leads-*"))


@pytest.mark.long
def test_what_is_remembered_stays_where_nothing_is_measured_anew(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    if (why := told(prepare(tmp_path, "--format", "json"))["why"]) != "":
        pytest.skip(why)
    before = {file: file.read_text() for file in tmp_path.rglob("leads-*")}
    assert len(before) == 4
    for declined in ("0", "1"):
        prepare(tmp_path, "--again", DETENTE_KERNELS=declined)
        assert {file: file.read_text() for file in tmp_path.rglob("leads-*")} == before


def test_lines_say_what_was_not_measured_and_round_nothing_up() -> None:
    from detente.report.kernels_page import kernels_lines

    found: dict[str, Any] = {
        "why": "", "file": "/a.so", "measured": True, "wins": 1.05, "folder": "",
        "leads": {"attention": {"attention": 1.0499}}, "left": {"convolutions": "LookupError: none"},
    }  # fmt: skip
    lines = [" ".join(line.split()) for line in kernels_lines(found)]
    assert "attention 1.04 XLA's own" in lines and "convolutions – XLA's own: LookupError: none" in lines
    assert lines[-1] == "Remembered nowhere: no folder can be had."
