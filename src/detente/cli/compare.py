"""``detente compare``: the main job."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from detente.cli.live import progress_sink
from detente.cli.options import Bytes, Duration, Names, PageFile, format_option, precision_option
from detente.cli.sessions import find_spool
from detente.cli.text import say
from detente.records.arm import read_arm
from detente.records.session import Session
from detente.records.verdict import MOST_BLOCKS
from detente.session.continued import request_of
from detente.session.request import Request
from detente.store.recorder import open_recorder
from detente.store.spool import read_spool


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("workloads", nargs=-1, metavar="WORKLOAD...")
@click.option(
    "--stacks",
    type=Names(),
    help="Stacks, by comma; the first named is the reference.  [default: the installed ones]",
)
@click.option("--size", help="tiny, or paper for the figures.  [default: the workload's largest]")
@click.option("--batch", metavar="N", help="Rows of a batch, in place of the size's own.")
@click.option("--seq", metavar="N", help="Length of a sequence, in place of the size's own.")
@click.option("--layers", metavar="N", help="Number of layers, in place of the size's own.")
@click.option(
    "--set",
    "set_",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any dimension that `detente workloads` shows, in place of the size's own; again for each. The row is then "
    "called tiny,batch=4 and shares no weights, proofs at its size or history with another.",
)
@click.option(
    "--no-dropout",
    is_flag=True,
    help="Set every dropout rate of your own model to 0: no two frameworks draw the same masks. The row is then called "
    "own,dropout=0.",
)
@click.option(
    "--contract",
    help="forward, gradient, train-step or train-step-sgd; out-of-the-box adds the rows of the usual recipes "
    "(torch-compile-model).  [default: the workload's first]",
)
@precision_option()
@click.option(
    "--feed",
    type=click.Choice(["resident", "loader"]),
    default="resident",
    show_default=True,
    help="loader: fetching and placing the next batch is inside the clock.",
)
@click.option(
    "--loader-workers",
    type=click.IntRange(0, 256),
    default=0,
    show_default=True,
    help="With --feed loader: processes that make batches, on the row's own cores. 0: a thread of the row does.",
)
@click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, rocm, tpu or a PJRT plugin's name."
)
@click.option(
    "--budget",
    type=Duration(),
    help="End after this long: 8m. The five blocks that a verdict needs may take 20 % more.",
)
@click.option(
    "--blocks",
    type=click.IntRange(1, MOST_BLOCKS),
    help="Exactly this many blocks, instead of the sampling rule.",
)
@click.option(
    "--seed", type=int, default=20260101, show_default=True, help="Of weights, batches and block order."
)
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="CPU threads of every worker.  [default: all cores]"
)
@click.option(
    "--memory/--no-memory", default=True, show_default=True, help="Memory runs, in processes of their own."
)
@click.option(
    "--smallest-memory",
    is_flag=True,
    help="Also search, to 5 %, the smallest memory under which each row still runs: up to six processes a row.",
)
@click.option("--memory-cap", type=Bytes(), help="Limit every worker's data memory: 800M.")
@click.option(
    "--aa/--no-aa", default=True, show_default=True, help="One stack twice, to measure the session's noise."
)
@click.option("--dry-run", is_flag=True, help="Show the matrix and its cost; run nothing.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="latest",
    metavar="[SESSION]",
    help="Continue a session, the latest when none is named; nothing else need be given, and a new --budget may be.",
)
@click.option("--html", "html", type=PageFile(), help="Also write the report here.")
@click.option("--full", is_flag=True, help="Also print proof, start, floor, memory and versions.")
@format_option("text", "json", "md")
@click.pass_context
def command(
    context: click.Context,
    form: str,
    dry_run: bool,
    resume: str | None,
    html: Path | None,
    full: bool,
    **asked: Any,
) -> int:
    """Run WORKLOADs on every stack, prove that they compute the same thing, and tell which is faster.

    A workload is one of `detente workloads`, your own model as path/to/file.py:function, or hf:CONFIG. Two sessions
    never time at once on one machine: a second one says that it waits. The lock is a file, which DETENTE_LOCK names.

    \b
    Examples:
      detente compare gpt2 --budget 12m --html report.html
      detente compare gpt2 --size tiny --batch 4 --set hidden=128
      detente compare path/to/model.py:build --stacks torch-eager,detente
      detente compare --resume --budget 30m
    """
    given = {
        _FIELDS.get(name, name): value
        for name, value in asked.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    overrides = [f"{dim}={given.pop(name)}" for name, dim in _DIMENSIONS.items() if name in given]
    overrides += given.pop("set_", ())
    overrides += ["dropout=0"] if given.pop("no_dropout", False) else []
    spool = find_spool(resume) if resume is not None else None
    if spool is not None:
        request = replace(request_of(read_spool(spool)), **given)
    else:
        request = Request(**{"workloads": (), **given}, command=("detente", *without_telling(sys.argv[1:])))
    if overrides:
        request = replace(request, size=",".join((request.size or "", *overrides)))
    if dry_run:
        from detente.cli.dry_run import show_plan

        return show_plan(request, form)
    session = _measure(request, spool)
    return tell(session, request, form, full, html)


# Option -> field of the request, where they differ.
_FIELDS = {"budget": "budget_s"}


# Option -> dimension of a size that it overrides; --set names others. They travel in the size's name.
_DIMENSIONS = {"batch": "batch", "seq": "sequence", "layers": "layers"}


# Options that say how a result is told, with whether they take a value. A rerun command names none of them: a shared
# report should not carry the paths of the machine that made it.
_TELLING = {"--html": True, "--align": True, "--format": True, "--full": False, "--dry-run": False}


def without_telling(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        name = argument.partition("=")[0]
        if skip:
            skip = False
        elif name in _TELLING:
            skip = _TELLING[name] and "=" not in argument
        else:
            kept.append(argument)
    return kept


def _measure(request: Request, spool: Path | None) -> Session:
    from detente.session import orphans
    from detente.session.run import run_session

    orphans.adopt()
    sink = progress_sink()
    try:
        return run_session(request, sink, open_recorder(), spool)
    finally:
        sink.close()


def _remember(result: Any) -> None:
    """Which rows are void, for ``history``: it leaves them out without judging every session again."""
    recorder = open_recorder()
    if recorder is not None:
        recorder.write_judgement(result)
        recorder.close()


def tell(session: Session, request: Request | None, form: str, full: bool, html: Path | None) -> int:
    """Judge a session, print it, and return the exit code."""
    if importlib.util.find_spec("scipy") is None:
        from detente.cli.unjudged import tell_unjudged

        return tell_unjudged(session, form)
    from detente.cli.judged import judged

    result = judged(session)
    if request is not None:
        _remember(result)
    if form == "json":
        from detente.records.codec import dumps

        print(dumps(result, "detente/compare/1"))
    elif form == "md":
        from detente.report.markdown import render_markdown

        print(render_markdown(result))
    else:
        from detente.cli.text import print_text

        print_text(result, full)
    if html is not None:
        from detente.report.html import write_html

        write_html(result, html)
        print(f"report: {html}", file=sys.stderr)
    return exit_code(session, result, request)


def exit_code(session: Session, result: Any, request: Request | None) -> int:
    """130 after an interruption; 3 when this machine could run nothing; 1 when a cell that was asked for by name is
    VOID or failed; else 0."""
    if session.note == "interrupted":
        return 130
    if session.planned and all(cell.key in session.skipped for cell in session.planned):
        say("detente: nothing of this can run here", error=True)
        return 3
    asked = request.stacks if request is not None else ()
    named = {(stack, arm.name) for stack, arm in map(read_arm, asked)}
    bad = [c for c in result.cells if c.status in ("void", "failed") and (c.stack, c.arm) in named]
    alike: dict[tuple[str, str, str], list[str]] = {}
    for c in bad:
        alike.setdefault((c.workload, c.status, c.reason), []).append(c.label)
    for (workload, status, reason), labels in alike.items():
        be = "is" if len(labels) == 1 else "are"
        say(f"detente: {workload} on {', '.join(labels)} {be} {status}: {reason}", error=True)
    return 1 if bad else 0
