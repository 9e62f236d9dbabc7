"""``detente programs``: what each stack hands to its compiler, side by side as counts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from detente.cli.live import progress_sink
from detente.cli.options import format_option
from detente.programs.count import READERS, count_program
from detente.programs.difference import Section, side_by_side
from detente.programs.module import ProgramError
from detente.records.codec import dumps, to_json
from detente.records.counts import Counts
from detente.records.fault import CellFault
from detente.session.capturing import Captured, capture_programs
from detente.session.request import Request

SCHEMA = "detente/programs/1"
TITLES = {
    "hlo": "HLO, before optimisation: what the compiler is given (like with like)",
    "stablehlo": "StableHLO, as each stack prints it (torch_xla canonicalises and folds constants while it prints)",
    "hlo-optimised": "HLO, optimised: what runs, fusions opened",
}
NAMES = {"hlo": "hlo.pb", "hlo-optimised": "optimised.hlo.pb", "stablehlo": "mlir"}


@click.command("programs", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("workload")
@click.argument("stacks", nargs=-1, metavar="[STACK]...")
@click.option("--size", default="tiny", show_default=True, help="tiny, or paper for the figures' size.")
@click.option(
    "--contract", help="forward, gradient, train-step or train-step-sgd.  [default: the workload's first]"
)
@click.option("--precision", default="fp32", show_default=True, help="fp32, tf32 or bf16.")
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
    save: Path | None,
    form: str,
) -> int:
    """Capture the program of WORKLOAD on each STACK (default: jax and torch-xla) and count what is in it.

    A difference in a count is a question, not an answer: whether it costs time is for a measurement to say.
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
    if form == "json":
        print(dumps(document(request, captured, counted), SCHEMA))
    else:
        print("\n".join(told(captured, counted, forms, form)))
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


def document(
    request: Request, captured: tuple[Captured, ...], counted: list[dict[str, Counts]]
) -> dict[str, Any]:
    """The JSON object, schema ``detente/programs/1`` (docs/schemas/programs.md)."""
    cell = captured[0].cell
    return {
        "workload": cell.workload,
        "size": cell.size,
        "contract": cell.contract.name,
        "precision": cell.contract.precision,
        "device": cell.device,
        "stacks": [
            {
                "stack": one.cell.stack,
                "label": one.cell.label,
                "status": one.evidence.status,
                "reason": one.evidence.reason,
                "versions": one.evidence.versions,
                "programs": [
                    {**to_json(p), "counts": to_json(counts[p.form]) if p.form in counts else None}
                    for p in one.evidence.programs
                ],
            }
            for one, counts in zip(captured, counted, strict=True)
        ],
    }


def told(
    captured: tuple[Captured, ...], counted: list[dict[str, Counts]], forms: tuple[str, ...], style: str
) -> list[str]:
    """The tables as lines of text or Markdown, one table per form, a column per stack that has a program."""
    cell = captured[0].cell
    lines = [f"{cell.workload} {cell.size}, {cell.contract.name}, {cell.contract.precision}, {cell.device}"]
    if style == "md":
        lines[0] = f"## {lines[0]}"
    for one, counts in zip(captured, counted, strict=True):
        if one.evidence.status != "ok":
            lines.append(f"{one.cell.label}: {one.evidence.status}: {one.evidence.reason}")
        elif not counts:
            lines.append(f"{one.cell.label}: gives no program away that can be counted")
        else:
            lines.append(
                f"{one.cell.label}: {', '.join(f'{n} {v}' for n, v in one.evidence.versions.items())}"
            )
    for form in forms:
        having = [(o.cell.label, c[form]) for o, c in zip(captured, counted, strict=True) if form in c]
        if having:
            lines += ["", f"### {TITLES[form]}" if style == "md" else TITLES[form]]
            lines += table([label for label, _ in having], side_by_side([c for _, c in having]), style)
    return lines


def table(labels: list[str], sections: tuple[Section, ...], style: str) -> list[str]:
    """Columns of right-aligned numbers under the stacks' labels."""
    rows: list[tuple[str, ...]] = []
    for section in sections:
        if section.title:
            rows.append((f"**{section.title}**" if style == "md" else section.title,) + ("",) * len(labels))
        indent = "  " if section.title and style != "md" else ""
        rows += [(indent + label, *(_number(v) for v in values)) for label, values in section.rows]
    if style == "md":
        head = ["| | " + " | ".join(labels) + " |", "| --- |" + " ---: |" * len(labels)]
        return ["", *head, *("| " + " | ".join(row) + " |" for row in rows)]
    first = max(len(row[0]) for row in rows)
    widths = [max(len(label), *(len(row[k + 1]) for row in rows)) for k, label in enumerate(labels)]
    lines = [" " * first + "".join("  " + label.rjust(w) for label, w in zip(labels, widths, strict=True))]
    for row in rows:
        cells = "".join("  " + v.rjust(w) for v, w in zip(row[1:], widths, strict=True))
        lines.append((row[0].ljust(first) + cells).rstrip())
    return lines


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
