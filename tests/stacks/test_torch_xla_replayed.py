"""A step that is dispatched without being traced: what it is given, and what it refuses to be given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from detente.environments import python_of
from detente.records.arm import arm_of
from detente.records.contract import CONTRACTS
from detente.session.capturing import capture_programs
from detente.session.request import Request
from detente.stacks.protocol import Unavailable
from detente.stacks.torch_xla_lazy import TorchXla
from detente.stacks.torch_xla_replayed import XlaReplayedRunning
from detente.workloads.catalogue import find_size, find_workload
from detente.workloads.workload import OptimizerSettings

torch = pytest.importorskip("torch", reason="torch is not installed")
W = {"dtype": "float32", "shape": [2, 3]}


def running(*known: dict[str, Any]) -> Any:
    one: Any = object.__new__(XlaReplayedRunning)
    one.torch, one.stack = torch, SimpleNamespace(device="cpu")
    one.workload = SimpleNamespace(optimizer=OptimizerSettings(lr=0.25))
    one._known, one._constants, one._held = list(known), {}, {"tensors:w": torch.ones(2, 3)}
    return one


def test_what_a_program_is_given() -> None:
    one = running(
        W | {"name": "tensors:w"},
        {"dtype": "int64", "shape": [4], "name": "batch:ids"},
        {"dtype": "float32", "shape": [], "value": 0.5},
        {"dtype": "float64", "shape": [], "formula": "-lr / (1 - beta1^t)"},
    )
    batch = {"ids": torch.arange(4)}
    weight, ids, half, share = one._given(batch, one._held, 1.0)
    assert weight is one._held["tensors:w"] and ids is batch["ids"] and float(half) == 0.5
    assert share.dtype == torch.float64 and float(share) == pytest.approx(-0.25 / (1 - 0.9))
    again = one._given(batch, one._held, 2.0)
    assert again[2] is half and float(again[3]) == pytest.approx(-0.25 / (1 - 0.9**2))


@pytest.mark.parametrize("ids", [torch.arange(5), torch.arange(4).float(), torch.zeros(2, 2).long()])
def test_a_batch_of_another_form_is_refused(ids: Any) -> None:
    """XLA would be given what its program was not made for."""
    one = running({"dtype": "int64", "shape": [4], "name": "batch:ids"})
    with pytest.raises(ValueError, match=r"batch:ids is .* and was int64 \[4\] when the step was traced"):
        one._given({"ids": ids}, one._held, 1.0)


def test_only_a_whole_step_is_dispatched_without_being_traced() -> None:
    workload = find_workload("gpt2")
    args = workload, find_size(workload, "tiny")
    with pytest.raises(Unavailable, match="of a gradient nobody knows"):
        TorchXla().build_under(arm_of({"tracing": "off"}), *args, CONTRACTS["gradient"])
    with pytest.raises(Unavailable, match="under tracing=off alone"):
        TorchXla().build_under(arm_of({"fusion": "off"}), *args, CONTRACTS["train-step"])


def test_a_step_traces_next_to_nothing() -> None:
    if python_of("torch-xla") is None:
        pytest.skip("`detente stacks add torch-xla` makes the environment of torch-xla")
    rows = ("torch-xla", "torch-xla[tracing=off]")
    found = capture_programs(
        Request(("ffn",), rows, "tiny", contract="train-step", threads=1), lambda event: None
    )
    assert [one.evidence.status for one in found] == ["ok", "ok"], [one.evidence.reason for one in found]
    built = [one.evidence.probes["built"] for one in found]
    assert 3 * built[1]["traced"] <= built[0]["traced"] and built[0]["work"] == built[1]["work"]
