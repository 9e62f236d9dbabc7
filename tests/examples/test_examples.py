"""The example scripts run as a user runs them, and show what they claim."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import quick_xla

FOLDER = Path(__file__).parents[2] / "examples"


def run(name, tmp_path, monkeypatch, *, quick=True):
    """``quick``: not as a user's program is compiled."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", "off")
    if quick:
        monkeypatch.setenv("XLA_FLAGS", quick_xla.FLAGS)
    command = [sys.executable, str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_gpt2_trains_on_xla(tmp_path, monkeypatch):
    printed = run("train_gpt2_on_xla.py", tmp_path, monkeypatch, quick=False)
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


def test_the_trainer_of_transformers_is_equal_to_its_own_step_and_resumes(tmp_path, monkeypatch):
    printed = run("hf_trainer.py", tmp_path, monkeypatch)
    losses = numbers(r"step \d+: loss", printed)
    assert len(losses) == 3 and losses[-1] < 0.2 * losses[0], printed
    assert "certificate full passed" in printed
    assert "loss, learning rate and evaluation equal for 30 steps" in printed
    assert "resumed at step 15: equal to the end" in printed


def test_a_lightning_module_trains_as_it_does_without_the_callback(tmp_path, monkeypatch):
    printed = run("lightning_callback.py", tmp_path, monkeypatch)
    assert "steps: 24" in printed and "certificate full passed" in printed
    assert "weights, buffers, metrics and learning rate equal after 24 steps" in printed
    assert "went on from its checkpoint to step 32: equal" in printed


def test_a_physics_informed_net_finds_the_viscosity_and_is_equal_to_eager(tmp_path, monkeypatch):
    printed = run("physics_informed.py", tmp_path, monkeypatch)
    assert numbers("found viscosity:", printed)[0] == pytest.approx(0.5, abs=0.05), printed
    assert numbers("error of the field:", printed)[0] < 0.1, printed
    assert "certificate full passed" in printed and "losses and weights equal for 10 steps" in printed


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
