"""Run a session, press Ctrl-C and continue it: ``python interrupted.py PHASE/KIND/TIMES...``; prints JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
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


def main(presses: list[str]) -> None:
    """Each press in turn, in the session that the one before it left; then to the end."""
    told, spool = [], None
    for press in [*presses, "//0"]:
        pressed = _Press(*press.split("/"))
        session = run_session(REQUEST, pressed, resume=spool)
        spool = Path(data_folder() / "sessions" / f"{session.id}.jsonl")
        told.append(
            {
                "pressed": pressed.done,
                "note": session.note,
                "kept": [p.kind for p in session.processes],
                "statuses": sorted({p.evidence.status for p in session.processes}),
            }
        )
    print(json.dumps(told))


class _Press:
    """A sink that sends SIGINT when a worker of ``kind`` enters ``phase``, the first time."""

    def __init__(self, phase: str, kind: str, times: str) -> None:
        self.phase, self.where, self.times = phase, "block 1" if kind == "time" else kind, int(times)
        self.done = False

    def __call__(self, event: Progress) -> None:
        here = event.kind == "phase" and event.phase == self.phase and event.text.endswith(self.where)
        if here and not self.done:
            self.done = True
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main(sys.argv[1:])
