"""From a job file to an evidence line: dispatch, and the one place where a failure becomes evidence."""

from __future__ import annotations

import importlib
import json
import traceback
from pathlib import Path

from detente.records.codec import from_json
from detente.records.evidence import Evidence
from detente.records.fault import Fault
from detente.records.job import Job
from detente.records.out_of_memory import is_out_of_memory
from detente.stacks.protocol import Unavailable
from detente.worker.events import Events, open_events

JOBS: dict[str, str] = {
    "prepare": "detente.worker.jobs.prepare",
    "weights": "detente.worker.jobs.weights",
    "time": "detente.worker.jobs.time",
    "prove": "detente.worker.jobs.prove",
    "plan": "detente.worker.jobs.plan",
    "fits": "detente.worker.jobs.fits",
    "memory": "detente.worker.jobs.memory",
    "smallest": "detente.worker.jobs.memory",  # the same steps, under one cap after the other
    "capture": "detente.worker.jobs.capture",
    "probe": "detente.worker.jobs.probe",
    "check": "detente.worker.jobs.check",
    "tune": "detente.worker.jobs.tune",
    "kernels": "detente.worker.jobs.kernels",
    "replay": "detente.worker.jobs.replay",
}


def run_file(path: str) -> int:
    """Run the job in ``path``; 0 whatever the evidence says, as long as there is evidence."""
    job = from_json(Job, json.loads(Path(path).read_text()))
    events = open_events()
    events.result(run_job(job, events))
    return 0


def run_job(job: Job, events: Events) -> Evidence:
    """The job's evidence. An exception becomes ``skipped``, ``oom`` or ``failed`` with the phase it happened in;
    the traceback goes to standard error, which the parent keeps."""
    try:
        return importlib.import_module(JOBS[job.kind]).run(job, events)
    except Unavailable as error:
        return Evidence("skipped", events.phase_name, str(error))
    except Fault as fault:  # a user's own definition that is wrong: its hint is what to do next
        return Evidence("failed", events.phase_name, f"{fault.message}; {fault.hint}".removesuffix("; "))
    except MemoryError as error:
        traceback.print_exc()
        return Evidence("oom", events.phase_name, _one_line(error) or "MemoryError")
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        reason = _one_line(error) + _place(error, job.cell.workload)
        return Evidence("oom" if is_out_of_memory(text) else "failed", events.phase_name, reason)


def _place(error: BaseException, workload: str) -> str:
    """The line of the user's own file in which it was raised, as `` (model.py:12)``; empty for another workload."""
    file = Path(workload.rpartition(":")[0])
    if file.suffix != ".py":
        return ""
    own = str(file.expanduser().resolve())
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == own]
    return f" ({file.name}:{lines[-1]})" if lines else ""


def _one_line(error: BaseException) -> str:
    """What failed. A heading ("... (1 reason):") says nothing without the line that follows it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {said}"[:400]
