"""Time: the process whose steady samples are published, and whose steady window is proved."""

from __future__ import annotations

import errno
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.evidence import CompileRecord, Evidence
from detente.records.job import Job
from detente.records.tensor_error import TensorError
from detente.records.window import Window
from detente.worker.buffers import held_already
from detente.worker.clock import calibrate, is_long
from detente.worker.cold import cache_state
from detente.worker.events import Events
from detente.worker.handed import WANTED, await_answer, can_hold, keep_returned, keep_stretches, some_of
from detente.worker.opened import Opened, open_job
from detente.worker.prepared import read_kinks
from detente.worker.probes import run_probes
from detente.worker.process_state import take_state
from detente.worker.reference import (
    GRADIENTS,
    RETURNED,
    STATE,
    TENSORS,
    Reference,
    Trace,
    has_reference,
    map_reference,
    reference_name,
    split_state,
    window_name,
)
from detente.worker.three_steps import ThreeSteps, three_steps
from detente.worker.window import FRESH, FRESH_S, Taken, draw_stretch, fresh_seed, fresh_steps, states
from detente.worker.window import Window as Taking

# What a disk says that holds no more. Any other refusal (a folder in a file's place) may be the stack's doing.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
# In place of a reference that there is not: the window's first steps are as many as of the slowest model.
_NOTHING = Reference({}, {}, steps=8)


def run(job: Job, events: Events) -> Evidence:
    """Import, build and load, three timed steps, the window, its proof, the proof of the gradients, probes.

    Where a step is long, the window goes on from the third step; else it begins at the loaded weights again, behind
    the calibration. Either way the state after its first steps is the reference's. The gradients are proved last: a
    gradient program compiled before would warm the compiler (torch.compile's first step of 17.7 s became 0.54 s).
    """
    opened = open_job(job, events, place=False)
    running, region = opened.running, job.cell.contract.region
    steps = three_steps(running, opened.placed, region, events, opened.batches)
    compiled = running.compiled()
    state = cache_state(opened, steps.seconds[0])
    folder, contract = Path(job.prepared), job.cell.contract
    trace = steps.trace(running, opened.weights, region, moved=region != "train-step")

    events.phase("reload")
    # A model that is too large for a reference is proved cut to a few layers, by a process of its own.
    referenced = has_reference(folder, contract)
    reference = map_reference(folder, window_name(contract)) if referenced else _NOTHING
    taking, rest, held = _ready(opened, steps, events, reference)
    fresh = _fresh(opened, taking, region)
    # Asked before the window: nothing of the stack's runs between its last reading and what is made of it.
    names = running.parameter_names()
    if region == "train-step":
        events.phase("memory")  # of what is handed out, until the window says that it begins
        taking.make_room(held)
    before, began = running.compiled().events, take_state()
    if region == "train-step":
        taken = taking.of_state(rest, fresh, opened.batches)
    else:
        taken = taking.of_outputs(fresh, opened.batches)
    opened.window = (began, take_state())
    opened.done, opened.collector, opened.first_loss = taken.newest, taken.collector, steps.losses[0]
    window = _window(job, taken, reference, opened.weights, names)
    if job.handed:
        said = await_answer(Path(job.handed))
        if said == WANTED:
            events.phase("keep")
            said = _keep(job, taken, fresh, names)
        # Before anything of the stack's runs again: what is on the disk, its code can change. And whatever was heard:
        # where the stack speaks in our name, the parent then hears two.
        events.kept(said)
    inside = running.compiled().events - before
    samples = tuple(taken.samples)
    del taken

    events.phase("proof")
    whole = RETURNED[region]
    if job.full_proof and region == "train-step":
        running.load(opened.weights)
        trace, whole = replace(trace, gradients=running.gradients(opened.placed[0])), GRADIENTS
    errors = map_reference(folder, reference_name(contract)).errors(trace, whole) if referenced else ()
    losses = trace.losses
    del trace

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
        compile=CompileRecord(compiled.events, compiled.seconds, inside, state),
        versions=opened.stack.versions(),
        probes=probes,
        programs=_programs(opened) if "program" in job.probes else (),
        window=window,
        kinks=read_kinks(folder),
    )


def _ready(
    opened: Opened, steps: ThreeSteps, events: Events, reference: Reference
) -> tuple[Taking, int, bool]:
    """The window, ready to be taken; how many of its first steps lead to the state that the reference holds; whether
    memory holds the states around its stretches."""
    running, job = opened.running, opened.job
    region, step_s, done = job.cell.contract.region, min(steps.seconds[1:]), 3
    feed = opened.feed(done)
    queued = 1
    if region != "train-step" or not is_long(step_s, job.sampling):
        running.load(opened.weights)
        queued = calibrate(running, feed, step_s, job.sampling)
        running.load(opened.weights)
        feed, done = opened.feed(), 0
    held = False
    if region == "train-step":
        # One more than it holds: on an accelerator a state that is handed out is a copy itself.
        wanted = states(step_s * queued) + 1
        held = can_hold(sum(a.nbytes for a in opened.weights.values()), wanted, held_already(job.memory))
    edges = (lambda: events.phase("steady"), lambda: events.phase("window"))
    # A single step pays for waking the threads and for the read: of a queue it is a part of this.
    each = max(step_s, job.sampling.block_s) if queued == 1 else job.sampling.block_s
    taking = Taking(running, feed, queued, each / queued, job.sampling, edges, job.memory)
    return taking, reference.steps - done, held


