"""The bridge's pages say what is so: their code runs, prints what they show, and names what there is."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import quick_xla

DOCS = Path(__file__).parents[2] / "docs"
RUN = Path(__file__).parent / "run_page.py"
PAGES = ("bridge-from-scratch.md", "bridge.md")


@pytest.mark.parametrize("name", [pytest.param(PAGES[0], marks=pytest.mark.matrix), *PAGES[1:]])
def test_the_page_runs_and_prints_what_it_shows(name, tmp_path):
    command = [sys.executable, "-W", "ignore", str(RUN), str(DOCS / name)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env={**os.environ, "XLA_FLAGS": quick_xla.FLAGS},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_bridge_from_scratch_has_about_200_lines():
    """Without the model that it carries, the data, and the runs that show it."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / PAGES[0]).read_text(encoding="utf-8"), re.DOTALL)
    demonstrated = {"Block", "Model", "Held", "loss", "data", "adamw", "zeros", "distance"}
    lines = 0
    for block in blocks:
        for node in ast.parse(block).body:
            own = isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in demonstrated
            table = isinstance(node, ast.AugAssign | ast.Import | ast.ImportFrom)
            text = ast.get_source_segment(block, node) or ""
            lines += sum(1 for line in text.splitlines() if line.strip()) if own or table else 0
    assert 150 <= lines <= 220, lines
    assert "detente" not in "".join(blocks)
