"""A made-up session for the tests of the store. No figure in it was measured."""

from __future__ import annotations

import random

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.evidence import CompileRecord, Evidence
from detente.records.sample import Sample
from detente.records.session import Fingerprint, Process, Session
from detente.records.tensor_error import TensorError

STEPS = {"torch-eager": 0.140, "jax": 0.100, "jax#aa": 0.1005}


def make_session(
    blocks: int = 5,
    *,
    id: str = "20261121T090000-fabricated",
    samples: int = 6,
    scale: float = 1.0,
    seed: int = 7,
    started: float = 1_795_251_600.0,
    machine: dict[str, object] | None = None,
    versions: dict[str, str] | None = None,
    spread: float = 0.01,
) -> Session:
    """Three rows of gpt2/tiny, ``blocks`` blocks; step times are STEPS times ``scale`` with ``spread``
    between processes."""
    random_ = random.Random(seed)
    cells = tuple(
        Cell("gpt2", "tiny", label.split("#")[0], CONTRACTS["train-step"], "cpu", label) for label in STEPS
    )
    processes = []
    clock = started
    for block in range(blocks):
        order = random_.sample(range(len(cells)), len(cells))
        for position, index in enumerate(order):
            cell = cells[index]
            centre = STEPS[cell.label] * scale * random_.lognormvariate(0, spread)
            readings = tuple(
                Sample(round(centre * 1e9 * random_.lognormvariate(0, 0.003)), 1, round(centre * 2e9))
                for _ in range(samples)
            )
            evidence = Evidence(
                "ok",
                "done",
                import_s=1.0,
                build_s=0.2,
                first_s=4.0,
                second_s=centre * 1.1,
                third_s=centre,
                losses=(10.9, 10.7, 10.5),
                samples=readings,
                compile=CompileRecord(2, 3.5, 0, "hit"),
                errors=(TensorError("loss", "1", 1e-7, 1e-7, 10.9, 1),),
                memory={"process_peak": 2 << 30},
                versions=versions or {"jax": "0.10.2"},
            )
            processes.append(Process(cell, "time", block, position, clock, 9.0, 0.01, evidence))
            clock += 9.0
    settings = {"seed": 1, "threads": 2}
    fingerprint = Fingerprint(machine or {"processor": "made up", "cores": 2}, settings, "0" * 64)
    return Session(
        id,
        started,
        ("detente", "compare", "gpt2", "--size", "tiny"),
        fingerprint,
        cells,
        {"gpt2/tiny/train-step/fp32/cpu/torch-xla": "its environment is not added"},
        ("jax", "jax#aa"),
        tuple(processes),
        clock,
    )
