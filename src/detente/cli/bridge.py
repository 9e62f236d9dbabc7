"""``detente bridge``: what the bridge says of a model before anything is compiled."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click

from detente.cli.options import format_option
from detente.records.fault import CellFault, MachineFault


@click.group("bridge", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """The bridge: an unmodified PyTorch model as one XLA program."""


@command.command("check", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "--size", help="Size of a workload of detente's own; a model of yours has one.  [default: tiny]"
)
@format_option("text", "json")
def check(model: str, size: str | None, form: str) -> int:
    """List everything that the bridge would refuse in MODEL, in one pass: path/to/file.py:function, hf:CONFIG, or
    a workload's name. Exit code 1 when there is anything."""
    from detente.records.cell import Cell
    from detente.records.contract import CONTRACTS
    from detente.records.job import Job
    from detente.session.interrupts import Interrupts
    from detente.session.layout import missing_reason
    from detente.session.spawn import spawn
    from detente.stacks.catalogue import find_entry
    from detente.workloads.catalogue import find_size, find_workload

    workload = find_workload(model)
    chosen = find_size(workload, size or ("tiny" if "tiny" in workload.sizes else None)).name
    why = missing_reason(find_entry("detente"))
    if why:
        raise MachineFault(f"the bridge cannot run here: {why}", "it needs torch and jax")
    cell = Cell(model, chosen, "detente", CONTRACTS["train-step"], "cpu", "detente")
    with tempfile.TemporaryDirectory() as folder, Interrupts() as interrupts:
        job = Job("check", cell, 0, folder, folder, folder, len(os.sched_getaffinity(0)))
        evidence = spawn(job, Path(folder) / "check.log", interrupts, lambda phase: None).evidence
    if evidence.status != "ok":
        raise CellFault(
            f"{model} could not be checked: {evidence.reason}", f"it ended in phase {evidence.phase!r}"
        )
    reasons = evidence.probes["reasons"]
    if form == "json":
        print(json.dumps({"schema": "detente/bridge-check/1", "model": model, "reasons": reasons}))
    elif not reasons:
        print(f"{model}: nothing stands in the way of the bridge")
    else:
        print(f"{model}: {len(reasons)} thing{'s' if len(reasons) > 1 else ''} the bridge refuses\n")
        for reason in reasons:
            print(reason["text"])
    return 1 if reasons else 0
