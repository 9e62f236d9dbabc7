"""Run a session and press Ctrl-C in a phase of its own: ``python interrupted.py PHASE KIND TIMES``; prints JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from detente.records.folders import data_folder
from detente.records.job import Sampling
from detente.session.progress import Progress
from detente.session.request import Request
from detente.session.run import run_session

REQUEST = Request(
    workloads=("gemm",),
    stacks=("torch-eager",),
    size="tiny",
    blocks=1,
    aa=False,
    sampling=Sampling(samples=5, seconds=0.3),
    command=("test",),
)


def main(phase: str, kind: str, times: int) -> None:
    workers: list[str] = []
    pressed = False

    def watch(event: Progress) -> None:
        nonlocal pressed
        where = "block 1" if kind == "time" else kind
        if event.kind == "start":
            workers.append(event.text)
        if event.kind == "phase" and event.phase == phase and event.text.endswith(where) and not pressed:
            pressed = True
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    stopped = run_session(REQUEST, watch)
    kept = [p.kind for p in stopped.processes]
    spool = Path(data_folder() / "sessions" / f"{stopped.id}.jsonl")
    again = run_session(replace(REQUEST), lambda event: None, resume=spool)
    told = {
        "pressed": pressed,
        "note": stopped.note,
        "kept": kept,
        "whole": [p.kind for p in again.processes],
        "statuses": sorted({p.evidence.status for p in again.processes}),
        "after": again.note,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
