"""A step of JAX that another row wrote down, on this stack's runtime: the same numbers, and refused where its arrays
are others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detente.records.arm import arm_of
from detente.records.contract import CONTRACTS
from detente.stacks.protocol import Unavailable
from detente.workloads.catalogue import find_size, find_workload

pytest.importorskip("jax", reason="jax is not installed")

import jax

from detente.stacks.jax_export import FORM, exported
from detente.stacks.jax_jit import JaxJit

MINE = arm_of({"program": "mine.py:Mine"})


@pytest.fixture
def stack() -> JaxJit:
    made = JaxJit()
    made.start("cpu", "fp32", 1)
    return made


def built(stack: JaxJit, name: str, contract: str = "train-step", arm: Any = None) -> Any:
    workload = find_workload(name)
    given = (workload, find_size(workload, "tiny"), CONTRACTS[contract])
    return stack.build(*given) if arm is None else stack.build_under(arm, *given)


def batch(running: Any, name: str) -> Any:
    workload = find_workload(name)
    return running.place(workload.batch(find_size(workload, "tiny"), np.random.default_rng(0)))


def written(stack: JaxJit, name: str, folder: Any, contract: str = "train-step") -> Any:
    """The running whose step lies in the file that ``stack`` is given."""
    own = built(stack, name, contract)
    own.step(batch(own, name))
    (capture,) = exported(jax, own.jitted, own._arguments())
    file = folder / f"{name}.export"
    file.write_bytes(capture.data)
    stack.foreign = {FORM: str(file)}
    return own


@pytest.mark.parametrize(("name", "contract"), [("gpt2", "train-step"), ("ffn", "train-step-sgd")])
def test_it_is_the_same_step(stack, tmp_path, name: str, contract: str) -> None:
    own = written(stack, name, tmp_path, contract)
    other = built(stack, name, contract, MINE)
    start = own.tensors()
    for running in (own, other):
        running.load(start)
    placed = batch(own, name)
    mine, theirs = own.gradients(placed), other.gradients(placed)
    assert mine.keys() == theirs.keys()
    for tensor, value in mine.items():
        np.testing.assert_allclose(theirs[tensor], value, rtol=1e-4, atol=1e-6 * np.abs(value).max())
    # Gradients leave nothing behind.
    losses = [[r.loss(r.step(batch(r, name))) for _ in range(3)] for r in (own, other)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][0] != losses[0][2]
    assert other.donated == own.donated and "another row's program" in other.practice()


def test_an_arm_is_on_top_of_it(stack, tmp_path) -> None:
    written(stack, "ffn", tmp_path)
    arm = arm_of({"program": "mine.py:Mine", "donation": "off"})
    assert built(stack, "ffn", arm=arm).donated == ()
    outside = arm_of({"program": "mine.py:Mine", "optimizer": "outside"})
    with pytest.raises(Unavailable, match="neither its loop nor its optimizer"):
        built(stack, "ffn", arm=outside)


def test_a_program_of_other_arrays_is_refused(stack, tmp_path) -> None:
    written(stack, "gpt2", tmp_path)
    other = built(stack, "ffn", arm=MINE)
    other.load(built(stack, "ffn").tensors())
    with pytest.raises(Unavailable, match="keeps its weights in another form"):
        other.step(batch(other, "ffn"))


def test_what_is_no_program_is_refused(stack, tmp_path) -> None:
    file = tmp_path / "broken"
    file.write_bytes(b"nothing of the kind")
    stack.foreign = {FORM: str(file)}
    with pytest.raises(Unavailable, match="cannot run another stack's program"):
        built(stack, "ffn", arm=MINE)


def test_a_region_that_is_no_step_is_refused(stack, tmp_path) -> None:
    written(stack, "ffn", tmp_path)
    with pytest.raises(Unavailable, match="only a whole training step"):
        built(stack, "ffn", "forward", MINE)


def test_a_step_that_calls_python_is_not_written_down(stack) -> None:
    own = built(stack, "ffn")
    own.step(batch(own, "ffn"))

    def asks(params: Any, rest: Any, state: Any, batch: Any) -> Any:
        return jax.pure_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), np.float32))

    assert exported(jax, jax.jit(asks), own._arguments()) == ()
