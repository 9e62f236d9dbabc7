"""Run in a process of its own: ``check.py STACK [WORKLOAD]`` puts one stack through the Protocol and tells.

One framework per process is a rule of the house, and a stack of another environment needs that one's interpreter.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from detente.records.contract import CONTRACTS
from detente.stacks.catalogue import find_entry, make_stack
from detente.stacks.protocol import Running, Stack, Unavailable
from detente.workloads.catalogue import find_workload

CHECKS: dict[str, Callable[[Any], None]] = {}


def check(function: Callable[[Any], None]) -> Callable[[Any], None]:
    CHECKS[function.__name__] = function
    return function


class Bench:
    """A started stack, and running workloads by contract, built once."""

    def __init__(self, name: str, workload: str) -> None:
        self.entry = find_entry(name)
        self.stack: Stack = make_stack(self.entry)
        self.platform = self.stack.start("cpu", "fp32", 2)
        self.workload = find_workload(workload)
        self.size = self.workload.sizes["tiny"]
        self.batches = [self.workload.batch(self.size, np.random.default_rng(i)) for i in range(4)]
        self._running: dict[str, Running] = {}
        self.weights: dict[str, np.ndarray] = {}

    def running(self, contract: str) -> Running:
        if contract not in self._running:
            running = self.stack.build(self.workload, self.size, CONTRACTS[contract])
            if not self.weights:
                rng = np.random.default_rng(7)
                self.weights = {
                    n: (0.05 * rng.standard_normal(a.shape)).astype(np.float32)
                    for n, a in running.tensors().items()
                }
            running.load(self.weights)
            self._running[contract] = running
        return self._running[contract]

    def losses(self, running: Running, steps: int) -> list[float]:
        running.load(self.weights)
        return [running.loss(running.step(running.place(self.batches[i % 4]))) for i in range(steps)]


@check
def versions_and_threads_are_told(b: Bench) -> None:
    assert b.platform == "cpu"
    assert b.stack.versions() and all(isinstance(v, str) for v in b.stack.versions().values())
    assert all(isinstance(v, int) and v > 0 for v in b.stack.threads().values())


@check
def weights_come_back_bit_for_bit(b: Bench) -> None:
    running = b.running("train-step")
    running.load(b.weights)
    back = running.tensors()
    assert set(back) == set(b.weights)
    for name, array in b.weights.items():
        assert np.array_equal(back[name].astype(np.float32), array), name


@check
def parameters_are_among_the_tensors(b: Bench) -> None:
    running = b.running("train-step")
    assert running.parameter_names() and running.parameter_names() <= set(running.tensors())


@check
def loading_resets_the_optimizer(b: Bench) -> None:
    running = b.running("train-step")
    first, again = b.losses(running, 4), b.losses(running, 4)
    assert first == again, (first, again)
    assert all(math.isfinite(x) for x in first) and first[0] != first[1]


@check
def a_step_moves_every_parameter(b: Bench) -> None:
    running = b.running("train-step")
    b.losses(running, 1)
    after = running.tensors()
    still = [n for n in running.parameter_names() if np.array_equal(after[n], b.weights[n])]
    assert not still, still


@check
def the_fourth_step_and_reloading_compile_nothing(b: Bench) -> None:
    running = b.running("train-step")
    b.losses(running, 4)
    before = running.compiled().events
    b.losses(running, 4)
    assert running.compiled().events == before
    assert (before > 0) == b.entry.compiles


@check
def gradients_leave_everything_as_it_was(b: Bench) -> None:
    running = b.running("train-step")
    b.losses(running, 2)
    before = running.tensors()
    found = running.gradients(running.place(b.batches[2]))
    assert set(found) == set(running.parameter_names())
    after = running.tensors()
    assert all(np.array_equal(before[n], after[n]) for n in before)
    third = running.loss(running.step(running.place(b.batches[2])))
    assert third == b.losses(running, 3)[2]


@check
def the_gradient_region_returns_gradients_and_moves_nothing(b: Bench) -> None:
    running = b.running("gradient")
    running.load(b.weights)
    handle = running.step(running.place(b.batches[0]))
    running.synchronise(handle)
    found = running.outputs(handle)
    assert set(found) == set(running.parameter_names())
    assert all(np.isfinite(a).all() for a in found.values())
    assert all(np.array_equal(running.tensors()[n].astype(np.float32), b.weights[n]) for n in b.weights)


@check
def the_forward_region_returns_outputs(b: Bench) -> None:
    running = b.running("forward")
    running.load(b.weights)
    handle = running.step(running.place(b.batches[0]))
    running.synchronise(handle)
    assert running.outputs(handle)
    assert math.isfinite(running.loss(handle))


@check
def several_handles_are_waited_for_at_once(b: Bench) -> None:
    for contract in ("train-step", "gradient", "forward"):
        running = b.running(contract)
        running.load(b.weights)
        handles = [running.step(running.place(x)) for x in b.batches]
        running.synchronise(*handles)
        assert all(math.isfinite(running.loss(h)) for h in handles)


@check
def outputs_are_on_the_device_that_was_asked_for(b: Bench) -> None:
    running = b.running("train-step")
    handle = running.step(running.place(b.batches[0]))
    running.synchronise(handle)
    assert running.devices(handle) == (b.platform,)


@check
def what_is_shown_is_plain(b: Bench) -> None:
    running = b.running("train-step")
    said = running.practice()
    assert isinstance(said, str) and "\n" not in said
    assert all(isinstance(v, int) and v >= 0 for v in running.memory().values())


@check
def state_holds_the_tensors_and_what_the_optimizer_keeps(b: Bench) -> None:
    """After two updates: a first and a second moment per trainable parameter, and the count. While somebody still holds
    what was given a step is as right as ever, and what was copied from it stays."""
    running = b.running("train-step")
    running.load(b.weights)
    placed = [running.place(batch) for batch in b.batches[:2]]
    for batch in placed:
        handle = running.step(batch)
    running.synchronise(handle)
    state = running.state()
    for name, value in running.tensors().items():
        assert np.array_equal(state[name], value), name
    for name in running.parameter_names():
        for key in ("exp_avg", "exp_avg_sq"):
            assert state[f"{key}:{name}"].shape == state[name].shape, (key, name)
    assert float(state["step"]) == 2
    kept = {name: value.copy() for name, value in state.items()}
    handle = running.step(placed[0])
    running.synchronise(handle)
    held = {name: value.copy() for name, value in running.state().items()}
    assert float(held["step"]) == 3
    del state
    # The same three steps, with nothing held meanwhile.
    running.load(b.weights)
    for batch in (*placed, placed[0]):
        handle = running.step(batch)
    running.synchronise(handle)
    again = running.state()
    for name in kept:
        assert np.allclose(again[name], held[name], rtol=1e-5, atol=1e-7), name
    assert any(not np.array_equal(kept[name], held[name]) for name in b.weights)


@check
def programs_have_a_form_and_bytes(b: Bench) -> None:
    for capture in b.running("train-step").programs():
        assert capture.form and capture.name and capture.data
        json.dumps(capture.facts)


@check
def a_product_is_exact_at_fp32(b: Bench) -> None:
    value = np.full((64, 64), 1 + 2.0**-23, np.float32)
    assert np.array_equal(b.stack.product(value, np.eye(64, dtype=np.float32)), value.astype(np.float64))
    assert b.stack.product_seconds(64, 64, 64, 2) > 0
    assert b.stack.copy_seconds(1 << 16, 2) > 0


@check
def what_is_not_there_is_unavailable(b: Bench) -> None:
    for device, precision in (("cpu", "tf32"), ("nosuchdevice", "fp32")):
        try:
            make_stack(b.entry).start(device, precision, 2)
        except Unavailable as reason:
            assert str(reason)
        else:
            raise AssertionError(f"{device} {precision} was accepted")
    nothing = replace(b.workload, definitions={})
    try:
        b.stack.build(nothing, b.size, CONTRACTS["forward"])
    except Unavailable:
        return
    raise AssertionError("a workload without definitions was built")


@check
def private_parts_are_where_they_are_expected(b: Bench) -> None:
    if "torch_xla" in b.entry.requires:
        from detente.stacks.torch_xla_private import self_test
    elif "torch" in b.entry.requires:
        from detente.stacks.torch_dynamo_private import self_test
    else:
        return
    assert self_test() == []


def main(name: str, workload: str = "gpt2") -> None:
    bench = Bench(name, workload)
    found = {}
    for title, function in CHECKS.items():
        try:
            function(bench)
            found[title] = ""
        except Exception:
            found[title] = traceback.format_exc()
    print("CHECKED " + json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
