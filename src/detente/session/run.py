"""The session: proofs, reference, blocks, memory; every finished process is spooled before the next one starts."""

from __future__ import annotations

import importlib.util
import json
import random
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from detente.records.cell import Cell
from detente.records.codec import dumps, from_json, to_json
from detente.records.fault import MachineFault, UsageFault
from detente.records.folders import data_folder
from detente.records.job import JobKind
from detente.records.session import Process, Session
from detente.session.budget import Budget
from detente.session.fingerprint import differences, take_fingerprint
from detente.session.interrupts import Interrupts
from detente.session.layout import AA, Layout, lay_out
from detente.session.lock import MachineLock
from detente.session.progress import Progress, Sink
from detente.session.proofs import proof_file
from detente.session.request import Request
from detente.session.spawn import Spawned
from detente.session.unmade import Unmade
from detente.session.workers import Workers, threads_of
from detente.store.spool import Spool
from detente.worker.probes import ALWAYS, PROBES
from detente.workloads.catalogue import find_size, find_workload

# Blocks that are run where no judge is at hand to ask for more or fewer (scipy is not installed).
UNJUDGED_BLOCKS = 5
LOCK_WAIT_S = 24 * 3600.0


class Recorder(Protocol):
    """Where finished processes go besides the spool: the database, where SQLAlchemy is installed."""

    def write_session(self, session: Session) -> None: ...
    def add_process(self, session_id: str, process: Process) -> None: ...
    def finish(self, session_id: str, ended: float, note: str, skipped: dict[str, str]) -> None: ...


class Stopped(Exception):
    """The user interrupted; what finished is kept."""


def run_session(
    request: Request, sink: Sink, recorder: Recorder | None = None, resume: Path | None = None
) -> Session:
    """Measure, and return the session with everything that finished, also after an interruption (``note`` says so).

    Raises UsageFault for a wrong request or a changed fingerprint on resume, MachineFault for a held lock, StoreFault
    when the spool cannot be written.
    """
    layout = lay_out(request)
    settings = settings_of(request, layout)
    fingerprint = take_fingerprint(settings)
    folder = data_folder() / "sessions"
    if resume is None:
        now = time.time()
        name = time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + "-" + secrets.token_hex(2)
        session = Session(
            name, now, request.command, fingerprint, layout.cells, dict(layout.skipped), layout.aa
        )
        spool = Spool.create(folder, session)
    else:
        spool, session = Spool.open(resume)
        changed = differences(session.fingerprint, fingerprint)
        if changed:
            spool.close()
            raise UsageFault(
                f"session {session.id} cannot be continued: " + "; ".join(changed[:6]),
                "leave --resume out to measure anew",
            )
    with spool, Interrupts() as interrupts:
        run = _Run(request, session, layout, spool, recorder, sink, interrupts)
        if recorder is not None:
            recorder.write_session(session)
        try:
            with MachineLock(LOCK_WAIT_S, run.say, lambda: interrupts.count > 0):
                return run.all()
        except MachineFault:
            if interrupts.count:  # pressed while waiting for another session: the user's wish, not a fault
                return run.end("interrupted")
            raise


def settings_of(request: Request, layout: Layout) -> dict[str, Any]:
    """What the session was asked for, and the plain numbers of its workloads, so that it can be judged anywhere."""
    asked = {k: v for k, v in to_json(request).items() if k not in ("command", "limits")}
    return {**asked, "threads": threads_of(request), "workloads": {c.group: _costs(c) for c in layout.cells}}


def _costs(cell: Cell) -> dict[str, Any]:
    workload = find_workload(cell.workload)
    size = find_size(workload, cell.size)
    region = cell.contract.region
    activations = 2 if cell.contract.precision == "bf16" else 4
    # The traffic of an update depends on the optimizer: SGD passes over its state fewer times than AdamW.
    traffic = cell.contract.name if cell.contract.optimizer == "sgd" else region
    return {
        "flops": workload.flops(size, region),
        "bytes": workload.bytes(size, traffic, 4, activations),
        "product": list(workload.products(size)),
        "dims": dict(size.dims),
    }


