"""README.md says where each point of the suite is tested: every name in it exists, and every case is in it."""

from __future__ import annotations

import re
from pathlib import Path

from suite.table import BY_NAME

HERE = Path(__file__).parent
TEXT = (HERE / "README.md").read_text()


def test_every_test_that_is_named_exists():
    named = re.findall(r"`([\w/.]+\.py)::(\w+)`", TEXT)
    assert len(named) > 50
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^def {test}\(", (HERE / file).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_every_row_has_a_test_and_every_case_has_a_row():
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "case | tests" not in line]
    assert len(rows) > 40 and all(".py::test_" in row for row in rows)
    cases = set(re.findall(r'case "([^"]+)"', TEXT))
    assert cases == set(BY_NAME), cases ^ set(BY_NAME)
