"""Every workload is one function in both frameworks: in float64, to 1e-9, outputs, loss, gradients and buffers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from detente.workloads.catalogue import WORKLOADS, find_size, find_workload
from detente.workloads.weights import canonical_hash
from tests import quick_xla

LIMIT = 1e-9
# A workload need not have both; one that has repeated layers is also scanned.
PAIRED = [n for n in WORKLOADS if {"torch", "flax"} <= set(find_workload(n).definitions)]
SCANNED = [n for n in PAIRED if find_workload(n).layers(find_workload(n).sizes["tiny"]) > 1]
CASES = [
    *({"workload": name, "scan": False, "train": True, "fault": ""} for name in PAIRED),
    *({"workload": name, "scan": True, "train": True, "fault": ""} for name in SCANNED),
    {"workload": "resnet", "scan": False, "train": False, "fault": ""},
    {"workload": "resnet50", "scan": False, "train": False, "fault": ""},
    {"workload": "gpt2", "scan": False, "train": True, "fault": "epsilon"},
]
for _case in CASES:
    _marks = ("scan" if _case["scan"] else "", "" if _case["train"] else "eval", _case["fault"])
    _case.update(case="-".join([_case["workload"], *filter(None, _marks)]), size="tiny", dtype="float64")
FAIR = [c["case"] for c in CASES if not c["fault"]]


def torch_side(case: dict, folder: Path) -> dict[str, np.ndarray]:
    """Run the torch definition in float64; leave the inputs of the Flax side in ``folder``."""
    workload = find_workload(case["workload"])
    size = find_size(workload, case["size"])
    definition = importlib.import_module(workload.definitions["torch"])
    torch.manual_seed(7)
    module = definition.build(size).double().train(case["train"])
    with torch.no_grad():
        # Off their initial zeros and ones, so that a bias or a scale that goes astray is seen. Buffers that are no part
        # of the state (rotary frequencies) are constants of the model.
        kept = module.state_dict()
        moving = [b for n, b in module.named_buffers() if n in kept and b.is_floating_point()]
        for tensor in (*module.parameters(), *moving):
            tensor.add_(0.05 * torch.rand_like(tensor))
    buffers = {n: b for n, b in module.state_dict().items() if b.is_floating_point()}
    names = {n: p for n, p in module.named_parameters()}
    ties = {p.data_ptr() for p in names.values()}
    buffers = {n: b for n, b in buffers.items() if n not in names and b.data_ptr() not in ties}
    before = {n: t.detach().numpy().copy() for n, t in (names | buffers).items()}
    arrays = workload.batch(size, np.random.default_rng(3))
    arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}
    batch = {n: torch.from_numpy(a.copy()) for n, a in arrays.items()}
    for name in workload.batch_gradients:
        batch[name].requires_grad_(True)
    np.savez(
        folder / f"{case['case']}.in.npz",
        **{f"weight:{n}": a for n, a in before.items()},
        **{f"batch:{n}": a for n, a in arrays.items()},
    )
    loss, outputs = definition.loss(module, batch)
    loss.backward()
    return {
        "loss": loss.detach().numpy(),
        **{f"output:{n}": t.detach().numpy() for n, t in outputs.items()},
        **{f"gradient:{n}": p.grad.numpy() for n, p in names.items() if p.grad is not None},
        **{f"gradient:batch:{n}": batch[n].grad.numpy() for n in workload.batch_gradients},
        **{f"loaded:{n}": a for n, a in before.items()},
        **{f"after:{n}": b.numpy() for n, b in buffers.items()},
    }


class Both(Mapping):
    """Case -> what torch found, what Flax found. A case of which a side raised fails the first test that asks for it,
    with that side's traceback; the later ones are skipped and say so: one cause is one failure."""

    def __init__(self, found: dict[str, tuple[dict, dict]], broken: dict[str, str]) -> None:
        self.found, self.broken, self.told = found, broken, set()

    def __getitem__(self, case: str) -> tuple[dict, dict]:
        if case in self.broken:
            if case in self.told:
                pytest.skip(f"{case} raised: the first test of it that failed shows where")
            self.told.add(case)
            pytest.fail(f"the definitions of {case} do not run:\n{self.broken[case]}", pytrace=False)
        return self.found[case]

    def __iter__(self):
        return iter((*self.found, *self.broken))

    def __len__(self) -> int:
        return len(self.found) + len(self.broken)


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Both:
    """Both sides of every case. One Flax process for all cases: its import is the dear part."""
    return run_both(CASES, tmp_path_factory.mktemp("workloads"))


