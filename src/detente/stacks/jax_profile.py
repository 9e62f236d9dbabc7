"""A few steps of a JAX program under its own profiler, in a process that captures: which operation takes how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detente.bridge.watched import watch
from detente.stacks.protocol import Capture


def profiled(jax: Any, step: Callable[[], Any], name: str = "step") -> tuple[Capture, ...]:
    """A capture of form ``xplane`` with the facts of ``watch``; empty where the runtime writes nothing."""
    data, facts = watch(jax, step)
    return () if data is None else (Capture("xplane", name, data, facts),)
