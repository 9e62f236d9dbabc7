"""A few steps of a JAX program under its own profiler, in a process that captures: which operation takes how long."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detente.stacks.protocol import Capture

STEPS = 5


def profiled(jax: Any, step: Callable[[], Any], name: str = "step") -> tuple[Capture, ...]:
    """A capture of form ``xplane`` of ``STEPS`` steps, whose facts say how many there are (``steps``) and what a step
    took under the profiler and without it (``profiled_s``, ``plain_s``): the difference is what looking costs. Empty
    where the runtime writes nothing."""

    def run() -> float:
        begun = time.perf_counter()
        for _ in range(STEPS):
            jax.block_until_ready(step())
        return (time.perf_counter() - begun) / STEPS

    run()
    plain = run()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory(prefix="detente-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            seconds = run()
        found = sorted(Path(folder).rglob("*.xplane.pb"))
        if not found:
            return ()
        facts = {"steps": float(STEPS), "profiled_s": seconds, "plain_s": plain}
        return (Capture("xplane", name, found[-1].read_bytes(), facts),)
