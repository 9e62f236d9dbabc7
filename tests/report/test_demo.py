"""A stored session is told where no framework is installed: `make demo`, and a session from another machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "docs" / "results" / "demo" / "session.jsonl"
FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "optax", "transformers", "torch_xla", "tensorflow", "keras")

# A finder that stands before all others: importing a framework fails as it does where it is not installed.
BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {FRAMEWORKS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from detente.cli import main
main(sys.argv[1:])
"""


def detente(tmp_path: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "DETENTE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", BLOCK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def session(tmp_path):
    """A made-up session, written as another machine would have exported it."""
    sys.path.insert(0, str(ROOT / "tests" / "store"))
    from fabricate import make_session

    from detente.store.files import export_session

    export_session(make_session(6), tmp_path / "session.jsonl")
    return tmp_path / "session.jsonl"


def test_report_of_a_file(tmp_path, session):
    text = detente(tmp_path, "report", str(session), "--html", str(tmp_path / "report.html"))
    assert "jax is 1.39x faster than torch-eager." in text
    assert "1.39x faster" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (tmp_path / "home").exists(), "telling a file must not make a store"


def test_imported_it_is_in_the_history(tmp_path, session):
    detente(tmp_path, "import", str(session))
    assert "20261121T090000-fabricated" in detente(tmp_path, "history", "gpt2")
    assert "jax is 1.39x faster" in detente(tmp_path, "report", "latest")


@pytest.mark.skipif(not DEMO.exists(), reason="docs/results/demo/session.jsonl is not recorded yet")
def test_the_demo(tmp_path):
    text = detente(tmp_path, "report", str(DEMO), "--html", str(tmp_path / "report.html"))
    assert "fabricated" not in text, "the demo must be a real session"
    assert "gpt2" in text and (tmp_path / "report.html").stat().st_size > 20_000
