"""Capture: the stack's programs of one step, kept as files, and what an arm's check reads of them."""

from __future__ import annotations

from pathlib import Path

from detente.programs.built import built_facts
from detente.programs.count import READERS
from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.worker.artefacts import keep_programs
from detente.worker.events import Events
from detente.worker.opened import open_job


def run(job: Job, events: Events) -> Evidence:
    """Run one step, so that what is captured is what runs, then ask for the programs."""
    opened = open_job(job, events)
    events.phase("first")
    handle = opened.running.step(opened.placed[0])
    loss = opened.running.loss(handle)
    events.phase("capture")
    programs = keep_programs(Path(job.artefacts), opened.captures)
    built = built_facts((c.form, c.data) for c in opened.captures if c.form in READERS)
    return Evidence(
        "ok",
        "done",
        losses=(loss,),
        programs=programs,
        versions=opened.stack.versions(),
        probes={"built": built},
    )
