"""docs/schemas.md lists the schemas that the code writes, all of them and no other; pages that the code names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/schemas.md").read_text(encoding="utf-8")
NAME = re.compile(r"detente/[a-z-]+/\d+")
SOURCES = sorted((ROOT / "src/detente").rglob("*.py"))


def written() -> set[str]:
    """Schema names in string constants that are nothing else: docstrings speak of schemas, constants write them."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                found.add(node.value)
    return found


def test_the_code_writes_what_the_page_lists() -> None:
    listed = re.findall(r"^\| `(detente/[a-z-]+/\d+)` \|", PAGE, re.MULTILINE)
    assert len(listed) == len(set(listed))
    # A process and an amendment are lines of a session's file, and stand in its row.
    assert written() == set(listed) | {"detente/process/1", "detente/amendment/1"}
    assert all(name in PAGE for name in written())


def test_every_record_that_the_page_names_exists() -> None:
    for file, cls in re.findall(r"`([a-z_/]+\.py)(?:: ([A-Z]\w+))?`", PAGE):
        path = ROOT / "src/detente" / file
        assert path.is_file(), file
        assert not cls or re.search(rf"^class {cls}\b", path.read_text(encoding="utf-8"), re.MULTILINE), cls


def test_pages_that_the_code_names_exist() -> None:
    missing = {
        f"{path.name}: {named}"
        for path in SOURCES
        for named in re.findall(r"\bdocs/[\w/-]+\.md|\bdesign\.md", path.read_text(encoding="utf-8"))
        if not (ROOT / named).is_file()
    }
    assert missing == set()
