"""Weights and references by torch-eager."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from detente.records.contract import Contract
from detente.records.fault import UsageFault
from detente.records.job import Job
from detente.records.kinks import Kinks
from detente.records.precision import drawn_at
from detente.stacks.torch_eager import TorchEagerDefault, TorchRunning
from detente.stacks.torch_form import TorchForm
from detente.worker.fair import Arrays, Fair, fair_runs
from detente.worker.kinks import AT_ZERO, clear, look
from detente.worker.layers.in_torch import walk
from detente.worker.layers.record import LAYERS, write_boundaries
from detente.worker.prepared import write_side
from detente.worker.repeats import check_repeats
from detente.worker.torch_reference import reference_run
from detente.workloads.catalogue import is_own
from detente.workloads.own.size import OwnSize
from detente.workloads.workload import Size, Workload


class TorchMaker:
    """See worker/maker.py."""

    def first(
        self, job: Job, workload: Workload, size: Size, contract: Contract
    ) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]], Kinks]:
        stack = TorchEagerDefault()
        drawn = drawn_at(contract.precision)
        stack.start("cpu", drawn, job.threads)
        stack.torch.manual_seed(job.seed)
        plain = replace(contract, precision=drawn, region="gradient", optimizer=None)
        running = stack.build(workload, size, plain)
        batches = [workload.batch(size, np.random.default_rng(job.seed + 1 + i)) for i in range(job.batches)]
        # Of narrow ones views, which keep them: the copy would not fit beside them.
        weights = running.views() if drawn != "fp32" else running.tensors()
        if is_own(workload.name):
            dropping = running.definition.dropping(running.module)
            try:
                check_repeats(running, batches[0], weights, workload.name, dropping)
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
                raise UsageFault(
                    f"{workload.name}: no parameter has a gradient of the loss that it returns",
                    "take detach(), item(), .data and no_grad() out of what leads from the parameters to the loss",
                ) from error
        folder = Path(job.prepared)
        if hasattr(running.definition, "side"):
            write_side(folder, running.definition.side(running.module))
        kinks = _looked(running, batches)
        del running
        gc.collect()
        if AT_ZERO & kinks.met.keys():
            with reference_run(workload, size, plain, "fp64", "cpu", job.threads) as exact:
                exact.load(weights)
                kinks, moved = clear(exact, lambda batch: exact.definition.loss(exact.module, batch), batches)
                weights |= moved
        if isinstance(size, OwnSize) and size.is_pair:
            # What names the first layer that differs, should the other side's proof fail.
            with reference_run(workload, size, plain, "fp64", "cpu", job.threads) as exact:
                exact.load(weights)
                placed = exact.place(batches[0])
                found = walk(lambda: exact.definition.loss(exact.module, placed), dict(exact._named()))
                write_boundaries(folder, LAYERS, found)
        return weights, batches, kinks

    def fair_runs(self, kinks: Kinks, many: bool = False) -> tuple[Fair, ...]:
        return fair_runs(kinks, many)

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
    ) -> Iterator[TorchRunning]:
        threads = (1 if threads > 1 else 2) if fair.threads else threads
        mkldnn: Any = torch.backends.mkldnn
        before = mkldnn.enabled
        mkldnn.enabled = before and fair.onednn
        try:
            with reference_run(workload, size, contract, precision, device, threads) as running:
                if fair.channels_last:
                    running.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                yield running
        finally:
            mkldnn.enabled = before

    def place(self, fair: Fair, running: TorchRunning, batch: Arrays) -> Any:
        form = TorchForm(channels_last=fair.channels_last)
        return {n: form.placed(torch, t) for n, t in running.place(batch).items()}

    @contextmanager
    def gradients(self, running: TorchRunning, batch: Any) -> Iterator[dict[str, np.ndarray]]:
        """Those of the step itself, before its update: a backward pass of their own would cost a fourth step. And
        before the hooks of the optimizer's own, in which a user may clip them."""
        found: dict[str, np.ndarray] = {}

        def hold(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if optimizer is running.optimizer:
                found.update(found or running.held_gradients())

        hook = register_optimizer_step_pre_hook(hold)
        try:
            yield found
        finally:
            hook.remove()


MAKER = TorchMaker


def _looked(running: TorchRunning, batches: list[dict[str, np.ndarray]]) -> Kinks:
    """The kinks of the first batch's forward pass."""
    try:
        return look(
            running.module, lambda: running.definition.loss(running.module, running.place(batches[0]))
        )
    except RuntimeError as error:  # what does not run at all fails as a row, in words of its own
        return Kinks(reason=f"{type(error).__name__}: {error}"[:200])
