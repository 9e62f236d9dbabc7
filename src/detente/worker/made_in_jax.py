"""Weights and references by JAX, of a user's model that has no torch side. The model is then held against itself in
float64: that two frameworks compute the same, nobody can say of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from detente.records.contract import Contract
from detente.records.job import Job
from detente.records.kinks import Kinks
from detente.records.precision import drawn_at
from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_running import JaxRunning
from detente.worker.fair import EVERY_WAY, Arrays, Fair
from detente.worker.repeats import check_repeats
from detente.workloads.workload import Size, Workload

# Of the ways to round, those that are no switch of torch's.
_FAIR = tuple(f for f in EVERY_WAY if not f.channels_last and f.onednn and not f.threads)


class JaxMaker:
    """See worker/maker.py."""

    def __init__(self) -> None:
        # One running at a time: built and compiled once for all ways to round, as loading begins anew.
        self._kept: tuple[Any, JaxRunning] | None = None

    def first(
        self, job: Job, workload: Workload, size: Size, contract: Contract
    ) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]], Kinks]:
        stack = JaxJit()
        drawn = drawn_at(contract.precision)
        stack.start("cpu", drawn, job.threads)
        plain = replace(contract, precision=drawn, region="gradient", optimizer=None)
        batches = [workload.batch(size, np.random.default_rng(job.seed + 1 + i)) for i in range(job.batches)]
        running = stack.build(workload, size, plain)
        weights = running.tensors()
        check_repeats(running, batches[0], weights, workload.name, {})
        return weights, batches, Kinks(reason="the forward pass of a JAX model is not walked")

    def fair_runs(self, kinks: Kinks, many: bool = False) -> tuple[Fair, ...]:
        return _FAIR

    @contextmanager
    def running(
        self,
        fair: Fair,
        workload: Workload,
        size: Size,
        contract: Contract,
        precision: str,
        device: str,
        threads: int,
    ) -> Iterator[JaxRunning]:
        wanted = contract.at(precision)
        if self._kept is None or self._kept[0] != wanted:
            self._kept = None
            stack = JaxJit()
            stack.start(device, precision, threads)
            self._kept = (wanted, stack.build(workload, size, wanted))
        yield self._kept[1]

    def place(self, fair: Fair, running: JaxRunning, batch: Arrays) -> Any:
        return running.place(batch)

    @contextmanager
    def gradients(self, running: JaxRunning, batch: Any) -> Iterator[dict[str, np.ndarray]]:
        yield running.gradients(batch)


MAKER = JaxMaker
