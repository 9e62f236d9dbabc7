"""The workers of one request, one at a time: where their weights, caches and logs lie, and how a job becomes a run."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detente.records.cell import Cell
from detente.records.folders import cache_folder, data_folder, state_folder
from detente.records.job import Job, JobKind
from detente.records.out_of_memory import asked_bytes
from detente.records.precision import drawn_at
from detente.records.session import TWIN
from detente.session.disk import writing
from detente.session.interrupts import Interrupts, Tap
from detente.session.known_plan import known_plan
from detente.session.memory_cap import of_machine
from detente.session.prepared import is_prepared, prepared_folder
from detente.session.references_kept import References
from detente.session.request import Request
from detente.session.spawn import Spawned, spawn
from detente.stacks.catalogue import maker_of
from detente.store.artefacts import artefacts_of
from detente.workloads.catalogue import find_workload

BATCHES = 4


def threads_of(request: Request) -> int:
    """Every core that this process may use, unless the user said otherwise."""
    return request.threads or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Beside:
    """The core of a worker that does not run alone, and its own ear for interrupts."""

    cpu: int
    tap: Tap


def _under(reason: str, cell: Cell, cap: int) -> str:
    """What ran out, beside what was asked for, what it was allowed and what it was planned to hold."""
    planned, asked = known_plan(cell).get("planned_process"), asked_bytes(reason)
    more = "" if asked is None else f"asked for {asked / 1e9:.3g} GB more, "
    rest = "" if planned is None else f", it was planned to hold {planned / 1e9:.3g} GB"
    return f"{reason} ({more}allowed {cap / 1e9:.3g} GB{rest})"


class Workers:
    """Runs workers for ``request``. ``name`` separates their compile caches and logs from other sessions';
    ``check`` is asked before and behind each of them, and may raise."""

    def __init__(
        self, request: Request, name: str, interrupts: Interrupts, check: Callable[[], None] = lambda: None
    ) -> None:
        self.request, self.interrupts, self._check = request, interrupts, check
        self.artefacts = artefacts_of(data_folder()).folder
        self._caches = cache_folder() / "compile" / name
        self._logs = state_folder() / "logs" / name
        self.cpus = tuple(sorted(os.sched_getaffinity(0)))[: threads_of(request)]
        self._folders: dict[tuple[str, str, str, str], Path] = {}
        self._numbers = itertools.count()
        self.log = self._logs  # of the process that ran last
        # Key of a cell under the arm ``program`` -> the files of that program.
        self.foreign: dict[str, dict[str, str]] = {}
        self._memory = -1
        self._timed: set[str] = set()
        self._references = References()

    def folder(self, cell: Cell) -> Path:
        """The prepared folder, looked up once: its name holds a hash of the source, which may be edited meanwhile."""
        key = (cell.workload, cell.size, cell.device, drawn_at(cell.contract.precision))
        if key not in self._folders:
            self._folders[key] = prepared_folder(cell, self.request.seed, BATCHES)
        return self._folders[key]

    def maker(self, cell: Cell) -> Cell | None:
        """The cell whose ``prepare`` job makes what ``cell`` loads; None when it is there."""
        contract = cell.contract.resident()
        if is_prepared(self.folder(cell), contract):
            return None
        maker = maker_of(find_workload(cell.workload))
        return Cell(cell.workload, cell.size, maker, contract, cell.device, "prepare")

    def run(
        self,
        kind: JobKind,
        cell: Cell,
        on_phase: Callable[[str], None],
        capped: bool = True,
        beside: Beside | None = None,
        cap: int | None = None,
        **job: Any,
    ) -> Spawned:
        """Run one worker to its end. ``capped``: under the request's memory cap; ``beside``: with others, on a core of
        its own; ``job``: further fields of the Job. ``cap``: bytes that it may take instead of either."""
        # Which of an A/A pair it is, a process is not told, nor by a name of its files: one that takes longer as the
        # twin than as the row makes a session that drifts, and no ratio of any row is printed.
        told = replace(cell, label=cell.label.removesuffix(TWIN))
        # The key may hold a path and a size with many overrides, longer than a file's name can be; its hash tells two
        # apart that read alike.
        readable = "".join(c if c.isalnum() else "-" for c in told.key)[-100:]
        cache = self._caches / f"{readable}-{hashlib.sha256(cell.key.encode()).hexdigest()[:12]}"
        prepared = self.folder(cell)
        if kind == "time" and cell.key not in self._timed:
            # A row's first timed process starts cold, whoever compiled for the row before: its plan does, and JAX's
            # cache gave the bridge's first step what the plan had compiled (0.9 s of compiling instead of 8).
            self._timed.add(cell.key)
            shutil.rmtree(cache, ignore_errors=True)
        with writing(cache, "XDG_CACHE_HOME"):
            for place in (cache, prepared):
                place.mkdir(parents=True, exist_ok=True)
        self._check()
        self._references.before(kind, cell, prepared)
        cap = cap or (self.request.memory_cap if capped else None) or of_machine(cell.device)
        log = self.log = self._logs / f"{next(self._numbers):03d}-{kind}-{told.label.replace('/', '-')}.log"
        done = spawn(
            Job(
                kind,
                told,
                self.request.seed,
                str(prepared),
                str(self.artefacts),
                str(cache),
                threads_of(self.request) if beside is None else 1,
                sampling=self.request.sampling,
                options=self.request.options,
                memory=self._memory_for(kind),
                foreign=self.foreign.get(cell.key, {}),
                **job,
            ),
            log,
            self.interrupts if beside is None else beside.tap,
            on_phase,
            self.request.limits,
            self.cpus if beside is None else (beside.cpu,),
            cap,
        )
        self._check()
        self._references.behind(kind, cell, prepared)
        if done.evidence.status == "oom" and cap:
            done = replace(
                done, evidence=replace(done.evidence, reason=_under(done.evidence.reason, cell, cap))
            )
        return done

    def _memory_for(self, kind: JobKind) -> int:
        """The anonymous file into which timing processes hand out (worker/buffers.py): one for the session, because
        pages that were written once are fast, and new ones are not. ``prepare`` writes it ahead."""
        if kind not in ("time", "prepare"):
            return -1
        if self._memory < 0 and hasattr(os, "memfd_create"):
            self._memory = os.memfd_create("detente-states")
        return self._memory

    def forget_caches(self) -> None:
        """Remove the compile caches, so that the next session's first process starts cold again, and the memory."""
        shutil.rmtree(self._caches, ignore_errors=True)
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1
