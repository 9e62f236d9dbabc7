"""A program of another stack on JAX's runtime: signed, run, proved; and refused where nobody can know it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detente.records.arm import arm_of
from detente.records.contract import CONTRACTS
from detente.stacks.protocol import Unavailable
from detente.stacks.torch_xla_signature import SCHEMA, Unsigned, signature
from detente.workloads.catalogue import find_size, find_workload
from detente.workloads.workload import OptimizerSettings

ADAMW = OptimizerSettings(lr=1e-3)


def row(**what):
    return {"dtype": "float32", "shape": [], **what}


def test_numbers_that_change_are_an_optimizers_or_nobodys() -> None:
    first = [row(name="tensors:w"), row(value=0.5), row(value=-ADAMW.lr / (1 - ADAMW.betas[0] ** 3))]
    later = [row(name="tensors:w"), row(value=0.5), row(value=-ADAMW.lr / (1 - ADAMW.betas[0] ** 4))]
    found = json.loads(signature(first, later, ["loss", "tensors:w"], ADAMW, 3.0))
    assert found["schema"] == SCHEMA and found["results"] == ["loss", "tensors:w"]
    assert [a.get("formula") for a in found["arguments"]] == [None, None, "-lr / (1 - beta1^t)"]
    moved = [*later[:2], row(value=0.123)]
    with pytest.raises(Unsigned, match="argument 2 is a number that changes from step to step"):
        signature(first, moved, ["loss"], ADAMW, 3.0)


def test_this_jax_runs_another_stacks_program() -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    from detente.stacks.jax_foreign_private import self_test

    assert self_test() == []


@pytest.fixture
def jax_stack():
    pytest.importorskip("jax", reason="jax is not installed")
    from detente.stacks.jax_jit import JaxJit

    stack = JaxJit()
    stack.start("cpu", "fp32", 1)
    return stack


def step_of(tmp_path: Path, weight: np.ndarray):
    """AdamW of one weight and a batch, as HLO with a signature: the shape of what torch_xla gives away."""
    import jax
    import jax.numpy as jnp

    s, wd = ADAMW, ADAMW.weight_decay

    def step(w, m, v, x, share, root):
        loss, g = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        w = w * (1 - s.lr * wd)
        m = m + (g - m) * (1 - s.betas[0])
        v = v * s.betas[1] + g * g * (1 - s.betas[1])
        return loss, w + share * m / (jnp.sqrt(v) / root + s.eps), m, v

    x = np.ones((2, 3), np.float32)
    zero, one = np.zeros_like(weight), np.float32(1)
    lowered = jax.jit(step, keep_unused=True).lower(weight, zero, zero, x, one, one)
    files = {"hlo": tmp_path / "step.hlo", "signature": tmp_path / "step.json"}
    files["hlo"].write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    names = [row(name=n) for n in ("tensors:w", "exp_avg:w", "exp_avg_sq:w", "batch:x")]

    def numbers(t):
        return [row(value=-s.lr / (1 - s.betas[0] ** t)), row(value=math.sqrt(1 - s.betas[1] ** t))]

    results = ["loss", "tensors:w", "exp_avg:w", "exp_avg_sq:w"]
    files["signature"].write_bytes(
        signature([*names, *numbers(2)], [*names, *numbers(3)], results, ADAMW, 2.0)
    )
    return {k: str(p) for k, p in files.items()}


def test_it_trains_as_torch_does(jax_stack, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weight = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    jax_stack.foreign = step_of(tmp_path, weight)
    workload = replace(find_workload("ffn"), optimizer=ADAMW)
    size = find_size(workload, "tiny")
    arm = arm_of({"program": "torch-xla"})
    running = jax_stack.build_under(arm, workload, size, CONTRACTS["train-step"])
    running.load({"w": weight})
    x = np.ones((2, 3), np.float32)
    batch = running.place({"x": x})

    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = torch.optim.AdamW(
        [parameter], lr=ADAMW.lr, betas=ADAMW.betas, eps=ADAMW.eps, weight_decay=ADAMW.weight_decay
    )
    gradient = running.gradients(batch)["w"]
    for taken in range(3):
        optimizer.zero_grad()
        loss = (torch.from_numpy(x) @ parameter).square().mean()
        loss.backward()
        if not taken:
            np.testing.assert_allclose(gradient, parameter.grad.numpy(), rtol=1e-5)
        optimizer.step()
        handle = running.step(batch)
        running.synchronise(handle)
        assert running.loss(handle) == pytest.approx(float(loss.detach()), rel=1e-5)
    np.testing.assert_allclose(running.tensors()["w"], parameter.detach().numpy(), rtol=1e-5)
    state = running.state()
    assert float(state["step"]) == 3.0
    np.testing.assert_allclose(state["exp_avg:w"], optimizer.state[parameter]["exp_avg"].numpy(), rtol=1e-5)
    assert running.parameter_names() == {"w"} and running.donated
    running.load({"w": weight})
    again = running.step(batch)
    assert running.loss(again) == pytest.approx(float(np.mean((x @ weight) ** 2)), rel=1e-6)


def test_what_cannot_be_moved_in_it_is_refused(jax_stack, tmp_path: Path) -> None:
    jax_stack.foreign = step_of(tmp_path, np.ones((3, 2), np.float32))
    workload = find_workload("gpt2")
    size = find_size(workload, "tiny")
    for more in ({"loop": "scan"}, {"optimizer": "outside"}):
        with pytest.raises(Unavailable, match="program is one"):
            jax_stack.build_under(
                arm_of({"program": "torch-xla", **more}), workload, size, CONTRACTS["train-step"]
            )
    with pytest.raises(Unavailable, match="only a whole training step"):
        jax_stack.build_under(arm_of({"program": "torch-xla"}), workload, size, CONTRACTS["forward"])


def test_without_a_captured_program_there_is_none(jax_stack) -> None:
    workload = find_workload("gpt2")
    size = find_size(workload, "tiny")
    with pytest.raises(Unavailable, match="was not captured"):
        jax_stack.build_under(arm_of({"program": "torch-xla"}), workload, size, CONTRACTS["train-step"])


def test_the_control_computes_what_jax_computes(jax_stack) -> None:
    workload = find_workload("ffn")
    size = find_size(workload, "tiny")
    contract = CONTRACTS[workload.contracts[0]]
    own = jax_stack.build(workload, size, contract)
    door = jax_stack.build_under(arm_of({"program": "jax"}), workload, size, contract)
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=a.shape).astype(a.dtype) for n, a in own.tensors().items()}
    batch = workload.batch(size, rng)
    losses = []
    for running in (own, door):
        running.load(weights)
        placed = running.place(batch)
        losses.append([running.loss(running.step(placed)) for _ in range(2)])
    assert losses[0] == losses[1]
