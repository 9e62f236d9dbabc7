"""Planted pitfalls in real sessions: each is caught at the row that has it, and there alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest

TORCH, JAX = "tests/museum/of_torch.py:", "tests/museum/of_jax.py:"
Cells = Mapping[str, Mapping[str, Any]]


class Planted(NamedTuple):
    """``severity`` of the finding, and ``rule``, which must be the one that finds it. ``also`` are rules that the same
    fault really breaks: a step without its update has stale inputs too."""

    severity: str
    rule: str
    where: str
    also: frozenset[str] = frozenset()


class Room(NamedTuple):
    """One session: every exhibit a row of it, the ``fair`` stacks beside them. ``ffn`` where the fault needs no model:
    its processes start in half the time."""

    workload: str
    contract: str
    fair: tuple[str, ...]
    planted: Mapping[str, Planted]


NEVER_MOVED = frozenset({"stale-inputs", "not-the-same-function"})
ROOMS = {
    "function": Room(
        "gpt2",
        "train-step",
        ("torch-eager", "jax"),
        {
            "ErfGelu": Planted("void", "not-the-same-function", TORCH),
            "Epsilon": Planted("void", "not-the-same-function", TORCH),
            "OtherWeights": Planted("void", "weights-differ", TORCH, frozenset({"not-the-same-function"})),
            "DroppedTie": Planted("void", "not-the-same-function", TORCH),
            "Bf16Product": Planted(
                "void", "product-dtypes-differ", TORCH, frozenset({"not-the-same-function"})
            ),
            "Dropout": Planted("void", "modes-differ", TORCH, frozenset({"not-the-same-function"})),
        },
    ),
    "step": Room(
        "ffn",
        "train-step",
        ("torch-eager", "jax"),
        {
            "Unsynchronised": Planted("void", "clock-stops-early", TORCH),
            "ReadsBack": Planted("void", "regions-differ", TORCH),
            "Stale": Planted("void", "stale-inputs", TORCH, NEVER_MOVED),
            "OtherThreads": Planted("warn", "threads-differ", TORCH),
            "OptimizerOutside": Planted("void", "optimizer-outside", TORCH),
            "Breaks": Planted("warn", "graph-break", TORCH),
            "Discarded": Planted("void", "work-removed", JAX, NEVER_MOVED),
            "Recompiling": Planted("void", "compile-in-window", JAX),
            "Undonated": Planted("void", "state-not-donated", JAX),
        },
    ),
    "forward": Room("ffn", "forward", ("jax",), {"Constants": Planted("void", "weights-baked-in", JAX)}),
}


@pytest.fixture(scope="module")
def visit(detente: Any) -> Callable[[str], Cells]:
    """A room's cells by label, from one `compare`."""

    @cache
    def cells(room: str) -> Cells:
        workload, contract, fair, planted = ROOMS[room]
        done = detente(
            *("compare", workload, "--size", "tiny", "--contract", contract, "--format", "json"),
            *("--stacks", ",".join([*fair, *(p.where + name for name, p in planted.items())])),
            *("--blocks", "1", "--no-aa", "--no-memory"),
            timeout=1500,
        )
        found = json.loads(done.stdout)
        assert "cells" in found, done.stderr
        return {cell["label"]: cell for cell in found["cells"]}

    return cells


def _found(cell: Mapping[str, Any]) -> dict[str, str]:
    """Severity by rule. A busy machine is a fact about the machine, not about the row."""
    return {
        f["rule"]: f["severity"]
        for f in cell["findings"]
        if f["severity"] != "unchecked" and f["rule"] != "machine-shared"
    }


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("room", "name"), [(room, name) for room, kept in ROOMS.items() for name in kept.planted]
)
def test_a_planted_pitfall_is_caught(visit: Callable[[str], Cells], room: str, name: str) -> None:
    planted, cell = ROOMS[room].planted[name], visit(room)[name]
    found = _found(cell)
    assert found.get(planted.rule) == planted.severity, (cell["status"], cell["reason"], found)
    assert {r for r, s in found.items() if s == "void"} <= {planted.rule, *planted.also}, found
    assert (cell["status"] == "void") == (planted.severity == "void"), (cell["status"], cell["reason"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("room", "name"), [(room, name) for room, kept in ROOMS.items() for name in kept.fair]
)
def test_the_fair_rows_beside_it_are_not(visit: Callable[[str], Cells], room: str, name: str) -> None:
    cell = visit(room)[name]
    assert cell["status"] == "ok", cell["reason"]
    assert "void" not in _found(cell).values(), _found(cell)
