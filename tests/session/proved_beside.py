"""Prove three stacks of a workload on every core of this machine, with Ctrl-C pressed so often: prints JSON."""

from __future__ import annotations

import json
import os
import signal
import sys

from detente.records.job import Sampling
from detente.session.progress import Progress
from detente.session.request import Request
from detente.session.run import run_session

REQUEST = Request(
    ("gemm",),
    ("torch-eager", "jax", "jax-scan"),
    "tiny",
    blocks=1,
    aa=False,
    memory=False,
    sampling=Sampling(samples=5, seconds=0.3),
    command=("test",),
)


def main(presses: int) -> None:
    """Measure, pressing when the first proof starts."""
    # A test worker is pinned to its share of the cores; these proofs may use them all.
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    pressed = False

    def sink(event: Progress) -> None:
        nonlocal pressed
        if event.kind == "start" and event.text.endswith(": prove") and not pressed:
            pressed = True
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)

    session = run_session(REQUEST, sink)
    told = [
        {
            "kind": p.kind,
            "label": p.cell.label,
            "status": p.evidence.status,
            "began": p.started,
            "wall": p.wall_s,
        }
        for p in session.processes
    ]
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({"cores": cores, "note": session.note, "processes": told}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
