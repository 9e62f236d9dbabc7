"""A few steps of a JAX program under its own profiler: which operation takes how long."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 5


def watch(jax: Any, step: Callable[[], Any], steps: int = STEPS) -> tuple[bytes | None, dict[str, float]]:
    """The profile of some steps as the runtime writes it, None where it writes none, and what they took: how many there
    are (``steps``), seconds of a step under the profiler and without it (``profiled_s``, ``plain_s``), whose difference
    is what looking costs, seconds of the processors in a step without it (``cpu_s``), and the ``threads`` that may
    compute. ``step()`` returns what is waited for."""

    def run() -> tuple[float, float]:
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            jax.block_until_ready(step())
        return (time.perf_counter() - begun) / steps, (time.process_time() - used) / steps

    run()
    plain, cpu = run()
    facts = {
        "steps": float(steps),
        "plain_s": plain,
        "cpu_s": cpu,
        "threads": float(len(os.sched_getaffinity(0))),
    }
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory(prefix="detente-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            facts["profiled_s"], _ = run()
        found = sorted(Path(folder).rglob("*.xplane.pb"))
        return (found[-1].read_bytes() if found else None), facts