class _Run:
    """One session under way."""

    def __init__(
        self,
        request: Request,
        session: Session,
        layout: Layout,
        spool: Spool,
        recorder: Recorder | None,
        sink: Sink,
        interrupts: Interrupts,
    ) -> None:
        self.request, self.session, self.layout, self.spool = request, session, layout, spool
        self.recorder, self.sink, self.interrupts = recorder, sink, interrupts
        self.count, self.total = 0, 0
        self.budget = Budget(request.budget_s)
        self.workers = Workers(request, session.id, interrupts)
        self.unmade = Unmade(self.workers)

    def say(self, text: str) -> None:
        self._tell("note", text)

    def _tell(self, kind: str, text: str, **fields: Any) -> None:
        self.sink(Progress(kind, text, done=self.count, total=max(self.total, self.count), **fields))

    # -- the order of things ---------------------------------------------------------------------------------

    def all(self) -> Session:
        note = ""
        self.budget.begin()
        try:
            cells = self.layout.runnable()
            self._plan(cells)
            self._prove(cells)
            self._prepare(cells)
            if not self._alive() and self.unmade:
                self.end("nothing could be prepared")
                raise self.unmade.fault()
            self._blocks()
            self._memory()
        except Stopped:
            note = "interrupted"
            self.say(
                "interrupted; everything that finished is kept: "
                f"`detente compare --resume {self.session.id}` continues"
            )
        finally:
            self.workers.forget_caches()
        return self.end(note)

    def end(self, note: str) -> Session:
        """The session as it stands is the result; ``note`` says why it is not longer."""
        ended = time.time()
        self.spool.amend(ended=ended, note=note)
        if self.recorder is not None:
            self.recorder.finish(self.session.id, ended, note, self.session.skipped)
        self.session = replace(self.session, ended=ended, note=note)
        return self.session

    def _plan(self, cells: tuple[Cell, ...]) -> None:
        for key, why in self.session.skipped.items():
            self._tell("note", f"{key.rsplit('/', 1)[1]} is skipped: {why}", cell=key)
        blocks = self.request.blocks or UNJUDGED_BLOCKS
        self.total = blocks * len(cells) + (len(cells) if self.request.memory else 0)
        budget = f", within {self.request.budget_s:.0f} s" if self.request.budget_s else ""
        more = "" if self.request.blocks else " or more"
        self._tell("plan", f"session {self.session.id}: {len(cells)} rows, {blocks} blocks{more}{budget}")

    def _prove(self, cells: tuple[Cell, ...]) -> None:
        """Level one: same function, at size tiny in fp64, once per workload, stack and versions, then cached."""
        for cell in cells:
            workload = find_workload(cell.workload)
            if "tiny" not in workload.sizes or _is_twin(cell):
                continue
            proof = Cell(
                cell.workload,
                "tiny",
                cell.stack,
                replace(cell.contract, precision="fp64", feed="resident"),
                "cpu",
                cell.label,
            )
            if any(p.kind == "prove" and p.cell == proof for p in self.session.processes):
                continue
            cached = proof_file(proof)
            if cached.exists():
                self._keep(from_json(Process, json.loads(cached.read_text())))
                continue
            if not self._prepare_for(proof):
                continue
            process = self._process("prove", proof, full_proof=True)
            if process is not None:
                self._keep(process)
                if process.evidence.status == "ok":
                    cached.parent.mkdir(parents=True, exist_ok=True)
                    cached.write_text(dumps(process))

    def _prepare(self, cells: tuple[Cell, ...]) -> None:
        """A cell whose weights cannot be made is failed by that one reason, and no process of it starts."""
        gone = self.session.dead()
        for cell in cells:
            if cell.key not in gone and not self._prepare_for(cell):
                self._keep(self.unmade.process(cell))

    def _prepare_for(self, cell: Cell) -> bool:
        """Make the weights, batches and reference that the cell loads, unless they are there; whether they are now.
        Tried once: what fails for one row fails for all rows of its workload."""
        maker = self.workers.maker(cell)
        if maker is None:
            return True
        if not self.unmade.knows(cell):
            process = self._process("prepare", maker)
            if process is None or process.evidence.status == "ok":
                return True
            self.unmade.add(cell, process.evidence, self.workers.log)
        return False

    def _blocks(self) -> None:
        done = {p.block for p in self.session.processes if p.kind == "time"}
        block = max(done, default=-1) + 1
        while self._another():
            cells = self._alive()
            if not cells:
                return
            random.Random(f"{self.request.seed}/{block}").shuffle(cells)
            if self.request.budget_s and not self.session.whole_blocks():
                # The twin last: by then it is known whether there is time for more than one block.
                cells.sort(key=_is_twin)
            for order, cell in enumerate(cells):
                first = not self.session.of(cell)
                twin = _is_twin(cell)
                if twin and first and self.budget.only_block(cells, self.session):
                    self._drop_twin(cell)
                    continue
                process = self._process(
                    "time",
                    cell,
                    block=block,
                    order=order,
                    full_proof=first and not twin,
                    probes=PROBES if first and not twin else ALWAYS,
                )
                if process is None:
                    continue
                self._keep(process)
                if process.evidence.status == "skipped":
                    # It turned out not to run here (no such device, no TF32): nor do its twins.
                    same = [c for c in self.layout.cells if c.stack == cell.stack and c.group == cell.group]
                    self._skip(same, process.evidence.reason)
            block += 1
            whole = len(self.session.whole_blocks())
            if whole:
                self._tell("block", f"block {whole} is whole")

    def _alive(self) -> list[Cell]:
        """The cells that can run and did not fail, in display order."""
        gone = self.session.dead() | set(self.session.skipped)
        return [c for c in self.layout.runnable() if c.key not in gone]

    def _drop_twin(self, cell: Cell) -> None:
        why = f"the budget of {self.request.budget_s:.0f} s holds one block, and an A/A pair needs two"
        self._skip([cell], why)
        self._tell("note", f"{cell.label} is skipped: {why}", cell=cell.key)

    def _another(self) -> bool:
        """Whether to run another block: asked of the judge, bounded by the user's number and the budget."""
        whole = len(self.session.whole_blocks())
        if self.request.blocks is not None:
            if whole >= self.request.blocks:
                return False
        elif importlib.util.find_spec("scipy") is None:
            if whole >= UNJUDGED_BLOCKS:
                return False
        elif whole:
            from detente.judge import more_blocks

            decision = more_blocks(self.session)
            if not decision:
                self._tell("note", decision.reason)
                return False
        if not whole:
            return True
        cells, memory = self._alive(), self._memory_cells()
        if not self.budget.holds_block(cells, memory, self.session):
            cost = self.budget.cost_s("time", cells, self.session)
            self._tell(
                "note",
                f"the budget of {self.request.budget_s:.0f} s leaves no room for another block "
                f"(about {cost:.0f} s)",
            )
            return False
        left = max(1, (self.request.blocks or UNJUDGED_BLOCKS) - whole)
        self.total = self.count + left * len(cells) + len(memory)
        return True

    def _memory_cells(self) -> list[Cell]:
        """Memory runs are processes of their own: what they read would disturb a clock, and a clock them."""
        return [c for c in self._alive() if not _is_twin(c)] if self.request.memory else []

    def _memory(self) -> None:
        for cell in self._memory_cells():
            if self.session.of(cell, "memory"):
                continue
            if self.budget.over(self.budget.cost_s("memory", [cell], self.session)):
                self._tell("note", f"the budget leaves no room for the memory run of {cell.label}")
                continue
            process = self._process("memory", cell)
            if process is not None:
                self._keep(process)

    # -- one process -----------------------------------------------------------------------------------------

    def _process(
        self, kind: JobKind, cell: Cell, block: int = -1, order: int = 0, **job: Any
    ) -> Process | None:
        """Run one worker. None when the user stopped it: an unfinished process leaves no trace."""
        if self.interrupts.count:
            raise Stopped
        where = f"block {block + 1}" if block >= 0 else kind
        title = f"{cell.workload} {cell.size} {cell.label}: {where}"
        self._tell("start", title, cell=cell.key, eta_s=self._eta())
        spawned = self.workers.run(
            kind,
            cell,
            lambda phase: self._tell("phase", title, cell=cell.key, phase=phase),
            capped=kind in ("time", "memory"),
            **job,
        )
        if spawned.killed_by_user:
            raise Stopped
        self.count += 1
        self.budget.estimates.saw(kind, cell, spawned.wall_s)
        self._tell("end", f"{title} {_outcome(kind, spawned)}", cell=cell.key, eta_s=self._eta())
        return Process(
            cell,
            kind,
            block,
            order,
            spawned.started,
            spawned.wall_s,
            spawned.foreign,
            spawned.evidence,
            _shareable(spawned.environment),
        )

    def _keep(self, process: Process) -> None:
        self.spool.append(process)
        self.session = replace(self.session, processes=(*self.session.processes, process))
        if self.recorder is not None:
            self.recorder.add_process(self.session.id, process)

    def _skip(self, cells: list[Cell], why: str) -> None:
        """These are skipped from now on, and what they did so far is left out."""
        keys = {c.key: why for c in cells}
        self.spool.amend(skipped=keys)
        processes = tuple(p for p in self.session.processes if p.cell.key not in keys)
        self.session = replace(self.session, skipped={**self.session.skipped, **keys}, processes=processes)

    def _eta(self) -> float | None:
        return self.budget.eta_s(max(0, self.total - self.count))


def _is_twin(cell: Cell) -> bool:
    return cell.label.endswith(AA)


def _outcome(kind: JobKind, spawned: Spawned) -> str:
    e = spawned.evidence
    if kind == "prepare" and e.status != "ok":
        return e.status  # the reason is the reason of every row, and told once, with them
    return f"took {spawned.wall_s:.1f} s" if e.status == "ok" else f"{e.status}: {e.reason}"


def _shareable(environment: dict[str, str]) -> dict[str, str]:
    """The environment without its paths: a session is exported to other people's machines."""
    return {k: "(path)" if "/" in v else v for k, v in environment.items()}
