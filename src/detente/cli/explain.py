"""``detente explain``: why one stack takes longer than another, by experiments that change one cause at a time."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from detente.cli.compare import without_telling
from detente.cli.live import progress_sink
from detente.cli.options import Duration, PageFile, format_option, precision_option
from detente.cli.text import say
from detente.records.fault import MachineFault, UsageFault
from detente.records.verdict import MOST_BLOCKS

if TYPE_CHECKING:
    from detente.explain.align import Match
    from detente.explain.answer import Answer
    from detente.records.session import Session
    from detente.session.request import Request


@click.command("explain", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("workload", required=False)
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--size", help="tiny, or paper for the figures.  [default: the workload's largest]")
@click.option(
    "--contract", help="forward, gradient, train-step or train-step-sgd.  [default: the workload's first]"
)
@precision_option()
@click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, rocm, tpu or a PJRT plugin's name."
)
@click.option("--budget", type=Duration(), help="Test what fits into this: 30m. The rest is listed.")
@click.option(
    "--blocks",
    type=click.IntRange(1, MOST_BLOCKS),
    help="Exactly this many processes of each row.  [default: 5, and up to 15 while the gap is not settled]",
)
@click.option(
    "--arms/--no-arms",
    default=True,
    show_default=True,
    help="Also what each cause that B's runtime can switch is worth there.",
)
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="CPU threads of every worker.  [default: all cores]"
)
@click.option(
    "--seed", type=int, default=20260101, show_default=True, help="Of weights, batches and block order."
)
@click.option(
    "--session",
    "session_id",
    metavar="SESSION",
    help="Tell what a stored session says; measure nothing.",
)
@click.option(
    "--align",
    "align_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Parts that belong together and are not found: tables [[match]] with a and b.",
)
@click.option(
    "--html",
    type=PageFile(),
    default=Path("why.html"),
    show_default=True,
    help="Where the page goes.",
)
@format_option("text", "json", "md")
def command(
    workload: str | None,
    a: str | None,
    b: str | None,
    size: str | None,
    contract: str | None,
    precision: str,
    device: str,
    budget: float | None,
    blocks: int | None,
    arms: bool,
    threads: int | None,
    seed: int,
    session_id: str | None,
    align_file: Path | None,
    html: Path,
    form: str,
) -> int:
    """Why B takes another time than A on WORKLOAD: their programs side by side, and what each cause is worth.

    Without names: the slowest and the fastest comparable rows of the last session. The programs are captured in
    processes of their own; then the rows and their arms are timed like any rows, proved like any rows, and the gap is
    shared out among the causes that were switched. Nothing from a cost model is a bar.

    \b
    Examples:
      detente explain
      detente explain gpt2 torch-eager jax --budget 30m
      detente explain gpt2 torch-compile detente --size tiny
      detente explain --session latest --format md
    """
    if importlib.util.find_spec("scipy") is None:
        raise MachineFault("explaining needs scipy, which is not installed", "pip install 'detente[judge]'")
    from detente.explain.align import read_matches
    from detente.explain.ask_and_answer import measured
    from detente.judge.looks import LOOKS
    from detente.records.codec import dumps
    from detente.report.numbers import count
    from detente.report.why_html import write_why
    from detente.report.why_page import SCHEMA, why_document, why_lines
    from detente.session import orphans
    from detente.session.request import Request

    by_hand = read_matches(align_file) if align_file is not None else ()
    named = (workload, a, b)
    if any(named) and not all(named):
        raise UsageFault(
            f"{' '.join(n for n in named if n)!r} is not a question",
            "name a workload and two stacks: detente explain gpt2 torch-eager jax; or nothing, for the last session",
        )
    if a is not None and a == b:
        raise UsageFault(
            f"{a} takes as long as itself: there is nothing to explain between the two",
            f"name two stacks: detente explain {workload} torch-eager jax",
        )
    request = Request(
        workloads=(workload,) if workload else (),
        stacks=(a, b) if a and b else (),
        size=size,
        contract=contract,
        precision=precision,
        device=device,
        budget_s=budget,
        blocks=blocks or LOOKS[0],
        blocks_at_most=None if blocks else LOOKS[-1],
        threads=threads,
        seed=seed,
        memory=False,
        command=("detente", *without_telling(sys.argv[1:])),
    )
    with contextlib.ExitStack() as until_told:
        if session_id is not None:
            found = _told(session_id, request, by_hand, until_told)
        else:
            if not workload:
                from detente.cli.judged import judged
                from detente.cli.sessions import find_session
                from detente.explain.question import of_result

                last = find_session("latest")
                asked = of_result(judged(last))
                request = _as_before(request, last)
                say(
                    f"the last session: {asked.workload} {asked.size}, {asked.a} and {asked.b}, with "
                    f"{count(request.threads, 'thread') if request.threads else 'all cores'}, seed {request.seed} and "
                    f"feed {request.feed}",
                    error=True,
                )
                request = replace(
                    request,
                    workloads=(asked.workload,),
                    stacks=(asked.a, asked.b),
                    size=asked.size,
                    contract=asked.contract,
                    precision=asked.precision,
                    device=asked.device,
                )
            orphans.adopt()
            sink = progress_sink()
            try:
                found = measured(request, arms, sink, by_hand)
            finally:
                sink.close()
        if form == "json":
            # The page first: where it cannot be written, the error's object is all that standard output holds.
            write_why(found, html)
            print(dumps(why_document(found), SCHEMA))
        else:
            print("\n".join(why_lines(found, form)))
            write_why(found, html)
        say(f"page: {html}", error=True)
        return 130 if found.session.note == "interrupted" else 0


def _as_before(request: Request, last: Session) -> Request:
    """With what the last session ran with, where the user gave nothing else: at another number of threads, or fed in
    another way, the gap that is asked about may not be there."""
    from detente.session.continued import request_of

    before = request_of(last)
    context = click.get_current_context(silent=True)
    # Of the feed there is no option, and of an option that nobody typed the source is its default.
    default = (None, ParameterSource.DEFAULT)
    kept = [
        name
        for name in ("threads", "seed", "feed", "loader_workers")
        if context is None or context.get_parameter_source(name) in default
    ]
    return replace(request, **{name: getattr(before, name) for name in kept})


def _told(name: str, request: Request, by_hand: Sequence[Match], until_told: contextlib.ExitStack) -> Answer:
    """What a stored session says, or a file; a bundle's programs are there until it is told."""
    from detente.cli.judged import a_strangers_fault, judged
    from detente.cli.sessions import session_and_programs
    from detente.explain.ask_and_answer import stored
    from detente.explain.question import of_explained, of_result, of_session

    session, artefacts = session_and_programs(name, until_told)
    # Until it is told: the page reads the programs, too.
    until_told.enter_context(a_strangers_fault(session))
    if not request.workloads:
        return stored(session, artefacts, of_explained(session) or of_result(judged(session)), by_hand)
    a, b = request.stacks
    options = (request.size, request.contract, request.precision)
    return stored(session, artefacts, of_session(session, request.workloads[0], (a, b), *options), by_hand)
