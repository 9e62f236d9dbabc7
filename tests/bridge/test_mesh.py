"""One unmodified model over meshes of virtual CPU devices: the same numbers everywhere, dropout on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import quick_xla

SCRIPT = Path(__file__).parent / "mesh_runs.py"
# Compiling takes most of the time. Eight devices share few cores, so a collective that waits for a thread for ever is
# ended by the time limit, with this file's name.
FLAGS = f"--xla_force_host_platform_device_count=8 {quick_xla.FLAGS}"
LIMIT = 500


def run(what, flags=FLAGS):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), what],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def trained():
    return run("train")


@pytest.mark.parametrize("name", ["data", "fsdp", "tensor"])
def test_every_mesh_gives_the_loss_of_one_device(trained, name):
    one = trained["one"]["losses"][:4]
    for devices in (2, 4, 8):
        assert trained[f"{name} {devices}"]["losses"][:4] == pytest.approx(one, rel=1e-6), devices


def test_the_same_seed_is_bitwise_the_same_and_another_is_not(trained):
    for name in ("data", "fsdp", "tensor"):
        digits = trained[f"{name} 8"]["hex"]
        assert digits[:4] == digits[4:], name
    one = trained["one"]["losses"]
    assert all(abs(a - b) > 1e-4 for a, b in zip(one[:4], one[4:], strict=True)), "dropout is on"
    assert one[3] < one[0]


def test_a_device_holds_its_share_only(trained):
    for devices in (2, 4, 8):
        assert trained[f"data {devices}"]["held"] == 1.0
        assert trained[f"fsdp {devices}"]["held"] == pytest.approx(1 / devices)
        cut = trained[f"tensor {devices}"]
        assert cut["whole"] < 0.1, "positions, norms and the biases behind a sum"
        assert cut["held"] == pytest.approx(cut["whole"] + (1 - cut["whole"]) / devices)


@pytest.mark.matrix
def test_a_product_over_four_by_two_devices_is_drawn_and_right():
    found = run("product", "--xla_force_host_platform_device_count=8")
    rows = [line.split() for line in found["drawing"].splitlines() if "CPU" in line]
    drawn = [[int(word) for word in row if word.isdigit()] for row in rows]
    assert drawn == [[0, 1], [2, 3], [4, 5], [6, 7]], found["drawing"]
    for row, devices in enumerate(drawn):
        for column, device in enumerate(devices):
            part = [[row * 2048, (row + 1) * 2048], [column * 4096, (column + 1) * 4096]]
            assert found["parts"][str(device)] == part
    assert found["far"] < 2e-6
