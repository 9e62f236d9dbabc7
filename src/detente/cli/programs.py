"""``detente programs``: what each stack hands to its compiler, side by side as counts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from detente.cli.live import progress_sink
from detente.cli.options import format_option, precision_option
from detente.cli.text import say
from detente.explain.part_code import part_code
from detente.explain.side import Side
from detente.programs.count import READERS, count_program
from detente.programs.module import ProgramError
from detente.records.codec import dumps
from detente.records.counts import Counts
from detente.records.fault import CellFault, UsageFault
from detente.report.code_page import code_lines
from detente.report.parts_page import parts_lines
from detente.report.programs_page import SCHEMA, TITLES, program_document, program_tables
from detente.session.capturing import Captured, capture_programs
from detente.session.request import Request

NAMES = {
    "hlo": "hlo.pb",
    "hlo-optimised": "optimised.hlo.pb",
    "stablehlo": "mlir",
    "operators": "operators.json",
    "inductor": "py",
    "xplane": "xplane.pb",
    "exported": "flat.hlo.pb",
}


@click.command("programs", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("workload")
@click.argument("stacks", nargs=-1, metavar="[STACK]...")
@click.option("--size", default="tiny", show_default=True, help="tiny, or paper for the figures' size.")
@click.option(
    "--contract", help="forward, gradient, train-step or train-step-sgd.  [default: the workload's first]"
)
@precision_option()
@click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, rocm, tpu or a PJRT plugin's name."
)
@click.option(
    "--program",
    "forms",
    multiple=True,
    type=click.Choice(list(TITLES)),
    default=("hlo", "stablehlo"),
    show_default=True,
    help="Form of the program; can be given more than once.",
)
@click.option(
    "--parts",
    is_flag=True,
    help="Also the parts of each program, by module and direction: operations, FLOPs, kernels and, on a CPU, time.",
)
@click.option(
    "--code",
    metavar="PART",
    help="Also the code of one part, stacks side by side: `h.*.attn`, `h.0.attn backward`. --parts lists them.",
)
@click.option(
    "--save", type=click.Path(file_okay=False, path_type=Path), help="Also write the programs here."
)
@format_option("text", "json", "md")
def command(
    workload: str,
    stacks: tuple[str, ...],
    size: str,
    contract: str | None,
    precision: str,
    device: str,
    forms: tuple[str, ...],
    parts: bool,
    code: str | None,
    save: Path | None,
    form: str,
) -> int:
    """Capture the program of WORKLOAD on each STACK (default: jax and torch-xla) and count what is in it.

    A difference in a count is a question, not an answer: whether it costs time is for a measurement to say.

    \b
    Examples:
      detente programs gpt2
      detente programs gpt2 torch-eager jax --parts
      detente programs gpt2 torch-compile jax --code 'h.*.attn forward'
      detente programs gemm jax detente --program hlo-optimised --save programs/
    """
    request = Request(
        workloads=(workload,),
        stacks=stacks or ("jax", "torch-xla"),
        size=size,
        contract=contract,
        precision=precision,
        device=device,
        command=("detente", *sys.argv[1:]),
    )
    sink = progress_sink()
    try:
        captured = capture_programs(request, sink)
    finally:
        sink.close()
    counted = [_counted(one) for one in captured]
    if save is not None:
        _save(captured, save)
    sides = [_side(one) if parts or code is not None else None for one in captured]
    divided = [side for side in sides if parts and side is not None and side.table is not None]
    if form == "json":
        tables = [side.table if parts and side is not None else None for side in sides]
        document = program_document(captured, counted, tables)
        if code is not None:
            document["code"] = {"part": code, "stacks": dict(_code(captured, sides, code))}
        print(dumps(document, SCHEMA))
    else:
        lines = program_tables(captured, counted, forms, form)
        for side in divided:
            assert side.table is not None
            lines += ["", *parts_lines(side.label, side.table, form, side.live)]
        if code is not None:
            lines += ["", *code_lines(code, _code(captured, sides, code), form)]
        for line in lines:
            say(line)
    return 1 if any(one.evidence.status in ("failed", "oom") for one in captured) else 0


def _counted(one: Captured) -> dict[str, Counts]:
    found = {}
    for program in one.evidence.programs:
        if program.form in READERS and program.form not in found:
            try:
                counts = count_program((one.artefacts / program.path).read_bytes(), program.form)
            except (OSError, ProgramError) as error:
                raise CellFault(
                    f"the {program.form} program of {one.cell.label} cannot be counted: {error}",
                    f"it is kept in {one.artefacts / program.path}",
                ) from error
            # torch_xla decides on donation when it dispatches, and only its runtime can tell.
            donated = program.facts.get("alias_bytes", counts.alias_bytes)
            found[program.form] = replace(counts, alias_bytes=max(counts.alias_bytes, int(donated)))
    return found


def _side(one: Captured) -> Side | None:
    """A captured program, divided; None where it was not captured."""
    if one.evidence.status != "ok":
        return None
    side = Side(one.cell.label, one.evidence, one.artefacts)
    try:
        _ = side.table  # read here, so that what cannot be read is told here
    except (OSError, ProgramError) as error:
        raise CellFault(
            f"the program of {one.cell.label} cannot be divided into parts: {error}",
            f"it is kept in {one.artefacts}",
        ) from error
    return side


def _code(
    captured: Sequence[Captured], sides: Sequence[Side | None], part: str
) -> list[tuple[str, dict[str, list[str]]]]:
    """Each captured row's label and the code of the part. Raises UsageFault where nobody has such a part."""
    found = []
    for side in sides:
        if side is None:
            continue
        try:
            found.append((side.label, part_code(side, part) if side.table is not None else {}))
        except (OSError, ProgramError) as error:
            raise CellFault(
                f"the code of {side.label} cannot be read: {error}", f"it is kept in {side.artefacts}"
            ) from error
    if found and not any(code for _, code in found):
        stacks = " ".join(label for label, _ in found)
        raise UsageFault(
            f"no program has a part called {part!r}",
            f"`detente programs {captured[0].cell.workload} {stacks} --parts` lists them",
        )
    return found


def _save(captured: tuple[Captured, ...], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in captured:
            for program in one.evidence.programs:
                name = f"{one.cell.label}.{program.name}.{NAMES.get(program.form, program.form)}"
                (folder / name).write_bytes((one.artefacts / program.path).read_bytes())
    except OSError as error:
        raise CellFault(
            f"cannot write into {folder}: {error.strerror}", "name a folder that can be written"
        ) from error
