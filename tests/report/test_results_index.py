"""The index of docs/results names every page, and the command that the page itself names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs/results"
INDEX = dict(
    re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \|.*\| (.*) \|$", (RESULTS / "README.md").read_text(), re.M)
)
PAGES = sorted(p.stem for p in RESULTS.glob("*.md") if p.stem != "README")


def test_every_page_is_listed_and_every_row_has_a_page() -> None:
    assert sorted(INDEX) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_the_index_has_the_command_of_the_page(page: str) -> None:
    head = "\n".join((RESULTS / f"{page}.md").read_text().splitlines()[:12])
    named = re.findall(r"`((?:python benchmarks/|python -m studies|make )[^`]+)`", head)
    if named:
        assert f"`{named[0]}`" in INDEX[page]
    else:
        # A session's page, made by `detente report`: its command is the session's own.
        assert re.search("`detente (compare|explain) ", INDEX[page]) or "`python benchmarks/" in INDEX[page]
