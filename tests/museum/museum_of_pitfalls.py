"""One session of planted pitfalls: every exhibit a row of it, the fair stacks beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

EXHIBITS = "tests/museum/exhibits.py:"
FAIR = ("torch-eager", "jax")

Cells = Mapping[str, Mapping[str, Any]]


class Planted(NamedTuple):
    """``severity`` of the finding, and ``rule``, which must be the one that finds it."""

    severity: str
    rule: str


def judged(
    detente: Any, contract: str, exhibits: Iterable[str], fair: Iterable[str] = FAIR
) -> dict[str, dict[str, Any]]:
    """The cells of `compare gpt2 --size tiny` under ``contract``, by label: ``exhibits`` and the fair rows."""
    done = detente(
        *("compare", "gpt2", "--size", "tiny", "--contract", contract, "--format", "json"),
        *("--stacks", ",".join([*fair, *(EXHIBITS + name for name in exhibits)])),
        *("--blocks", "1", "--no-aa", "--no-memory"),
        timeout=1500,
    )
    found = json.loads(done.stdout)
    assert "cells" in found, done.stderr
    return {cell["label"]: cell for cell in found["cells"]}


def assert_caught(cell: Mapping[str, Any], planted: Planted) -> None:
    """The row has the finding, and is void exactly when its severity, or that of another finding, says so."""
    found = {f["rule"]: f["severity"] for f in cell["findings"] if f["severity"] != "unchecked"}
    assert found.get(planted.rule) == planted.severity, (cell["status"], cell["reason"], found)
    assert (cell["status"] == "void") == (planted.severity == "void" or "void" in found.values())


def assert_fair(cell: Mapping[str, Any]) -> None:
    """Not void. A busy machine is a fact about the machine, not about the pair."""
    found = [f for f in cell["findings"] if f["severity"] != "unchecked" and f["rule"] != "machine-shared"]
    assert cell["status"] == "ok", cell["reason"]
    assert [f for f in found if f["severity"] == "void"] == []
