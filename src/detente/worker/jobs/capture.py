"""Capture: the stack's programs of one step, kept as files, and what an arm's check reads of them. What is traced here
carries the names of the model's modules; no process that is timed does."""

from __future__ import annotations

from pathlib import Path

from detente.programs.built import built_facts
from detente.programs.count import READERS
from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.protocol import Running
from detente.worker.artefacts import keep_programs
from detente.worker.events import Events
from detente.worker.opened import open_job
from detente.workloads.names_asked import ask_for_names


def run(job: Job, events: Events) -> Evidence:
    """Run one step, so that what is captured is what runs, then ask for the programs."""
    ask_for_names()
    opened = open_job(job, events)
    events.phase("first")
    handle = opened.running.step(opened.placed[0])
    loss = opened.running.loss(handle)
    events.phase("capture")
    programs = keep_programs(Path(job.artefacts), opened.captures)
    built = built_facts((c.form, c.data) for c in opened.captures if c.form in READERS)
    if hasattr(opened.stack, "compiler"):
        built["compiler"] = opened.stack.compiler()  # type: ignore[attr-defined]
    if hasattr(opened.running, "traced"):
        built["traced"] = opened.running.traced()  # type: ignore[attr-defined]
    return Evidence(
        "ok",
        "done",
        losses=(loss,),
        programs=programs,
        versions=opened.stack.versions(),
        probes={
            "built": built,
            "anchors": _anchors(opened.running),
            "unsigned": getattr(opened.running, "unsigned", ""),
        },
    )


def _anchors(running: Running) -> dict[str, str]:
    """Where the program's names have each parameter: canonical name -> path of the module that holds it. By these two
    programs of one model are laid side by side, whatever their modules are called."""
    if hasattr(running, "anchors"):
        return dict(running.anchors())  # type: ignore[attr-defined]
    return {name: name.rpartition(".")[0] for name in sorted(running.parameter_names())}
