"""A command of ours that starts one worker: ``python adopting.py STACK FOLDER``; prints what was left as JSON. In a
process of its own: whoever adopts orphans does so for good."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.job import Job
from detente.session import orphans
from detente.session.interrupts import Interrupts
from detente.session.spawn import spawn


def main(stack: str, folder: str) -> None:
    orphans.adopt()
    name = "tests/session/faulty_stacks.py:" + stack
    cell = Cell("gemm", "tiny", name, CONTRACTS["train-step"], "cpu", stack)
    job = Job("probe", cell, 0, folder, folder, folder, 1)
    with Interrupts() as interrupts:
        ended = spawn(job, Path(folder) / "log", interrupts, lambda _: None)
    mark = f"of {os.getpid()} behind its worker"
    running = [
        p.pid
        for p in psutil.process_iter(["cmdline", "status"])
        if p.info["status"] != psutil.STATUS_ZOMBIE and any(mark in part for part in p.info["cmdline"] or ())
    ]
    print(
        json.dumps(
            {
                "status": ended.evidence.status,
                "reason": ended.evidence.reason,
                "left": ended.evidence.left,
                "running": running,
                "children": [p.pid for p in psutil.Process().children()],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
