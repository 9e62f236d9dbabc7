"""Tune: every form of a model's training step compiled and measured, beside PyTorch's own step, and the choice
remembered for later processes."""

from __future__ import annotations

import importlib
import logging
import os
from dataclasses import asdict
from typing import Any

import numpy as np

from detente.records.arm import NO_ARM, arm_of
from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.installed_versions import installed_versions
from detente.stacks.protocol import Unavailable
from detente.stacks.torch_eager import optimizer_for
from detente.stacks.torch_form import torch_form
from detente.worker.events import Events
from detente.workloads.catalogue import find_size, find_workload

VARIABLE = "DETENTE_BRIDGE_CACHE"


class Heard(logging.Handler):
    """What a call that takes long says of itself, as parts of the worker's phase."""

    def __init__(self, events: Events) -> None:
        super().__init__(logging.INFO)
        self.events = events

    def emit(self, record: logging.LogRecord) -> None:
        self.events.phase(self.events.phase_name, what=record.getMessage())


def listen(events: Events) -> None:
    logger = logging.getLogger("detente")
    logger.setLevel(logging.INFO)
    logger.addHandler(Heard(events))


def run(job: Job, events: Events) -> Evidence:
    """The choice under the probe key ``choice``, its text under ``text``. ``job.options["cache"]`` is the user's own
    ``DETENTE_BRIDGE_CACHE`` (None: not set), because what is found out here is for their programs."""
    told = job.options.get("cache")
    if told is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = told
    events.phase("import")
    import torch

    from detente import bridge
    from detente.bridge.folder import folder

    events.phase("build")
    workload = find_workload(job.cell.workload)
    size = find_size(workload, job.cell.size)
    definition = importlib.import_module(workload.definitions["torch"])
    torch.manual_seed(job.seed)
    module = definition.build(size)
    arrays = workload.batch(size, np.random.default_rng(job.seed))
    batch = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if (
        len(dtypes) == 1
    ):  # workloads hand over float32; a model that was made in another precision is fed in its own
        (dtype,) = dtypes
        batch = {n: t.to(dtype) if t.is_floating_point() else t for n, t in batch.items()}
    optimizer = optimizer_for(definition, job.cell.contract, module, workload.optimizer)

    events.phase("first")
    listen(events)
    step = bridge.compile(
        module,
        lambda m, b: definition.loss(m, b)[0],
        optimizer,
        example_batch=batch,
        certificate="none",
        tune=True,
    )
    float(step(batch).detach())
    if not step.choice.beside:
        _time_pytorch(step, definition, size, job, batch)
    choice, place = step.choice, folder()
    return Evidence(
        "ok",
        "done",
        versions=installed_versions("torch", "jax", "transformers"),
        probes={"choice": asdict(choice), "text": str(choice), "folder": str(place) if place else ""},
    )


def _time_pytorch(step: Any, definition: Any, size: Any, job: Job, batch: Any) -> None:
    """PyTorch's own step beside the tuned one: eager with the fused update, and compiled, each with images as they come
    and with their channels last. Here, in a process of its own with a model of its own: the loss of a user's loop may
    count, and is called by nobody but them."""
    import torch

    workload, sides = find_workload(job.cell.workload), {}
    last = arm_of({"layout": "channels-last"})
    for stack, arm in ((s, arm) for arm in (NO_ARM, last) for s in ("torch-eager", "torch-compile")):
        name, form = arm.label(stack), torch_form(stack, arm)
        given = {n: form.placed(torch, t) for n, t in batch.items()}
        if arm != NO_ARM and all(given[n] is t for n, t in batch.items()):
            continue  # nothing that it reads is an image
        torch.manual_seed(job.seed)
        try:
            module = form.laid_out(torch, definition.build(size))
        except Unavailable:
            continue
        optimizer = optimizer_for(
            definition, job.cell.contract, module, workload.optimizer, fused=stack == "torch-eager"
        )

        def loss(module: Any, batch: Any) -> Any:
            return definition.loss(module, batch)[0]

        # One code with tensors of two layouts: by itself torch would make the second program one of any strides.
        forward = torch.compile(loss, dynamic=False) if stack == "torch-compile" else loss

        def run(
            module: Any = module, optimizer: Any = optimizer, forward: Any = forward, batch: Any = given
        ) -> float:
            optimizer.zero_grad()
            value = forward(module, batch)
            value.backward()
            optimizer.step()
            return float(value.detach())

        try:
            run()
        except Exception as error:  # a compiler that is not there, or cannot; memory for one more model
            logging.getLogger("detente").info(
                "%s does not run here: %s", name, str(error).splitlines()[0][:200]
            )
            continue
        sides[name] = run
    if sides:
        step.measured_beside(sides, batch)
