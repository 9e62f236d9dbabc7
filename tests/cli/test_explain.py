"""``detente explain``, as a user types it: one clear error for what cannot be asked, and the whole way once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpt2", "jax"), "is not a question"),
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
