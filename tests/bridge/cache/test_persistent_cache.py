"""A program is found again exactly when capturing it again would give the same program."""

from __future__ import annotations

import importlib
import linecache
import os
import re
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from detente import bridge

X = torch.ones(3, 4)
SCALE = 2.0


class Net(nn.Module):
    def __init__(self, slope=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.act = nn.Linear(4, 4), nn.LeakyReLU(slope)
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x):
        return self.act(self.linear(x)) * self.mask


def loss(model, batch):
    return model(batch).pow(2).sum() * SCALE


def scaled(factor):
    return lambda model, batch: model(batch).pow(2).sum() * factor


def changed(edit):
    model = Net()
    edit(model)
    return model


@pytest.fixture
def step(tmp_path, monkeypatch):
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))

    def make(model=None, function=loss, batch=X, lr=0.1, momentum=0.9, **options):
        model = model or Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        return bridge.compile(model, function, optimizer, example_batch=batch, certificate="none", **options)

    return make


def test_the_second_time_nothing_is_compiled(step):
    first, second = step(), step(lr=0.05)
    assert not first.programs[0].cached and second.programs[0].cached
    values = [[float(s(X)) for _ in range(3)] for s in (first, step())]
    assert values[0] == values[1]
    assert second.choice == first.choice
    assert "stablehlo" in second.programs[0].compiled.lowered.as_text()
    assert float(second.gradients(X)["linear.bias"].abs().sum()) > 0


OTHERS = {
    "another slope": lambda step: step(Net(0.2)),
    "another closure": lambda step: (step(function=scaled(2.0)), step(function=scaled(3.0)))[1],
    "another shape": lambda step: step(batch=torch.ones(2, 4)),
    "eval": lambda step: step(changed(lambda m: m.eval())),
    "frozen": lambda step: step(changed(lambda m: m.linear.bias.requires_grad_(False))),
    "another buffer": lambda step: step(changed(lambda m: m.mask.zero_())),
    "another method": lambda step: step(changed(lambda m: setattr(m, "forward", m.linear.forward))),
    "a hook": lambda step: step(changed(lambda m: m.register_forward_hook(lambda mod, args, out: out * 2))),
    "no momentum": lambda step: step(momentum=0.0),
    "another precision": lambda step: step(matmul="tensorfloat32"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_program_is_not_taken(name, step):
    step()
    assert not OTHERS[name](step).programs[0].cached


def test_a_changed_global_is_another_program(step, monkeypatch):
    step()
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 5.0)
    assert not step().programs[0].cached


def test_a_broken_file_is_compiled_again(step, tmp_path):
    assert not step().programs[0].uncached, "and it is written by now"
    for file in tmp_path.glob("*.program"):
        file.write_bytes(file.read_bytes()[:1000])
    assert not step().programs[0].cached
    assert step().programs[0].cached


def test_a_byte_that_has_changed_is_compiled_again(step, tmp_path):
    """A constant of the executable is another number: it runs, and its certificate would be of another program."""
    number = 0.7310586
    options = {"function": scaled(number), "batch": X}
    assert not step(**options).programs[0].uncached
    (file,) = tmp_path.glob("*.program")
    data, then = file.read_bytes(), struct.pack("<f", number)
    assert then in data
    file.write_bytes(data.replace(then, struct.pack("<f", 0.25)))
    made = step(**options)
    assert not made.programs[0].cached
    with torch.no_grad():
        expected = float(scaled(number)(Net(), X))
    assert float(made(X)) == pytest.approx(expected, rel=1e-5)


LOSS = """
from torch.nn.functional import cross_entropy


def loss(model, batch):
    out = model(batch[0])
    {within}
    return cross_entropy(out, batch[1])
"""


@pytest.mark.parametrize("where", ["above", "within", "both"])
def test_an_error_names_the_line_of_now(step, tmp_path, monkeypatch, where):
    """An edit that changes nothing of what the code does moves its lines; its program is the same."""
    monkeypatch.syspath_prepend(str(tmp_path))
    fine, bad = (X, torch.tensor([0, 1, 2])), (X, torch.tensor([0, 1, 7]))
    found = []
    for turn in range(3):
        above = "# a comment\n" * (0 if where == "within" else 30 * turn)
        within = "# a comment\n    " * (0 if where == "above" else 3 * turn)
        (tmp_path / "loss_that_moves.py").write_text(above + LOSS.format(within=within))
        sys.modules.pop("loss_that_moves", None)
        importlib.invalidate_caches()
        linecache.checkcache()
        loss = importlib.import_module("loss_that_moves").loss
        made = step(function=loss, batch=fine)
        float(made(fine))
        with pytest.raises(IndexError) as told:
            float(made(bad))
        line = re.search(r"loss_that_moves\.py:(\d+)", str(told.value))
        source = (tmp_path / "loss_that_moves.py").read_text().splitlines()
        assert "cross_entropy(out" in source[int(line[1]) - 1]
        found.append((made.programs[0].cached, int(line[1])))
        made._variants.chosen(made.programs[0], made.programs[0], made._rule)  # and it is written again
    sys.modules.pop("loss_that_moves", None)
    assert [cached for cached, _ in found] == [False, True, True]
    assert len({line for _, line in found}) == 3


def test_what_cannot_be_described_says_so(step):
    lock = threading.Lock()
    made = step(function=lambda model, batch: loss(model, batch) if lock else None)
    assert "lock" in made.programs[0].uncached
    assert step().programs[0].uncached == ""
    assert step(cache=False).programs[0].uncached == "the cache is off"


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(step, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / "file"))
    made = step()
    assert float(made(X)) > 0 and made.programs[0].uncached


