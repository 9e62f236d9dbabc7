"""Plans: what a region will hold, counted on fake tensors or by the compiler, before any of it exists."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from detente.records.contract import CONTRACTS
from detente.stacks.jax_jit import JaxJit, JaxScan
from detente.stacks.torch_compile import TorchCompile
from detente.stacks.torch_eager import TorchEager
from detente.stacks.torch_plan import Live
from detente.workloads.catalogue import find_size, find_workload

NAMES = ("gemm", "ffn", "mha", "gpt2", "resnet50", "bert", "vit", "gpt_neo", "llama")


def planned(stack, name: str, region: str = "train-step") -> dict[str, int]:
    workload = find_workload(name)
    size = find_size(workload, "tiny")
    stack.start("cpu", "fp32", 1)
    return stack.plan(workload, size, CONTRACTS[region], workload.batch(size, np.random.default_rng(0)))


def trainable(name: str) -> int:
    workload = find_workload(name)
    return 4 * workload.parameters(find_size(workload, "tiny"))


@pytest.mark.parametrize("name", NAMES)
def test_of_a_training_step_in_torch(name: str) -> None:
    found = planned(TorchEager(), name)
    one = trainable(name)
    assert found["planned_gradients"] == one
    assert one <= found["planned_parameters"]
    # Two moments, and a count of steps for each tensor.
    assert 2 * one < found["planned_state"] < 2 * one + 4000
    held = found["planned_parameters"] + found["planned_gradients"] + found["planned_state"]
    assert found["planned_activations"] > 0
    assert held <= found["planned_peak"] <= held + 4 * found["planned_activations"] + one


def test_what_autograd_saves_is_counted_and_let_go() -> None:
    """A chain of ten products of 1 MB: forward holds all of their inputs, backward none in the end."""
    fakes = torch._subclasses.fake_tensor.FakeTensorMode()
    live = Live()
    with live, fakes:
        x = torch.ones(512, 512, requires_grad=True)
        begun, y = live.now, x
        for _ in range(10):
            y = y.sin()
        saved = live.now - begun
        y.sum().backward()
        del y
        gc.collect()
        left = live.now - begun
    assert begun == 2**20
    assert saved == 10 * 2**20
    assert left == 2**20  # x.grad


def test_a_view_holds_what_it_shows_and_no_more() -> None:
    live = Live()
    with live:
        whole = torch.ones(1024)
        part = whole[3:5].view(2, 1)
        assert live.now == 4096
        del whole
        assert live.now == 4096
        del part
        assert live.now == 0


@pytest.mark.parametrize("region", ["forward", "gradient"])
def test_other_regions_keep_no_state(region: str) -> None:
    found = planned(TorchEager(), "gpt2", region)
    assert found["planned_state"] == 0
    assert (found["planned_gradients"] == 0) == (region == "forward")
    assert found["planned_peak"] < planned(TorchEager(), "gpt2")["planned_peak"]


def test_a_wider_dtype_takes_twice_as_much_and_a_compiled_row_is_planned_as_eager() -> None:
    workload = find_workload("gpt2")
    size = find_size(workload, "tiny")
    batch = workload.batch(size, np.random.default_rng(0))
    narrow = planned(TorchEager(), "gpt2")
    stack = TorchEager()
    try:
        stack.start("cpu", "fp64", 1)
        wide = stack.plan(workload, size, CONTRACTS["train-step"].at("fp64"), batch)
    finally:
        torch.set_default_dtype(torch.float32)
    assert wide["planned_gradients"] == 2 * narrow["planned_gradients"]
    as_compiled = planned(TorchCompile(), "gpt2")
    # Inductor is imported, too, and what the heap keeps hangs on what it was asked before.
    for own in ("planned_base", "planned_kept"):
        assert as_compiled.pop(own) >= 0 and narrow.pop(own) >= 0
    assert as_compiled == narrow


@pytest.mark.parametrize("stack", [JaxJit, JaxScan])
def test_of_a_compiled_program(stack: type) -> None:
    found = planned(stack(), "gpt2")
    one = trainable("gpt2")
    assert one <= found["planned_parameters"] < one + 1000
    assert 2 * one <= found["planned_state"] < 2 * one + 1000
    assert (
        found["planned_peak"]
        >= found["planned_parameters"] + found["planned_state"] + found["planned_temporary"]
    )
