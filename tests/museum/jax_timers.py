"""A JAX row in whose file the interpreter's timers run at half speed."""

from __future__ import annotations

import time

from detente.stacks.jax_jit import JaxJit

_real = {name: getattr(time, name) for name in ("perf_counter", "perf_counter_ns", "process_time_ns")}
time.perf_counter = lambda: _real["perf_counter"]() / 2
time.perf_counter_ns = lambda: _real["perf_counter_ns"]() // 2
time.process_time_ns = lambda: _real["process_time_ns"]() // 2


class HalfSpeedTimersInJax(JaxJit):
    """Every figure that goes by `time` is half of the truth."""