REFEREE = """
import sys
import numpy as np
from detente.records.contract import CONTRACTS
from detente.stacks.catalogue import find_entry, make_stack
from detente.workloads.catalogue import find_workload

stack = make_stack(find_entry("detente"))
stack.start("cpu", sys.argv[1], 2)
workload = find_workload("gpt2")
size = workload.sizes["tiny"]
running = stack.build(workload, size, CONTRACTS["train-step"].at(sys.argv[1]))
running.loss(running.step(running.place(workload.batch(size, np.random.default_rng(0)))))
program = running.region.compiled_step.programs[0]
print(program.cached, program.uncached)
"""


@pytest.mark.matrix
def test_the_referees_own_row_is_found_by_its_second_process(tmp_path):
    told = [_python(REFEREE, tmp_path, "bf16").split(maxsplit=1) for _ in range(2)]
    assert [t[0] for t in told] == ["False", "True"], told


SCRIPT = """
import sys; sys.path.insert(0, {here!r})
import torch, test_persistent_cache as case
from detente import bridge
model = case.Net()
step = bridge.compile(model, case.loss, torch.optim.AdamW(model.parameters()), example_batch=case.X, seed=0)
print(step.programs[0].cached, [float(step(case.X)) for _ in range(3)], step.certificate.ok)
"""


def _python(script, cache, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "DETENTE_BRIDGE_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.matrix
def test_another_process_finds_it(tmp_path):
    script = SCRIPT.format(here=str(Path(__file__).parent))
    told = [_python(script, tmp_path).split(maxsplit=1) for _ in range(2)]
    assert [t[0] for t in told] == ["False", "True"]
    assert told[0][1] == told[1][1]


SEVERAL = """
import jax, torch, detente
assert len(jax.devices()) == 4
x, found = torch.ones(3, 4), []
for _ in range(2):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(model, lambda m, b: m(b).square().mean(), optimizer, example_batch=x)
    found.append((step.programs[0].cached, [float(step(x)) for _ in range(3)]))
(first, one), (second, other) = found
print(first, second, one == other)
"""


def test_a_program_is_found_again_where_several_devices_are_visible(tmp_path):
    here = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    here |= {"DETENTE_BRIDGE_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL], env=here, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["False", "True", "True"], done.stderr[-2000:]


ONCE = """
import torch
from detente import bridge
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
step = bridge.compile(
    model, lambda m, b: m(b).pow(2).sum(), torch.optim.SGD(model.parameters(), 0.1),
    example_batch=torch.ones(3, 4), certificate="none",
)
print(float(step(torch.ones(3, 4))), step.programs[0].cached, step.programs[0].uncached, sep="|")
"""


def once(tmp_path: Path, ours: str) -> list[str]:
    """One step in a process of its own, under JAX's compilation cache and a folder of ours."""
    caches = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"),
        "DETENTE_BRIDGE_CACHE": str(tmp_path / ours),
    }
    caches |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", ONCE],
        env={**os.environ, **caches},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1].split("|")


@pytest.mark.long
def test_what_jaxs_own_cache_gave_is_not_written_without_its_code(tmp_path):
    """XLA writes an executable that it has read itself as one that calls functions which are nowhere."""
    value, known, why = once(tmp_path, "first")
    assert (known, why) == ("False", "")
    assert once(tmp_path, "first") == [value, "True", ""]
    again = once(tmp_path, "second")  # JAX's cache knows it, ours does not
    assert again[:2] == [value, "False"] and "JAX's own compilation cache" in again[2]
    assert once(tmp_path, "second") == again
