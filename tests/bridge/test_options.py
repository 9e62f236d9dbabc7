"""Clipping, accumulation and averages through ``detente.compile``, against plain torch in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from detente import bridge
from detente.bridge.random import twin

SEED = 5
X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)).double()
Y = torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(1))


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm, self.linear, self.drop = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.linear(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dropout=0.0, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(layers))
        self.head = nn.Linear(6, 3)
        self.register_parameter("unused", nn.Parameter(torch.ones(2)))
        self.double()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss(model, batch):
    logits = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1]), {"logits": logits}


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def torch_run(model, optimizer, steps, parts=1, norm=None, value=None, decay=None):
    """What people write in torch. Returns the losses, the last logits and the averaged module."""
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)) if decay is not None else None
    losses, logits = [], []
    for count in range(steps):
        total, logits = 0.0, []
        for i, batch in enumerate(zip(X.chunk(parts), Y.chunk(parts), strict=True)):
            with twin(SEED, count * parts + i):
                part, aux = loss(model, batch)
                (part / parts).backward()
            total += part.item() / parts
            logits.append(aux["logits"])
        if value is not None:
            torch.nn.utils.clip_grad_value_(model.parameters(), value)
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        optimizer.zero_grad()
        if averaged is not None:
            averaged.update_parameters(model)
        losses.append(total)
    return losses, torch.stack(logits), averaged


def close(ours, theirs):
    for name, tensor in theirs.items():
        far = (ours[name] - tensor).detach().abs().max() / tensor.abs().max().clamp_min(1e-12)
        assert far.item() <= 1e-9, f"{name}: {far.item():.1e}"


CASES = {
    "clip by norm": {"clip_norm": 0.1},
    "clip by value": {"clip_value": 0.01},
    "accumulate, dropout on": {"accumulate": 3, "dropout": 0.3},
    "average": {"ema": 0.9},
    "everything": {"clip_norm": 0.1, "clip_value": 0.05, "accumulate": 2, "ema": 0.7, "dropout": 0.2},
    "everything, rolled": {
        "clip_norm": 0.1,
        "accumulate": 2,
        "ema": 0.7,
        "dropout": 0.2,
        "form": "rolled+dots",
    },
    "inside the backward loop": {"clip_value": 0.02, "ema": 0.7, "dropout": 0.2, "form": "inside"},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_is_what_people_write_in_torch(case):
    options = dict(case)
    model = Net(options.pop("dropout", 0.0), 6 if "form" in options else 2)
    other = copy.deepcopy(model)
    # the certificate runs too: it must know of the same options
    step = bridge.compile(model, loss, adamw(model), example_batch=(X, Y), seed=SEED, **options)
    values = [step((X, Y)) for _ in range(3)]
    parts = options.get("accumulate", 1)
    losses, logits, averaged = torch_run(
        other, adamw(other), 3, parts, options.get("clip_norm"), options.get("clip_value"), options.get("ema")
    )
    for (ours, _), theirs in zip(values, losses, strict=True):
        assert abs(float(ours) - theirs) <= 1e-9 * abs(theirs)
    found = values[-1][1]["logits"].wait()
    assert found.shape == (logits.shape if parts > 1 else logits[0].shape)
    close({"logits": found.reshape(logits.shape)}, {"logits": logits})
    close(step.state_dict(), other.state_dict())
    assert step.certificate.ok and {r.kind for r in step.certificate.rows} >= {"update", "gradient", "buffer"}
    if averaged is not None:
        close(step.averages(), averaged.module.state_dict())
        copy.deepcopy(other).load_state_dict(step.averages())
    else:
        with pytest.raises(ValueError, match="no average is kept"):
            step.averages()


def test_an_eager_step_does_the_same():
    options = {"clip_norm": 0.1, "accumulate": 2, "ema": 0.7}
    runs = []
    for eager in (False, True):
        model = Net(0.2)
        step = bridge.compile(
            model, loss, adamw(model), example_batch=(X, Y), seed=SEED, certificate="none", **options
        )
        values = [step((X, Y)), (step.eager if eager else step)((X, Y)), step((X, Y))]
        runs.append(
            ([float(v) for v, _ in values], values[1][1]["logits"], step.state_dict(), step.averages())
        )
    (ours, logits, state, averages), (theirs, others, state2, averages2) = runs
    assert ours == pytest.approx(theirs, rel=1e-9)
    close({"logits": others}, {"logits": logits.wait()})
    close(state2, state)
    close(averages2, averages)


def test_an_average_is_saved_and_survives_another_optimizer_rule(tmp_path):
    model = Net()
    optimizer = adamw(model)
    step = bridge.compile(model, loss, optimizer, example_batch=(X, Y), ema=0.5, certificate="none")
    step((X, Y))
    step((X, Y))
    before = step.averages()
    step.save(tmp_path / "s.safetensors")
    step((X, Y))
    step.load(tmp_path / "s.safetensors")
    close(step.averages(), before)
    optimizer.param_groups[0]["maximize"] = True  # another rule: traced and compiled anew
    step.gradients((X, Y))
    close(step.averages(), before)


def test_the_cache_knows_the_options(tmp_path, monkeypatch):
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))

    def cached(**options):
        model = Net(layers=1)
        made = bridge.compile(
            model, loss, adamw(model), example_batch=(X, Y), seed=0, certificate="none", **options
        )
        return made.programs[0].cached

    each = [{}, {"clip_norm": 1.0}, {"clip_norm": 2.0}, {"clip_value": 1.0}, {"accumulate": 2}, {"ema": 0.9}]
    assert [cached(**options) for options in each] == [False] * len(each)
    assert [cached(**options) for options in each] == [True] * len(each)


@pytest.mark.parametrize("options", [{"clip_norm": 1.0}, {"accumulate": 2}], ids=str)
def test_the_update_inside_the_backward_loop_needs_no_whole_gradient(options):
    model = Net(layers=6)
    with pytest.raises(bridge.Refused, match="before the first update"):
        bridge.compile(model, loss, adamw(model), example_batch=(X, Y), form="inside", **options)


def test_a_batch_that_does_not_divide_is_refused():
    model = Net()
    with pytest.raises(bridge.Refused, match=r"batch\[0\] has shape \[12, 6\].*5 micro-batches"):
        bridge.compile(model, loss, adamw(model), example_batch=(X, Y), accumulate=5)
    with pytest.raises(ValueError, match="accumulate is 0"):
        bridge.compile(model, loss, adamw(model), example_batch=(X, Y), accumulate=0)
    with pytest.raises(ValueError, match="clip_norm must be positive"):
        bridge.compile(model, loss, adamw(model), example_batch=(X, Y), clip_norm=-1.0)


def test_moments_are_the_optimizers_own_and_nothing_that_the_step_keeps_beside_them():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = bridge.compile(
        model, loss, optimizer, example_batch=(X, Y), ema=0.9, certificate="none", cache=False
    )
    step((X, Y))
    assert {key for leaves in step.moments().values() for key in leaves} == {"momentum_buffer"}
