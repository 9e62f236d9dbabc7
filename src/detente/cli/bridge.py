"""``detente bridge``: what the bridge refuses in a model, the form that runs fastest here, where its step's time goes,
and what a machine is asked once."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from detente.cli.options import format_option
from detente.cli.text import say
from detente.programs.module import ProgramError
from detente.records.fault import CellFault, UsageFault

if TYPE_CHECKING:
    from detente.records.job import JobKind
    from detente.workloads.workload import Workload


@click.group("bridge", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """The bridge: an unmodified PyTorch model as one XLA program.

    \b
    Examples:
      detente bridge check path/to/model.py:build
      detente bridge tune gpt2 --size tiny
      detente bridge profile path/to/model.py:build
      detente bridge prepare
    """


@command.command("prepare", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--again", is_flag=True, help="Measure anew what is remembered.")
@format_option("text", "json")
def prepare(again: bool, form: str) -> int:
    """Build the bridge's kernels on this machine, where the installation did not, and measure what they take over from
    XLA: a first step would do both. The answers are remembered for this processor.

    Once after an installation, on a quiet machine; --again where it was not quiet. Some ten seconds.

    \b
    Examples:
      detente bridge prepare
      detente bridge prepare --again --format json
    """
    from detente.report.kernels_page import kernels_lines

    options = {"again": again, "kernels": os.environ.get("DETENTE_KERNELS")}
    found = _asked("kernels", "gemm", "tiny", "prepared", options, "the kernels")["kernels"]
    if form == "json":
        print(json.dumps({"schema": "detente/bridge-prepare/1", **found}))
    else:
        for line in kernels_lines(found):
            say(line)
    return 0


@command.command("check", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "--size", help="Size of a workload of detente's own; a model of yours has one.  [default: tiny]"
)
@format_option("text", "json")
def check(model: str, size: str | None, form: str) -> int:
    """List everything that the bridge would refuse in MODEL, in one pass: path/to/file.py:function, hf:CONFIG, or
    a workload's name. Exit code 1 when there is anything.

    \b
    Examples:
      detente bridge check path/to/model.py:build
      detente bridge check hf:gpt2 --format json
    """
    from detente.workloads.catalogue import find_workload

    tiny = "tiny" if "tiny" in find_workload(model).sizes else None
    reasons = _run("check", model, size or tiny, "checked", {})["reasons"]
    if form == "json":
        print(json.dumps({"schema": "detente/bridge-check/1", "model": model, "reasons": reasons}))
    elif not reasons:
        print(f"{model}: nothing stands in the way of the bridge")
    else:
        print(f"{model}: {len(reasons)} thing{'s' if len(reasons) > 1 else ''} the bridge refuses\n")
        for reason in reasons:
            print(reason["text"])
    return 1 if reasons else 0


@command.command("tune", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option("--size", help="Size of a workload of detente's own.  [default: its largest]")
@format_option("text", "json")
def tune(model: str, size: str | None, form: str) -> int:
    """Compile every form of MODEL's training step, measure those that fit, and remember the fastest.

    PyTorch's own step, eager and compiled, is timed beside it: where that is faster here, the choice says so.

    MODEL is path/to/file.py:function, hf:CONFIG, or a workload's name. From then on `detente.compile` runs the same
    program (model, loss, shapes, optimizer, machine) in that form. A choice that is remembered already is shown.

    \b
    Examples:
      detente bridge tune path/to/model.py:build
      detente bridge tune gpt2 --size tiny
    """
    found = _run("tune", model, size, "tuned", {"cache": os.environ.get("DETENTE_BRIDGE_CACHE")})
    if form == "json":
        told = {"schema": "detente/bridge-tune/1", "model": model, "folder": found["folder"]}
        print(json.dumps({**told, "choice": found["choice"]}))
        return 0
    print(found["text"])
    where = f"remembered in {found['folder']}" if found["folder"] else "not remembered: the cache is off"
    print(f"\n{model}: {where}")
    return 0


@command.command("profile", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option("--size", help="Size of a workload of detente's own.  [default: its largest]")
@click.option(
    "--contract", help="train-step, train-step-sgd, gradient or forward.  [default: the workload's first]"
)
@format_option("text", "json")
def profile(model: str, size: str | None, contract: str | None, form: str) -> int:
    """Where the time of MODEL's step goes: by kind of work, by direction and by part of the model, in the bridge and
    in eager PyTorch, whose operators are timed one by one.

    A few steps of each, watched, in a process of its own: it shows where to look, and is no verdict
    (`detente compare` gives one). It takes what the two take to start and twenty steps.

    \b
    Examples:
      detente bridge profile path/to/model.py:build
      detente bridge profile resnet50 --format json
    """
    from detente.cli.live import progress_sink
    from detente.explain.side import Side
    from detente.report.profile_page import profile_document, profile_page
    from detente.session.capturing import capture_programs
    from detente.session.request import Request
    from detente.workloads.catalogue import find_size

    chosen = find_size(_of_torch(model), size).name
    request = Request(
        (model,), ("detente", "torch-eager"), chosen, contract, command=("detente", *sys.argv[1:])
    )
    sink = progress_sink()
    try:
        captured = capture_programs(request, sink)
    finally:
        sink.close()
    found, missing = {}, {}
    for one in captured:
        try:
            if one.evidence.status != "ok":
                raise ProgramError(one.evidence.reason)
            found[one.cell.label] = Side(one.cell.label, one.evidence, one.artefacts).profile
        except (OSError, ProgramError) as error:
            missing[one.cell.label] = str(error)
    if "detente" in missing:
        raise CellFault(
            f"{model} could not be profiled: {missing['detente']}", "`detente bridge check` lists refusals"
        )
    if form == "json":
        print(json.dumps(profile_document(model, chosen, found, missing)))
    else:
        for line in profile_page(model, chosen, found, missing):
            say(line)
    return 0


def _of_torch(model: str) -> Workload:
    """Raises UsageFault for a model of another framework, and for none."""
    from detente.workloads.catalogue import find_workload

    workload = find_workload(model)
    if "torch" not in workload.definitions:
        raise UsageFault(
            f"{model} is no model of torch",
            "the bridge runs torch modules on XLA; a model of JAX is there already",
        )
    return workload


def _run(kind: JobKind, model: str, size: str | None, done: str, options: dict[str, Any]) -> dict[str, Any]:
    """What the worker of one job found out about a model."""
    from detente.workloads.catalogue import find_size

    return _asked(kind, model, find_size(_of_torch(model), size).name, done, options, model)


def _asked(
    kind: JobKind, model: str, size: str, done: str, options: dict[str, Any], about: str
) -> dict[str, Any]:
    from detente.records.cell import Cell
    from detente.records.contract import CONTRACTS
    from detente.report.text import clean
    from detente.session.alone import ask_alone

    cell = Cell(model, size, "detente", CONTRACTS["train-step"], "cpu", "detente")

    def tell(phase: str) -> None:
        print(f"{clean(about)}: {clean(phase)}", file=sys.stderr, flush=True)

    return ask_alone(kind, cell, done, options, tell, about).probes
