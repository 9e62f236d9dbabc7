"""A step on disk and as StableHLO."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from detente import bridge
from detente.bridge.program.program import exported
from detente.bridge.state import checkpoint

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


def momentum(model, groups=None):
    return torch.optim.SGD(groups or model.parameters(), lr=0.5, momentum=0.9)


def made(optimizer_of=momentum, dtype=torch.float32):
    model = Net().to(dtype)
    optimizer = optimizer_of(model)
    step = bridge.compile(
        model, lambda m, b: m(b).float().pow(2).mean(), optimizer, example_batch=X, certificate="none", seed=7
    )
    return model, optimizer, step


class ByHand:
    """``if epoch == 2: group["lr"] *= 0.1``, as people write it."""

    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0

    def step(self):
        self.count += 1
        if self.count == 2:
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


SCHEDULES = {
    "by hand": ByHand,
    "that multiplies": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
    "of rate and momentum": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=10),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_the_rates_are_those_of_when_it_was_saved(tmp_path, schedule):
    """A schedule that is restored as torch says multiplies the rate that it finds."""
    _, optimizer, step = made()
    after, losses = schedule(optimizer), []
    for i in range(8):
        if i == 4:
            step.save(tmp_path / "s")
            kept = after.state_dict().copy()
        losses.append(float(step(X)))
        after.step()
    _, optimizer, again = made()
    follows, resumed = schedule(optimizer), []
    again.load(tmp_path / "s")
    follows.load_state_dict(kept)
    for _ in range(4):
        resumed.append(float(again(X)))
        follows.step()
    assert resumed == losses[4:]


def two_groups(*, turned=False, tensor=False):
    def optimizer(model):
        rate = torch.tensor(0.25) if tensor else 0.25
        groups = [
            {"params": [model.first.weight], "lr": rate, "betas": (0.5, 0.75)},
            {"params": [model.first.bias, model.second.bias, *model.norm.parameters()]},
        ]
        return torch.optim.AdamW(groups[::-1] if turned else groups, lr=0.5)

    return optimizer


@pytest.mark.parametrize("tensor", [False, True], ids=["a number", "a tensor"])
def test_groups_are_found_by_their_parameters(tmp_path, tensor):
    _, optimizer, step = made(two_groups(tensor=tensor))
    step(X)
    group = optimizer.param_groups[0]
    group["lr"] = group["lr"] * 0.5
    group["betas"], group["maximize"], group["mine"] = (0.25, 0.5), True, "kept"
    step.save(tmp_path / "s")
    straight = float(step(X)), float(step(X))
    _, other, again = made(two_groups(turned=True, tensor=tensor))
    held = other.param_groups[1]["lr"]
    again.load(tmp_path / "s")
    ours, rest = other.param_groups[1], other.param_groups[0]
    assert float(ours["lr"]) == 0.125 and rest["lr"] == 0.5 and rest["betas"] == (0.9, 0.999)
    assert ours["betas"] == (0.25, 0.5) and ours["maximize"] is True and ours["mine"] == "kept"
    assert (ours["lr"] is held) == tensor, "what reads the tensor finds the new rate"
    assert (float(again(X)), float(again(X))) == straight


def test_numbers_of_other_groups_are_said_and_left_out(tmp_path):
    _, optimizer, step = made(two_groups())
    optimizer.param_groups[0]["lr"] = 0.125
    step.save(tmp_path / "s")
    _, other, again = made(lambda model: torch.optim.AdamW(model.parameters(), lr=0.0625))
    with pytest.warns(UserWarning, match=r"numbers of 2 other param_groups: lr \(0.0625\)"):
        again.load(tmp_path / "s")
    assert other.param_groups[0]["lr"] == 0.0625


def test_a_file_of_an_earlier_version_goes_on_as_it_did(tmp_path):
    _, optimizer, step = made()
    step(X)
    step.save(tmp_path / "s")
    straight = float(step(X))
    with safe_open(str(tmp_path / "s"), "pt") as file:
        metadata = {k: v for k, v in file.metadata().items() if k != "param_groups"}
    save_file(load_file(tmp_path / "s"), tmp_path / "old", metadata)
    optimizer.param_groups[0]["lr"] = 0.125
    with pytest.warns(UserWarning, match=r"old holds no numbers of param_groups: lr \(0.125\)"):
        step.load(tmp_path / "old")
    assert float(step(X)) == straight and optimizer.param_groups[0]["lr"] == 0.125


def cut_short(path):
    path.write_bytes(path.read_bytes()[:200])


def without_its_end(path):
    path.write_bytes(path.read_bytes()[:-8])


def of_torch(path):
    torch.save(Net().state_dict(), path)


def of_others(path):
    save_file({"first.bias": torch.ones(4)}, path, {"format": "pt"})


FOREIGN = {
    "cut short": (cut_short, "was cut short"),
    "without its end": (without_its_end, "was cut short"),
    "empty": (lambda path: path.write_bytes(b""), "was cut short"),
    "a text": (lambda path: path.write_bytes(b"hello world, this is no checkpoint at all"), "no safetensors"),
    "of torch.save": (of_torch, "what torch.save wrote"),
    "of somebody else's": (of_others, r"schema None[\s\S]*step.restart"),
}


@pytest.mark.parametrize("case", FOREIGN.values(), ids=FOREIGN.keys())
def test_what_is_no_checkpoint_is_refused_and_changes_nothing(tmp_path, case):
    spoil, says = case
    model, _, step = made()
    step(X)
    step.save(tmp_path / "file")
    spoil(tmp_path / "file")
    with torch.no_grad():
        model.second.bias.data.fill_(3.0)  # no version tells of it
    with pytest.raises(bridge.Refused, match=says) as refused:
        step.load(tmp_path / "file")
    assert refused.value.reasons[0].code == "checkpoint" and str(tmp_path / "file") in str(refused.value)
    assert torch.equal(step.state_dict()["second.bias"], torch.full((4,), 3.0))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        step.load(tmp_path / "nowhere")


def test_a_save_that_is_ended_halfway_leaves_the_checkpoint_of_before(tmp_path, monkeypatch):
    _, _, step = made()
    file, link = tmp_path / "file", tmp_path / "last"
    link.symlink_to(file)
    step.save(link)
    file.chmod(0o600)
    before = file.read_bytes()
    step(X)

    def half(tensors, path, metadata):
        save_file(tensors, path, metadata)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", half)
        with pytest.raises(KeyboardInterrupt):
            step.save(link)
    assert file.read_bytes() == before and {p.name for p in tmp_path.iterdir()} == {"file", "last"}
    step.save(link)
    assert file.read_bytes() != before and link.is_symlink() and file.stat().st_mode & 0o777 == 0o600
    assert {p.name for p in tmp_path.iterdir()} == {"file", "last"}
    step.load(link)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    _, _, step = made()
    for path, says in ((tmp_path / "no" / "file", "there is no folder .*no"), (tmp_path, "was not written")):
        with pytest.raises(bridge.Refused, match=says):
            step.save(path)
    assert not [*tmp_path.iterdir()]


def test_a_float_that_moves_is_pythons_and_in_no_checkpoint(tmp_path):
    """Whoever has a schedule in an attribute resumes in a step for which that is no input yet, and in one for which it
    is."""

    def begun():
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        model.warmth = 1.0
        step = bridge.compile(
            model,
            lambda m, x: (m(x) * m.warmth).square().mean(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            example_batch=X,
            quiet=True,
        )
        return model, step

    def go_on(model, step, numbers):
        found = []
        for number in numbers:
            model.warmth = 1.0 - 0.1 * number
            found.append(float(step(X)))
        return found

    model, step = begun()
    go_on(model, step, range(4))
    step.save(tmp_path / "file")
    whole = go_on(model, step, range(4, 7))
    assert "model.warmth" not in load_file(tmp_path / "file")
    step.load(tmp_path / "file")
    assert go_on(model, step, range(4, 7)) == whole
    other, fresh = begun()
    fresh.load(tmp_path / "file")
    assert go_on(other, fresh, range(4, 7)) == pytest.approx(whole, rel=1e-6)
