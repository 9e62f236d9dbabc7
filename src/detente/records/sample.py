"""A sample: one reading of the clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """``steps`` steps queued, one synchronise, ``wall_ns`` nanoseconds. Never deleted, never trimmed.

    cpu_ns          CPU time of the whole process over the same window (user + system)
    compile_events  compilations, traces and captures that the stack counted inside the window
    clock_mhz       device clock, where the device tells one
    """

    wall_ns: int
    steps: int = 1
    cpu_ns: int = 0
    compile_events: int = 0
    clock_mhz: int = 0
