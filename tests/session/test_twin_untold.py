"""A process of an A/A pair is not told which of the two it is: one that takes longer as the twin than as the row makes
a session that drifts, and no ratio of any row is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detente.records.codec import dumps
from detente.records.evidence import Evidence
from detente.session import workers
from detente.session.interrupts import Interrupts
from detente.session.layout import lay_out
from detente.session.request import Request
from detente.session.spawn import Spawned


def test_neither_its_job_nor_its_files_say_which_of_the_two_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str, str]] = []

    def spawned(job: Any, log: Path, *_: Any) -> Spawned:
        told.append((dumps(job), str(log), job.cache))
        return Spawned(Evidence("ok", "done"), 0.0, 1.0, 0.0, {})

    monkeypatch.setattr(workers, "spawn", spawned)
    request = Request(workloads=("ffn",), stacks=("torch-eager", "jax"), size="tiny")
    cells = lay_out(request).cells
    row, twin = (next(c for c in cells if c.label == label) for label in ("torch-eager", "torch-eager#aa"))
    with Interrupts() as interrupts:
        ours = workers.Workers(request, "session", interrupts)
        for cell in (row, twin):
            ours.run("time", cell, lambda phase: None)
    assert not any("#aa" in part or "-aa" in part for parts in told for part in parts)
    # Each has a cache of its own all the same, or the second would be warm by the first.
    assert told[0][2] != told[1][2]
