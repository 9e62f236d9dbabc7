"""The example scripts run as a user runs them, and show what they claim."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples"


def run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", "off")
    command = [sys.executable, str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_gpt2_trains_on_xla(tmp_path, monkeypatch):
    printed = run("train_gpt2_on_xla.py", tmp_path, monkeypatch)
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 8 and losses[-1] < 0.5 * losses[0], printed
    assert "certificate full passed" in printed
    assert "goes on with 14" in printed, "3 was added each time"


def test_mislabelled_examples_have_the_longest_gradients(tmp_path, monkeypatch):
    printed = run("per_example_gradients.py", tmp_path, monkeypatch)
    longest, wrong = (re.search(rf"{n}:(.*)", printed) for n in ("longest gradients", "mislabelled"))
    assert longest and wrong and longest.group(1).split() == wrong.group(1).split(), printed


def numbers(pattern, printed):
    return [float(x) for x in re.findall(pattern + r" ([\d.]+)", printed)]


def test_nanogpts_loop_is_equal_to_eager_and_resumes(tmp_path, monkeypatch):
    printed = run("nanogpt_loop.py", tmp_path, monkeypatch)
    losses = numbers("loss", printed)
    assert len(losses) == 7 and losses[-1] < losses[0], printed
    assert "beside eager: equal" in printed and "resumed bitwise: True" in printed


def test_a_gan_of_two_networks_and_two_optimizers_is_equal_to_eager(tmp_path, monkeypatch):
    printed = run("gan.py", tmp_path, monkeypatch)
    before, after = numbers("radius before:", printed) + numbers("radius after:", printed)
    assert abs(after - 1) < abs(before - 1), printed
    assert "certificates: True True" in printed and "beside eager: equal for 20 steps of both" in printed


def test_ddpm_and_its_averaged_weights_are_equal_to_eager(tmp_path, monkeypatch):
    printed = run("ddpm.py", tmp_path, monkeypatch)
    assert numbers("last 50:", printed)[0] < 0.5 * numbers("step 0: loss", printed)[0], printed
    before, after = re.search(r"samples are ([\d.]+) from the data before, ([\d.]+) after", printed).groups()
    assert float(after) < 0.5 * float(before), printed
    assert "losses and averaged weights equal for 20 steps" in printed


def test_lora_trains_the_adapters_alone_and_is_equal_to_eager(tmp_path, monkeypatch):
    printed = run("lora_with_peft.py", tmp_path, monkeypatch)
    losses = numbers(r"step \d+: loss", printed)
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.3, printed
    assert "certificate full passed" in printed and "beside eager: equal for 10 steps" in printed
    assert "saved and loaded: equal True" in printed and "the base model is untouched: True" in printed


@pytest.mark.matrix
def test_every_mesh_has_the_same_loss(tmp_path, monkeypatch):
    printed = run("shard_over_a_mesh.py", tmp_path, monkeypatch)
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 4 and losses == pytest.approx([losses[0]] * 4, rel=2e-5)
    assert all(f"CPU {device}" in printed for device in range(8)), printed


def test_own_workload_is_one_that_the_bridge_takes():
    from detente import bridge

    spec = importlib.util.spec_from_file_location("own_workload", FOLDER / "own_workload.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    assert bridge.check(*(built := module.build())[:3], built[3]) == ()


def test_own_workload_is_named_on_the_command_line(detente):
    path = f"{FOLDER / 'own_workload.py'}:build"
    done = detente("compare", path, "--stacks", "torch-eager,detente", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "own_workload" in done.stdout + done.stderr
