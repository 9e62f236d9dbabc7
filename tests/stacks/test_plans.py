"""Plans: what a region will hold, counted on fake tensors or by the compiler, before any of it exists."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from detente.records.contract import CONTRACTS
from detente.stacks.jax_jit import JaxJit, JaxScan
from detente.stacks.torch_compile import TorchCompile
from detente.stacks.torch_eager import TorchEager
from detente.stacks.torch_plan import Live
from detente.workloads.catalogue import find_size, find_workload
from tests.sampled import sampled

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


@pytest.mark.long
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
    assert as_compiled.pop("planned_compiler", 0) >= 0 and "planned_compiler" not in narrow
    # Inductor is imported, too, and what the heap keeps hangs on what it was asked before.
    for own in ("planned_base", "planned_kept"):
        assert as_compiled.pop(own) >= 0 and narrow.pop(own) >= 0
    assert as_compiled == narrow


LEFT = """
import os, sys
import numpy as np
from detente.records.contract import CONTRACTS
from detente.stacks.catalogue import find_entry, make_stack
from detente.workloads.catalogue import find_size, find_workload

workload = find_workload("ffn")
size, contract = find_size(workload, "tiny"), CONTRACTS[workload.contracts[0]]
stack = make_stack(find_entry(sys.argv[1]))
stack.start("cpu", "fp32", 1)
batch = workload.batch(size, np.random.default_rng(0))
found = stack.plan(workload, size, contract, batch)
print("left", found["planned_compiler"])
print("kept", sum(len(files) for _, _, files in os.walk(os.environ["TORCHINDUCTOR_CACHE_DIR"])))
# What was planned is compiled and run afterwards as if nothing had been.
running = stack.build(workload, size, contract)
print("loss", running.loss(running.step(running.place(batch))))
print("compilations", running.compiled().events)
"""


@pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="Dynamo of torch 2.9 takes no fake tensors of another's"
)
@pytest.mark.parametrize("stack", sampled(["torch-compile", "torch-compile-model"], 2))
def test_what_a_compiler_leaves_behind_is_found_and_nobodys_first_step_is_shorter(
    stack: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", LEFT, stack],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split() for line in done.stdout.splitlines())
    # A process that has compiled a step once holds at least this much for it.
    assert int(said["left"]) > 4e6
    assert int(said["kept"]) == 0
    assert np.isfinite(float(said["loss"])) and int(said["compilations"]) >= 2


def test_what_cannot_be_compiled_on_fake_tensors_has_no_such_label(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from detente.stacks.torch_compile import CompiledRunning

    def reads_a_number(self: CompiledRunning, loss):
        return torch.compile(lambda batch: loss(batch)[0].item(), backend=self.backend, fullgraph=True)

    monkeypatch.setattr(CompiledRunning, "_wrap_loss", reads_a_number)
    found = planned(TorchCompile(), "ffn")
    assert "planned_compiler" not in found and found["planned_peak"] > 0
    assert "is not planned" in capfd.readouterr().err


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


@pytest.mark.parametrize(
    ("name", "region"),
    sampled([("gemm", "gradient"), ("llama", "forward"), ("gpt2", "gradient")], 3, several=True),
)
def test_a_plan_of_weights_that_nobody_wrote_is_that_of_weights_which_are_there(
    name: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detente.bridge.choose import memory
    from detente.stacks import detente

    there = planned(detente.Detente(), name, region)
    monkeypatch.setattr(memory, "limit_bytes", lambda device: 0)
    stack = detente.Detente()
    unwritten = planned(stack, name, region)
    assert not stack.planned.holds_weights
    assert there.pop("planned_base") > 0 and unwritten.pop("planned_base") > 0
    assert unwritten == there
