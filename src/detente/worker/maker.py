"""Who makes the weights, batches and references of a workload: torch-eager, or JAX where a user's model has no torch
side."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

from detente.records.contract import Contract
from detente.records.job import Job
from detente.records.kinks import Kinks
from detente.worker.fair import Arrays, Fair
from detente.workloads.workload import Size, Workload

# Stack -> the module with its maker. Only the one that is asked for is imported: a process has one framework.
MAKERS = {"torch-eager": "detente.worker.made_in_torch", "jax": "detente.worker.made_in_jax"}


class Maker(Protocol):
    """What ``prepare`` and ``replay`` ask of a framework."""

    def first(
        self, job: Job, workload: Workload, size: Size, contract: Contract
    ) -> tuple[dict[str, Any], list[dict[str, Any]], Kinks]:
        """The canonical weights as the framework draws them, the batches, and the kinks of the function."""
        ...

    def fair_runs(self, kinks: Kinks, many: bool = False) -> tuple[Fair, ...]:
        """The runs behind ``err_ref``; ``many``: of a stretch of many steps."""
        ...

    def running(
        self,
        fair: Fair,
        workload: Workload,
        size: Size,
        contract: Contract,
        precision: str,
        device: str,
        threads: int,
    ) -> AbstractContextManager[Any]:
        """The reference at ``precision``, rounding as ``fair`` says: a ``Running`` that can ``adopt`` a state."""
        ...

    def place(self, fair: Fair, running: Any, batch: Arrays) -> Any:
        """The batch where the running is, laid out as ``fair`` says."""
        ...

    def gradients(self, running: Any, batch: Any) -> AbstractContextManager[dict[str, Any]]:
        """Those of the first step inside, which is on ``batch``: filled at the latest when that step is done."""
        ...


def make_maker(stack: str) -> Maker:
    """The maker behind the stack that a ``prepare`` or ``replay`` job names (stacks/catalogue.py ``maker_of``)."""
    return importlib.import_module(MAKERS[stack]).MAKER()
