"""Made-up sessions for the tests of the judge: a fair one, and the means to plant one fault in it. No figure in them
was measured."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planted_windows import fair_window

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.evidence import CompileRecord, Evidence
from detente.records.finding import Finding
from detente.records.result import CellResult, Result
from detente.records.sample import Sample
from detente.records.session import Fingerprint, Process, Session
from detente.records.tensor_error import TensorError

STEPS = {"torch-eager": 0.100, "jax": 0.080, "torch-compile": 0.090}
TWIN = "torch-eager#aa"
FLOPS, BYTES, WEIGHTS, STATE = 10**10, 10**9, 40_000_000, 120_000_008
VERSIONS = {
    "torch-eager": {"torch": "2.13.0"},
    "torch-compile": {"torch": "2.13.0"},
    "jax": {"jax": "0.10.2", "flax": "0.12.8"},
}
ERRORS = (
    TensorError("loss", "1", 2e-6, 1e-6, 11.0, 1),
    TensorError("loss", "2", 2e-6, 1e-6, 10.9, 1),
    TensorError("gradient", "h.0.attn.weight", 3e-9, 1e-9, 1e-3, 4096),
    TensorError("gradient", "h.0.attn.bias_k", 1e-12, 1e-12, 1e-15, 64),
    TensorError("update", "h.0.attn.weight", 1e-9, 2e-11, 1e-3, 4096),
)
PROOF = tuple(replace(e, err=1e-11 * e.rms, err_ref=0.0) for e in ERRORS)


def fair_step(stack: str) -> dict[str, Any]:
    """What watching one step of a fair row shows."""
    seen: dict[str, Any] = {"launches": 0, "regions": 0, "reads": 0, "parameters": WEIGHTS // 4}
    if not stack.startswith("torch"):
        return seen | {"launches": 1}
    seen |= {"updated": WEIGHTS // 2, "graph_breaks": 0, "frozen": False, "loss_read": False}
    seen |= {"product_dtypes": {"float32xfloat32": 49.0}, "random_ops": 0}
    seen |= {"operators": 60, "flops": float(FLOPS), "opaque": []}
    return seen if stack == "torch-eager" else seen | {"regions": 2, "updated": 0, "eager_ops": {}}


def fair_probes(stack: str, region: str = "train-step") -> dict[str, Any]:
    """What every probe says of a fair row."""
    inside = {"forward": [], "gradient": ["backward"], "train-step": ["backward", "optimizer"]}
    outputs = {"forward": ["logits"], "gradient": ["h.0.attn.weight"], "train-step": []}
    probes: dict[str, Any] = {
        "precision": {"class": "fp32", "mantissa_bits": 23, "denormals": True},
        "threads": {
            "asked": 2,
            "declared": [0, 1],
            "affinity": [[0, 1]],
            "computing": [[0, 1], [0, 1]],
            "niceness": [0],
            "niceness_before": [0],
            "policies": [0],
            "policies_before": [0],
            "framework": {"intra_op": 2, "inter_op": 1},
            "busy": 1.9,
        },
        "modules": {"frameworks": ["torch" if stack.startswith("torch") else "jax"], "foreign": []},
        "environment": {"before": {}, "after": {}},
        "declared": {"recipe": "whole-step", "contract": region, "feed": "resident"},
        "flags": {},
        "waiting": {"idle_s": 2e-6, "share": 4e-5, "asleep": 0.0},
        "observed": fair_step(stack),
        "slope": {"k": 10, "t_k": 1.0, "t_2k": 2.01, "read_t_k": 1.004},
        "rotation": {"losses": [11.0, 11.01, 10.99, 11.02]},
        "repeat": {"max_rel": 0.0},
        "consumed": {"outputs": outputs[region], "finite": True, "loss": 10.5},
        "devices": {"outputs": ["cpu"]},
        "peak": {"shapes": [[1024, 1024, 1024, 3e11], [2048, 768, 3072, 4e11]], "copy_bytes_per_s": 7e10},
        "host": {"collector": False, "profiler_active": False, "patched_timers": []},
        "weights": {
            "hash": "a" * 64,
            "reference_hash": "a" * 64,
            "count": 148,
            "reference_count": 148,
            "bytes": WEIGHTS,
        },
        "region": {
            "inside": inside[region],
            "moved": 148 if region == "train-step" else 0,
            "parameters": 148,
            "state_bytes": STATE if region == "train-step" else WEIGHTS,
        },
    }
    if not stack.startswith("torch"):
        probes["program"] = {
            "flops": FLOPS,
            "products": 49,
            "constants_bytes": 4096,
            "argument_bytes": STATE + 4096,
            "alias_bytes": STATE,
            "output_bytes": STATE,
            "dtypes": {"f32": 900},
            "product_dtypes": {"f32": 49},
            "narrow_sums": {},
            "rng_ops": 0,
            "unknown_loops": 0,
            "hash": "c" * 64,
        }
    return probes


Change = Callable[[Evidence], Evidence]


def probe(key: str, **values: Any) -> Change:
    """A change of some entries of one probe."""

    def change(evidence: Evidence) -> Evidence:
        probes = copy.deepcopy(evidence.probes)
        probes[key] = {**probes.get(key, {}), **values}
        return replace(evidence, probes=probes)

    return change


def without(key: str) -> Change:
    """A probe that brought nothing back."""
    return lambda evidence: replace(evidence, probes={k: v for k, v in evidence.probes.items() if k != key})


def make_session(
    blocks: int = 5,
    *,
    steps: Mapping[str, float] = STEPS,
    plant: Mapping[str, Change] | None = None,
    region: str = "train-step",
    spread: float = 0.003,
    twin: float | None = 1.0,
    workload: str = "gpt2",
    seed: int = 7,
    settings: Mapping[str, Any] | None = None,
    proofs: bool = True,
    foreign: float = 0.01,
    precision: str = "fp32",
) -> Session:
    """A session of ``steps`` (label -> seconds) with the A/A twin of the first row (``twin`` times its step; None: no
    A/A pair). ``plant`` maps a label to a change of each of its timing processes."""
    rng = random.Random(seed)
    first = next(iter(steps))
    times = dict(steps)
    if twin is not None:
        times[first + "#aa"] = steps[first] * twin
    contract = CONTRACTS[region].at(precision)
    cells = {x: Cell(workload, "paper", x.split("#")[0], contract, "cpu", x) for x in times}
    processes, clock = [], 1000.0
    for block in range(blocks):
        for order, label in enumerate(rng.sample(list(cells), len(cells))):
            level = times[label] * rng.lognormvariate(0, spread)
            evidence = fair_evidence(cells[label].stack, region, level, cold=block == 0, rng=rng)
            if plant and label in plant:
                evidence = plant[label](evidence)
            processes.append(Process(cells[label], "time", block, order, clock, 9.0, foreign, evidence))
            clock += 10.0
    if proofs:
        for label in steps:
            cell = replace(cells[label], size="tiny", contract=contract.at("fp64"))
            proof = Evidence("ok", "done", errors=PROOF)
            processes.append(Process(cell, "prove", -1, 0, clock, 9.0, foreign, proof))
    group = next(iter(cells.values())).group
    return Session(
        id="20261121T090000-planted",
        started=1000.0,
        command=("detente", "compare", workload),
        fingerprint=Fingerprint(
            {"cores": 2},
            {"workloads": {group: {"flops": FLOPS, "bytes": BYTES}}, **(settings or {})},
            "f" * 64,
        ),
        planned=tuple(cells.values()),
        aa=(first, first + "#aa") if twin is not None else None,
        processes=tuple(processes),
        ended=clock,
    )


def fair_evidence(stack: str, region: str, level: float, *, cold: bool, rng: random.Random) -> Evidence:
    """One fair timing process."""
    compiles = stack != "torch-eager"
    record = (
        CompileRecord(3, 4.0, 0, "miss" if cold else "hit") if compiles else CompileRecord(0, 0.0, 0, "none")
    )
    evidence = Evidence(
        "ok",
        "done",
        import_s=1.5,
        build_s=0.5,
        first_s=(9.0 if cold else 3.0) if compiles else level * 1.3,
        second_s=level * 1.1,
        third_s=level,
        losses=(11.0, 10.9, 10.8),
        samples=tuple(Sample(int(level * 1e9 * rng.lognormvariate(0, 0.004)), 1) for _ in range(8)),
        compile=record,
        errors=ERRORS,
        memory={"compiler_estimate": 500_000_000} if compiles else {},
        versions=VERSIONS.get(stack, {"x": "1"}),
        probes=fair_probes(stack, region),
    )
    return fair_window(evidence, region)


def row(result: Result, label: str) -> CellResult:
    return next(c for c in result.cells if c.label == label)


def loud(result: Result, label: str) -> dict[str, Finding]:
    """Rule -> finding of a row, those that are not checked left out."""
    return {f.rule: f for f in row(result, label).findings if f.severity != "unchecked"}


def quiet(result: Result, *labels: str) -> bool:
    """Whether the rows have no finding but unchecked ones."""
    return all(not loud(result, label) for label in labels or [c.label for c in result.cells])
