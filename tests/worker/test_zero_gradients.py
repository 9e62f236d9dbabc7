"""Gradients that one framework has and the other has not, and gradients that a user's own hook changes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detente.worker.reference import Trace, make_reference

torch = pytest.importorskip("torch", reason="torch is not installed")

HEAD, POOLER = np.arange(6.0).reshape(2, 3) + 1, np.ones((3, 3))
WEIGHTS = {"head": HEAD, "pooler": POOLER}


def trace(gradients: dict[str, np.ndarray]) -> Trace:
    after = {"head": HEAD + 0.1, "pooler": POOLER}
    return Trace((1.0,), {}, gradients, WEIGHTS, after, frozenset(WEIGHTS))


@pytest.mark.parametrize(
    ("name", "array", "wrong"),
    [
        ("pooler", np.zeros((3, 3)), False),
        ("pooler", np.full((3, 3), 1e-30), True),
        ("pooler", np.zeros((3, 4)), True),
        ("nobody", np.zeros((3, 3)), True),
    ],
    ids=["zeros", "nearly", "another size", "unknown"],
)
def test_zeros_of_a_known_parameter_are_what_torch_has_none_of(name: str, array: Any, wrong: bool) -> None:
    reference = make_reference(trace({"head": HEAD}))
    found = reference.errors(trace({"head": HEAD, name: array}))
    assert [e.name for e in found if math.isinf(e.err)] == ([name] if wrong else [])
    # What the reference has may not be left out, and zeros in its place are an error.
    lacking = [e for e in reference.errors(trace({name: array})) if e.kind == "gradient" and e.name == "head"]
    assert [math.isinf(e.err) for e in lacking] == [True]
    zeros = reference.errors(trace({"head": np.zeros_like(HEAD)}))
    assert next(e.err for e in zeros if e.kind == "gradient" and e.name == "head") > 1


def test_a_hook_that_clips_comes_behind_the_look() -> None:
    from detente.worker.made_in_torch import TorchMaker

    weight, other = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer, beside = torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([other], lr=0.1)

    def clips(*_: Any) -> None:
        assert weight.grad is not None
        weight.grad.zero_()

    optimizer.register_step_pre_hook(clips)
    running: Any = SimpleNamespace(
        optimizer=optimizer, held_gradients=lambda: {"weight": weight.grad.numpy().copy()}
    )
    with TorchMaker().gradients(running, None) as found:
        weight.grad, other.grad = torch.full((3,), 2.0), torch.ones(3)
        beside.step()
        assert not found
        optimizer.step()
        weight.grad = torch.full((3,), 5.0)
        optimizer.step()
    assert found["weight"].tolist() == [2.0] * 3
    assert weight.tolist() == [1.0] * 3
