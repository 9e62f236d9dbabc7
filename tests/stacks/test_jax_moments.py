"""What optax keeps is handed out and taken over whole: a run that goes on from it is the run itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detente.records.contract import CONTRACTS
from detente.workloads.catalogue import find_size, find_workload

pytest.importorskip("optax", reason="optax is not installed")

MODEL = """
import jax.numpy as jnp
import numpy as np
import optax


def loss(params, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ params["w"]) @ params["v"] - batch["y"]) ** 2)


def make():
    params = {{"w": jnp.full((4, 3), 0.3), "v": jnp.full((3, 1), 0.2)}}
    batch = {{"x": np.random.randn(8, 4).astype("float32"), "y": np.random.randn(8, 1).astype("float32")}}
    return params, loss, batch, {optimizer}
"""


def opened(tmp_path: Path, optimizer: str) -> Any:
    from detente.stacks.jax_jit import JaxJit

    file = tmp_path / f"model_{abs(hash(optimizer))}.py"
    file.write_text(MODEL.format(optimizer=optimizer))
    workload = find_workload(f"{file}:make")
    stack = JaxJit()
    stack.start("cpu", "fp32", 1)
    running = stack.build(workload, find_size(workload, None), CONTRACTS["train-step"])
    batches = [
        running.place(workload.batch(find_size(workload, None), np.random.default_rng(i))) for i in range(3)
    ]
    return running, batches


def steps(running: Any, batches: list[Any], count: int) -> dict[str, np.ndarray]:
    for i in range(count):
        running.step(batches[i % len(batches)])
    return {name: np.array(array) for name, array in running.state().items()}


OPTIMIZERS = (
    "optax.adamw(1e-2)",
    "optax.sgd(1e-2, momentum=0.9)",
    "optax.MultiSteps(optax.adamw(1e-2), 3)",
    "optax.MultiSteps(optax.sgd(1e-2, momentum=0.9), 3).gradient_transformation()",
    "optax.adadelta(1e-1)",
    "optax.amsgrad(1e-2)",
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("before", [2, 3, 4])
def test_a_run_that_goes_on_from_what_was_handed_out_is_the_run(
    optimizer: str, before: int, tmp_path: Path
) -> None:
    running, batches = opened(tmp_path, optimizer)
    running.load(running.tensors())
    kept = steps(running, batches, before)
    right = steps(running, batches, 5)
    running.load({name: np.zeros_like(a) for name, a in running.tensors().items()})
    running.adopt(kept)
    again = running.state()
    assert again.keys() == kept.keys() and all(np.array_equal(again[n], kept[n]) for n in kept)
    found = steps(running, batches, 5)
    assert all(np.array_equal(found[n], right[n]) for n in right), [
        n for n in right if not np.array_equal(found[n], right[n])
    ]


def test_gathered_gradients_are_part_of_the_state(tmp_path: Path) -> None:
    running, batches = opened(tmp_path, OPTIMIZERS[2])
    running.load(running.tensors())
    found = steps(running, batches, 4)
    assert {"acc_grads:w", "acc_grads:v", "mini_step:count", "gradient_step:count"} <= found.keys()
    assert np.any(found["acc_grads:w"]) and found["mini_step:count"] == 1 == found["gradient_step:count"]
    assert {"exp_avg:w", "exp_avg_sq:w", "step"} <= found.keys()