def run_both(cases: list[dict], folder: Path) -> Both:
    ours, broken = {}, {}
    for case in cases:
        try:
            ours[case["case"]] = torch_side(case, folder)
        except Exception:
            broken[case["case"]] = traceback.format_exc()
    (folder / "cases.json").write_text(json.dumps([c for c in cases if c["case"] in ours]))
    script = Path(__file__).with_name("flax_side.py")
    quick = {**os.environ, "XLA_FLAGS": quick_xla.FLAGS}
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=500, env=quick)
    broken |= {name: p.read_text() for name in ours if (p := folder / f"{name}.error.txt").exists()}
    found = {n: (o, dict(np.load(folder / f"{n}.out.npz"))) for n, o in ours.items() if n not in broken}
    return Both(found, broken)


def test_one_broken_definition_is_one_failure_with_its_cause(tmp_path, monkeypatch):
    """``ffn`` breaks on the torch side, in its own file; ``gemm`` beside it is compared as ever."""
    definition = importlib.import_module(find_workload("ffn").definitions["torch"])
    monkeypatch.setattr(definition, "build", lambda size: 1 / 0)
    cases = [c for c in CASES if c["case"] in ("gemm", "ffn")]
    both = run_both(cases, tmp_path)
    with pytest.raises(pytest.fail.Exception, match="ZeroDivisionError"):
        both["ffn"]
    with pytest.raises(pytest.skip.Exception, match="ffn raised"):
        both["ffn"]
    test_frameworks_agree(both, "gemm")


def errors(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each tensor, relative to the larger of its largest element and 1e-6 of the largest
    gradient: what is zero on one side may be rounding on the other."""
    largest = max((np.abs(a).max() for n, a in one.items() if n.startswith("gradient:")), default=1.0)
    return {
        name: float(np.abs(a - two[name]).max() / max(np.abs(a).max(), 1e-6 * largest))
        for name, a in one.items()
    }


@pytest.mark.parametrize("case", FAIR)
def test_frameworks_agree(both, case):
    ours, theirs = both[case]
    assert set(ours) == set(theirs)
    found = errors(ours, theirs)
    worst = max(found, key=found.__getitem__)
    assert found[worst] <= LIMIT, f"{worst} differs by {found[worst]:.1e}"


def test_a_changed_epsilon_is_seen(both):
    ours, theirs = both["gpt2-epsilon"]
    assert errors(ours, theirs)["loss"] > LIMIT


@pytest.mark.parametrize("case", FAIR)
def test_the_weight_map_goes_there_and_back_unchanged(both, case):
    hashes = [
        canonical_hash({n: a for n, a in side.items() if n.startswith("loaded:")}) for side in both[case]
    ]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("case", FAIR)
def test_every_parameter_has_a_gradient(both, case):
    ours, _ = both[case]
    gradients = {n.removeprefix("gradient:") for n in ours if n.startswith("gradient:")}
    weights = {n.removeprefix("loaded:") for n in ours if n.startswith("loaded:")}
    buffers = {n.removeprefix("after:") for n in ours if n.startswith("after:")}
    assert {n for n in gradients if not n.startswith("batch:")} == weights - buffers


@pytest.mark.parametrize("name", ["resnet", "resnet50"])
def test_buffers_move_in_training_only(both, name):
    for case, moves in ((name, True), (f"{name}-eval", False)):
        _, theirs = both[case]
        for buffer in (n for n in theirs if n.startswith("after:")):
            before = theirs[f"loaded:{buffer.removeprefix('after:')}"]
            assert (np.abs(theirs[buffer] - before).max() > 0) == moves, buffer


def test_gpt2_counts_the_tied_output_projection_once(both):
    ours, _ = both["gpt2"]
    assert "loaded:transformer.wte.weight" in ours
    assert "loaded:lm_head.weight" not in ours
