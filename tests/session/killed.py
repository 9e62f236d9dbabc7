"""Run a session whose worker is killed in a phase, and continue it: ``python killed.py PHASE/KIND...``; prints JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil
from interrupted import REQUEST

from detente.records.folders import data_folder
from detente.session.progress import Progress
from detente.session.run import run_session


def main(kills: list[str]) -> None:
    """Each kill in turn, in the session that the one before it left; then twice to the end."""
    told, spool = [], None
    for kill in [*kills, "/", "/"]:
        killer = _Kill(*kill.split("/"))
        session = run_session(REQUEST, killer, resume=spool)
        spool = Path(data_folder() / "sessions" / f"{session.id}.jsonl")
        told.append(
            {
                "killed": killer.done,
                "all": [(p.kind, p.evidence.status, p.evidence.killed) for p in session.processes],
                "judged": [
                    (p.kind, p.evidence.status) for p in session.processes if not session.ran_again(p)
                ],
                "dead": sorted(session.dead()),
                "whole": len(session.whole_blocks()),
            }
        )
    print(json.dumps(told))


class _Kill:
    """A sink that kills the worker (not this process) when one of ``kind`` enters ``phase``, the first time."""

    def __init__(self, phase: str, kind: str) -> None:
        self.phase, self.kind, self.done = phase, kind, False

    def __call__(self, event: Progress) -> None:
        here = event.text.endswith(self.kind) if self.kind != "time" else ": block" in event.text
        if event.kind == "phase" and event.phase == self.phase and here and not self.done:
            self.done = True
            for child in psutil.Process().children():
                os.kill(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