def _fresh(opened: Opened, taking: Taking, region: str) -> list[dict[str, np.ndarray]]:
    """Batches that no step has seen; none where a workload's batches differ in shape, and a new one would compile, or
    come from a loader. Of a step that is long and moves a state one, in the first process of a row."""
    from detente.workloads.catalogue import find_size

    job, workload = opened.job, opened.workload
    count, step_s = max(2, min(taking.queued, FRESH)), taking.each_s / taking.queued
    if region == "train-step":
        count = fresh_steps(step_s)
        if taking.feed.is_read or (step_s > FRESH_S and not job.full_proof):
            return []
    size = find_size(workload, job.cell.size)
    generator = np.random.default_rng(fresh_seed())
    found = [workload.batch(size, generator) for _ in range(count)]
    shapes = {
        tuple(sorted((n, a.shape, a.dtype.str) for n, a in b.items())) for b in [*opened.batches, *found]
    }
    return found if len(shapes) == 1 else []


def _window(job: Job, taken: Taken, reference: Reference, weights: Any, names: frozenset[str]) -> Window:
    """What is known of the window, its first steps proved. Moments in the first process of a row alone: they are two
    thirds of the state, and the parameters follow from them."""
    errors: tuple[TensorError, ...]
    if reference is _NOTHING:
        errors = ()
    elif taken.state:
        tensors, moments = split_state(taken.state)
        trace = Trace((), {}, {}, weights, tensors, names, moments if job.full_proof else {})
        errors = reference.errors(trace, whole=STATE if job.full_proof else TENSORS)
        known = {(e.kind, e.name) for e in errors}
        errors += tuple(e for e in reference.strangers(taken.given) if (e.kind, e.name) not in known)
    else:
        errors = _returned_errors(taken, reference, job.cell.contract.region)
    warm, placing = taken.warm, taken.placing
    return Window(
        proved=reference.steps if taken.state and errors else 0,
        warm_ns=warm.wall_ns if warm else 0,
        warm_cpu_ns=warm.cpu_ns if warm else 0,
        errors=errors,
        hand_outs=tuple(taken.hand_outs),
        fresh=taken.fresh,
        seen=tuple(taken.seen),
        singly=taken.singly or (),
        fresh_place_ns=placing.fresh_ns,
        seen_place_ns=placing.seen_ns,
        fresh_place_cpu_ns=placing.fresh_cpu_ns,
        seen_place_cpu_ns=placing.seen_cpu_ns,
        loss=reference.loss_error(1, taken.loss) if taken.state else None,
        placing_ns=placing.wall_ns,
        placing_cpu_ns=placing.cpu_ns,
    )


def _returned_errors(taken: Taken, reference: Reference, region: str) -> tuple[TensorError, ...]:
    """Steps on rotating batches against what the reference says of each batch, its loss too."""
    found: dict[str, TensorError] = {}
    for returned in taken.outputs:
        if returned.fresh:
            continue
        values = {n: a for n, a in returned.outputs.items() if n != "loss"}
        named = {f"{returned.number}:{n}": a for n, a in values.items()}
        trace = Trace(
            (),
            named if region == "forward" else {},
            named if region == "gradient" else {},
            {},
            {},
            frozenset(),
        )
        for error in reference.errors(trace, RETURNED[region]):
            # The other batches' entries are missing from this trace, and are no news.
            if error.name.partition(":")[0] == str(returned.number):
                found[f"{error.kind}|{error.name}"] = error
        loss = reference.loss_error(returned.number + 1, float(returned.outputs["loss"]))
        if loss is not None:
            found[f"loss|{loss.name}"] = loss
    return tuple(found.values())


def _keep(job: Job, taken: Taken, fresh: list[dict[str, np.ndarray]], names: frozenset[str]) -> str:
    """To disk, for a replay in a process of its own: no worker needs a second framework. The SHA-256 of what was kept,
    or why nothing was."""
    folder = Path(job.handed)
    stretches = some_of(taken.stretches, draw_stretch(taken))
    last = next((r for r in taken.outputs if r.fresh), None)
    try:
        if stretches:
            return keep_stretches(folder, stretches, names)
        if last is not None:
            return keep_returned(folder, fresh[last.number], last.outputs)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # A full disk is no fault of the row's: another process of it takes the turn.
        print(f"what was handed out could not be kept: {error}", file=sys.stderr)
        return f"what was handed out could not be kept: {error}"
    return "the timed process handed nothing out"


def _programs(opened: Opened) -> tuple[Any, ...]:
    from detente.worker.artefacts import keep_programs

    return keep_programs(Path(opened.job.artefacts), opened.captures)
