"""Threads and cores: what was declared, what the process was left with, and how many cores were really busy."""

from __future__ import annotations

import os
import sys
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened
from detente.worker.process_state import computing, take_state

# The longest tick of a kernel. A fair row of 5 samples of 0.5 ms was void for 2.55 busy cores of 2: to one of them was
# booked 7.8 times its length.
TICK_NS = 10_000_000


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``threads``. ``declared`` are the cores that the parent named, ``affinity`` every set of cores that some
    thread, or one of a process that it started, may use now (one set, as a rule), and likewise ``niceness`` and
    ``policies``, with those of the process before the stack was loaded beside them. ``computing`` has the cores of each
    thread that computed in the window (or since the stack was loaded, where there was none). ``framework`` is what the
    frameworks' own functions read back.

    ``busy`` is processor time over wall time: of the sampled blocks, by the process's own clock, or of the whole
    window with everything that the process started, by the kernel's, whichever is larger, and at least: what a thread
    did before may be booked within it, up to a tick of the kernel's for each core. ``helped_s``: what of the window's
    was of processes that this one started, which no reading of its own processor time has.
    """
    now, began = take_state(), opened.began
    told = opened.environment["before"].get("DETENTE_AFFINITY", "")
    declared = sorted(int(core) for core in told.split(",") if core) or list(began.affinity[0])
    wall, cpu = sum(s.wall_ns for s in samples), sum(s.cpu_ns for s in samples)
    late = TICK_NS * len(declared)
    shares, helped = [max(0, cpu - late) / wall] if wall else [], None
    if opened.window is not None:
        before, after = opened.window
        surely = max(0.0, after.processor_s - before.processor_s - late / 1e9)
        shares.append(surely / max(after.at - before.at, 1e-9))
        helped = round(max(0.0, after.started_s - before.started_s), 3)
    states = [now, *(opened.window or ())]
    return {
        "threads": {
            "asked": opened.job.threads,
            "declared": declared,
            "affinity": sorted({cores for state in states for cores in state.affinity}),
            "computing": computing(*(opened.window or (began, now))),
            "niceness": sorted({level for state in states for level in state.niceness}),
            "niceness_before": list(began.niceness),
            "policies": sorted({policy for state in states for policy in state.policies}),
            "policies_before": list(began.policies),
            "framework": _read_back(),
            "busy": round(max(shares), 3) if shares else None,
            "helped_s": helped,
        }
    }


def _read_back() -> dict[str, int]:
    """Thread counts as the loaded frameworks report them; XLA's CPU client takes its pool from the affinity at import
    and nothing reads it back."""
    found = {}
    if torch := sys.modules.get("torch"):
        found["torch.get_num_threads"] = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        # Of characters that are digits, some are no decimal ones: int() raises for a superscript.
        if os.environ.get(name, "").isdecimal():
            found[name] = int(os.environ[name])
    return found
