"""A step on disk and as StableHLO."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from detente import bridge
from detente.bridge.program.program import exported

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Tied, normalised, with dropout: everything that must come back."""

    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3)
        self.second = nn.Linear(4, width)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.drop(self.norm(self.first(x) + self.second(x)))


def make(width=4, dtype=torch.float32):
    model = Net(width).to(dtype)
    return bridge.compile(
        model,
        lambda m, b: m(b).float().pow(2).sum(),
        torch.optim.AdamW(model.parameters(), lr=0.01),
        example_batch=X.to(dtype),
        certificate="none",
        seed=7,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resume_is_bitwise_the_uninterrupted_run(tmp_path, dtype):
    whole, x = make(dtype=dtype), X.to(dtype)
    values = [float(whole(x)) for _ in range(5)]
    first = make(dtype=dtype)
    assert [float(first(x)) for _ in range(2)] == values[:2]
    first.save(tmp_path / "step.safetensors")
    second = make(dtype=dtype)
    second.load(tmp_path / "step.safetensors")
    assert [float(second(x)) for _ in range(3)] == values[2:]
    ours, theirs = whole.state_dict(), second.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_file_has_torchs_names(tmp_path):
    step = make()
    step(X)
    step.save(tmp_path / "step.safetensors")
    stored = load_file(tmp_path / "step.safetensors")
    state = step.state_dict()
    assert torch.equal(stored["first.weight"], state["second.weight"]) and "second.weight" not in stored
    assert {"optimizer:first.weight:exp_avg", "optimizer:first.weight:step"} <= stored.keys()
    assert int(stored["norm.num_batches_tracked"]) == 1


def test_a_file_that_does_not_fit_is_refused(tmp_path):
    step = make(5)
    step.save(tmp_path / "step.safetensors")
    with pytest.raises(bridge.Refused, match=r"first.bias is torch.float32 \[5\], here float32 \[4\]"):
        make(4).load(tmp_path / "step.safetensors")


def test_the_whole_step_as_stablehlo_for_machines_that_are_not_here():
    step = make()
    text = step.stablehlo(["cuda", "tpu"])
    assert "stablehlo.dot_general" in text and "func.func public @main" in text
    assert "stablehlo.dot_general" in step.stablehlo()
    assert exported(step.programs[0].compiled, ["cuda", "rocm", "tpu"]).platforms == ("cuda", "rocm", "tpu")
