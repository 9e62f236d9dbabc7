"""Time: the process whose steady samples are published, proved in the same process before they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from detente.records.evidence import CompileRecord, Evidence
from detente.records.job import Job
from detente.worker.clock import calibrate, steady
from detente.worker.events import Events
from detente.worker.opened import Opened, cache_state, open_job
from detente.worker.probes import run_probes
from detente.worker.process_state import take_state
from detente.worker.reference import map_reference
from detente.worker.three_steps import three_steps


def run(job: Job, events: Events) -> Evidence:
    """Import, build and load, three timed steps, their proof, reload, gradient proof, steady samples, probes.

    The proof stands behind the three steps because a gradient program compiled before them would warm the
    compiler (torch.compile's first step of 17.7 s became 0.54 s).
    """
    opened = open_job(job, events)
    running, region = opened.running, job.cell.contract.region
    steps = three_steps(running, opened.placed, opened.weights, region, events)
    compiled = running.compiled()
    state = cache_state(opened)

    events.phase("reload")
    running.load(opened.weights)
    events.phase("proof")
    trace = steps.trace
    if job.full_proof and region == "train-step":
        trace = replace(trace, gradients=running.gradients(opened.placed[0]))
    errors = map_reference(Path(job.prepared), job.cell.contract).errors(trace)
    losses = trace.losses
    del trace

    events.phase("steady")
    feed = opened.feed()
    queued = calibrate(running, feed, min(steps.seconds[1:]), job.sampling)
    before = take_state()
    samples = tuple(steady(running, feed, queued, job.sampling))
    opened.window = (before, take_state())

    events.phase("probes")
    probes = run_probes(job.probes, opened, samples)
    return Evidence(
        "ok",
        "done",
        import_s=opened.import_s,
        build_s=opened.build_s,
        first_s=steps.seconds[0],
        second_s=steps.seconds[1],
        third_s=steps.seconds[2],
        losses=losses,
        samples=samples,
        errors=errors,
        compile=CompileRecord(
            compiled.events, compiled.seconds, sum(s.compile_events for s in samples), state
        ),
        versions=opened.stack.versions(),
        probes=probes,
        programs=_programs(opened) if "program" in job.probes else (),
    )


def _programs(opened: Opened) -> tuple[Any, ...]:
    from detente.worker.artefacts import keep_programs

    return keep_programs(Path(opened.job.artefacts), opened.captures)
