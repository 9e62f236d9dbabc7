"""The closed forms of every ``spec.py`` against a count of the traced Flax program, at every size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from detente.workloads.catalogue import WORKLOADS, find_size, find_workload
from detente.workloads.costs import Convolution, Product, attention, flops, largest, least_flops
from detente.workloads.traffic import PARAMETER_PASSES

ROWS = [
    (name, size)
    for name in WORKLOADS
    if "flax" in find_workload(name).definitions
    for size in find_workload(name).sizes
]
SCANNED = [(n, s) for n, s in ROWS if s == "tiny" and find_workload(n).layers(find_workload(n).sizes[s]) > 1]


class Counted:
    """What ``flax_costs.py`` counted: of each size the plain form, or the scanned one where only that was."""

    def __init__(self, found: dict[str, dict[str, int]]) -> None:
        self.found = found

    def at(self, name: str, size: str) -> dict[str, int]:
        return self.found.get(f"{name}/{size}/False") or self.found[f"{name}/{size}/True"]


@pytest.fixture(scope="module")
def counted() -> Counted:
    script = Path(__file__).with_name("flax_costs.py")
    done = subprocess.run(
        [sys.executable, str(script)], check=True, timeout=500, capture_output=True, text=True
    )
    return Counted(json.loads(done.stdout))


@pytest.mark.parametrize("region", ["forward", "gradient", "train-step"])
@pytest.mark.parametrize(("name", "size"), ROWS)
def test_flops(counted, name, size, region):
    workload = find_workload(name)
    if region not in workload.contracts:
        region = "gradient"  # gemm has no train step
    assert workload.flops(workload.sizes[size], region) == counted.at(name, size)[region]


@pytest.mark.parametrize(("name", "size"), SCANNED)
def test_a_scan_costs_what_its_layers_cost(counted, name, size):
    assert counted.found[f"{name}/{size}/True"] == counted.found[f"{name}/{size}/False"]


@pytest.mark.parametrize(("name", "size"), ROWS)
def test_parameters(counted, name, size):
    workload = find_workload(name)
    assert workload.parameters(workload.sizes[size]) == counted.at(name, size)["parameters"]


# As published: the papers' and model cards' own figures, to the digit where they give one.
PUBLISHED = {
    "gpt2": 124_439_808,
    "resnet50": 25_557_032,
    "bert": 109_483_778,
    "vit": 86_567_656,
    "gpt_neo": 1_315_575_808,
    "llama": 8_030_261_248,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_paper_is_the_published_model(counted, name):
    assert counted.at(name, "paper")["parameters"] == PUBLISHED[name]


@pytest.mark.parametrize(("name", "size"), ROWS)
def test_traffic_covers_what_must_move(counted, name, size):
    """No region may cost less than reading what is looked up of the parameters, and the batch, once; a train step costs
    its optimizer too."""
    workload = find_workload(name)
    at = workload.sizes[size]
    parameters = counted.at(name, size)["parameters"]
    batch = workload.batch(at, np.random.default_rng(0))
    moved = sum(a.size * 4 for a in batch.values())
    for contract in workload.contracts:
        found = workload.bytes(at, contract, 4, 4)
        unread = unread_rows(at) if contract in ("forward", "gradient") else 0
        assert found >= (parameters * PARAMETER_PASSES[contract] - unread) * 4 + moved
        assert workload.bytes(at, contract, 4, 2) <= found


def unread_rows(at) -> int:
    """Elements of tables that a batch of so many tokens cannot have looked up, were every table of that kind."""
    dims, used = at.dims, at.dims.get("sequence", 0)
    rows = max(0, dims.get("positions", used) - used) + dims.get("types", 0)
    rows += max(0, dims.get("vocab", 0) - dims["batch"] * used) if "vocab" in dims else 0
    return rows * dims.get("hidden", 0)


@pytest.mark.parametrize(("name", "size"), ROWS)
def test_the_largest_product_is_part_of_the_forward_pass(name, size):
    workload = find_workload(name)
    m, k, n = workload.products(workload.sizes[size])
    forward = workload.flops(workload.sizes[size], "forward")
    # A convolution's product counts the padding, the closed form does not.
    assert 0 < 2 * m * k * n <= forward * (1.5 if name.startswith("resnet") else 1)


@pytest.mark.parametrize(("name", "size"), ROWS)
def test_batches_follow_the_generator(name, size):
    workload = find_workload(name)
    at = workload.sizes[size]
    first, again, other = (workload.batch(at, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for entry, array in first.items():
        assert array.dtype in (np.float32, np.int64)
        assert np.array_equal(array, again[entry])
        assert not np.array_equal(array, other[entry])


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (3, 1), (7, 3), (4, 0), (2, 5)])
def test_taps_are_the_pairs_that_meet_a_pixel(kernel, stride, padding):
    for extent in range(kernel, 12):
        c = Convolution(extent, 1, 1, kernel, stride, padding)
        pairs = [(o, k) for o in range(c.result) for k in range(kernel)]
        assert c.taps() == sum(0 <= o * stride + k - padding < extent for o, k in pairs)


def test_taps_leave_out_the_padding():
    whole = Convolution(extent=4, inputs=1, outputs=1, kernel=3, stride=1, padding=1)
    assert (whole.result, whole.taps()) == (4, 10)
    strided = Convolution(extent=5, inputs=1, outputs=1, kernel=3, stride=2, padding=1)
    assert (strided.result, strided.taps()) == (3, 7)


def test_a_product_costs_each_gradient_that_somebody_asks_for():
    inner, data = Product(2, 3, 5), Product(2, 3, 5, times=4, data=True)
    assert [flops([inner], r) for r in ("forward", "gradient", "train-step")] == [60, 180, 180]
    assert [flops([data], r) for r in ("forward", "gradient", "train-step")] == [240, 480, 480]
    # The largest is one product, however often it is formed.
    assert largest([data, Product(2, 3, 6)]) == (2, 3, 6)


def test_attention_is_two_products_over_the_whole_square():
    assert flops(attention(batch=2, heads=3, positions=5, depth=7), "forward") == 2 * (2 * 2 * 3 * 5 * 5 * 7)


@pytest.mark.parametrize(
    ("mask", "seen"), [({}, 25), ({"causal": True}, 15), ({"causal": True, "window": 2}, 9)]
)
def test_what_a_mask_hides_may_be_left_out(mask, seen):
    """Of five positions a causal one sees 1 + 2 + 3 + 4 + 5, and in a window of two 1 + 2 + 2 + 2 + 2."""
    work = attention(batch=2, heads=3, positions=5, depth=7, **mask)
    assert least_flops(work, "forward") == 2 * (2 * 2 * 3 * seen * 7)
    assert least_flops(work, "gradient") == 3 * least_flops(work, "forward")
    assert flops(work, "forward") == 2 * (2 * 2 * 3 * 25 * 7)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo", "llama", "mha"])
def test_causal_models_say_what_is_the_least(name):
    workload = find_workload(name)
    size = find_size(workload, "tiny")
    assert workload.least_flops is not None
    assert 0.5 * workload.flops(size, "forward") < workload.least_flops(size, "forward")
    assert workload.least_flops(size, "forward") < workload.flops(size, "forward")
