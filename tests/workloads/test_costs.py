"""The closed forms of every ``spec.py`` against a count of the traced Flax program, at every size."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from detente.workloads.catalogue import WORKLOADS, find_workload
from detente.workloads.resnet.spec import Convolution
from detente.workloads.traffic import PARAMETER_PASSES

ROWS = [
    (name, size)
    for name in WORKLOADS
    if "flax" in find_workload(name).definitions
    for size in find_workload(name).sizes
]
SCANNED = [(n, s) for n, s in ROWS if find_workload(n).layers(find_workload(n).sizes[s]) > 1]


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, int]]:
    script = Path(__file__).with_name("flax_costs.py")
    done = subprocess.run(
        [sys.executable, str(script)], check=True, timeout=500, capture_output=True, text=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("region", ["forward", "gradient", "train-step"])
@pytest.mark.parametrize(("name", "size"), ROWS)
def test_flops(counted, name, size, region):
    workload = find_workload(name)
    if region not in workload.contracts:
        region = "gradient"  # gemm has no train step
    assert workload.flops(workload.sizes[size], region) == counted[f"{name}/{size}/False"][region]


@pytest.mark.parametrize(("name", "size"), SCANNED)
def test_a_scan_costs_what_its_layers_cost(counted, name, size):
    assert counted[f"{name}/{size}/True"] == counted[f"{name}/{size}/False"]


@pytest.mark.parametrize(("name", "size"), ROWS)
def test_parameters(counted, name, size):
    workload = find_workload(name)
    spec = importlib.import_module(WORKLOADS[name])
    own = spec.parameters(workload.sizes[size]) if hasattr(spec, "parameters") else None
    if own is None:
        dims = workload.sizes[size]
        own = dims["k"] * dims["n"]
    assert own == counted[f"{name}/{size}/False"]["parameters"]


def test_gpt2_paper_is_gpt2_small(counted):
    assert counted["gpt2/paper/False"]["parameters"] == 124_439_808


@pytest.mark.parametrize(("name", "size"), ROWS)
def test_traffic_covers_what_must_move(counted, name, size):
    """No region may cost less than reading parameters and batch once; a train step costs its optimizer too."""
    workload = find_workload(name)
    at = workload.sizes[size]
    parameters = counted[f"{name}/{size}/False"]["parameters"]
    batch = workload.batch(at, np.random.default_rng(0))
    tokens = sum(a.size * 4 for a in batch.values())
    # A table of positions is read as far as the sequence goes.
    unused = (at["positions"] - at["sequence"]) * at["hidden"] if "positions" in at.dims else 0
    for contract in workload.contracts:
        found = workload.bytes(at, contract, 4, 4)
        assert found >= (parameters - unused) * 4 + tokens
        if contract != "forward":
            assert found >= parameters * 4 * PARAMETER_PASSES[contract]
        assert workload.bytes(at, contract, 4, 2) <= found


@pytest.mark.parametrize(("name", "size"), ROWS)
def test_the_largest_product_is_part_of_the_forward_pass(name, size):
    workload = find_workload(name)
    m, k, n = workload.products(workload.sizes[size])
    forward = workload.flops(workload.sizes[size], "forward")
    # A convolution's product counts the padding, the closed form does not.
    assert 0 < 2 * m * k * n <= forward * (1.5 if name == "resnet" else 1)


@pytest.mark.parametrize(("name", "size"), ROWS)
def test_batches_follow_the_generator(name, size):
    workload = find_workload(name)
    at = workload.sizes[size]
    first, again, other = (workload.batch(at, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for entry, array in first.items():
        assert array.dtype in (np.float32, np.int64)
        assert np.array_equal(array, again[entry])
        assert not np.array_equal(array, other[entry])


def test_taps_leave_out_the_padding():
    whole = Convolution(extent=4, inputs=1, outputs=1, kernel=3, stride=1, padding=1)
    assert (whole.result, whole.taps()) == (4, 10)
    strided = Convolution(extent=5, inputs=1, outputs=1, kernel=3, stride=2, padding=1)
    assert (strided.result, strided.taps()) == (3, 7)
