"""Comparing with a stored text. ``UPDATE_GOLDEN=1`` writes it anew; the difference is then for the
reviewer."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def assert_golden(text: str, name: str) -> None:
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; UPDATE_GOLDEN=1 writes it anew"
