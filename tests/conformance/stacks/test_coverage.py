"""How much of a captured program has a known part: 90 % of operations and of time, 85 % where PyTorch compiles."""

from __future__ import annotations

import pytest

from detente.environments import python_of
from detente.explain.captured_parts import divide
from detente.session.capturing import capture_programs
from detente.session.request import Request
from detente.stacks.catalogue import STACKS
from tests.sampled import sampled

LEAST = {"torch-eager": 0.85, "torch-compile": 0.85}
# In every run; all of them in `make test-matrix`. torch-compile's takes a minute on two cores: it is of that one alone.
QUICK = sampled([("gpt2", "detente"), ("gpt2", "jax"), ("resnet50", "torch-eager")], 3, several=True)
ALL = [
    (workload, stack)
    for workload in ("gpt2", "bert", "vit", "resnet50")
    for stack in ("jax", "torch-xla", "detente", "torch-eager", "torch-compile")
]


def covered(workload: str, stack: str) -> None:
    entry = STACKS[stack]
    if entry.environment != "default" and python_of(entry.environment) is None:
        pytest.skip(f"`detente stacks add {entry.environment}` makes the environment of {stack}")
    (found,) = capture_programs(Request((workload,), (stack,), "tiny", threads=1), lambda event: None)
    assert found.evidence.status == "ok", found.evidence.reason
    divided = divide(found.evidence.programs, found.artefacts)
    assert divided is not None
    table = divided.table
    least = LEAST.get(stack, 0.9)
    assert table.covered >= least, table.of_operations
    # Guesses are counted apart, and nothing is counted twice.
    assert sum(table.of_operations.values()) == pytest.approx(1.0)
    assert table.covered_time is not None and table.covered_time >= least, table.of_time
    assert {"forward", "backward", "optimizer"} <= {row.direction for row in table.rows}
    assert any(row.times > 1 for row in table.rows), "no layer is folded"


@pytest.mark.parametrize(("workload", "stack"), QUICK)
def test_a_program_is_known_by_part(workload: str, stack: str) -> None:
    covered(workload, stack)


@pytest.mark.matrix
@pytest.mark.parametrize(("workload", "stack"), ALL)
def test_every_program_is_known_by_part(workload: str, stack: str) -> None:
    covered(workload, stack)
