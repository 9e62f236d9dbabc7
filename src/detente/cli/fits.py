"""``detente fits``: what every row would hold, before anything of it runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from detente.cli.live import progress_sink
from detente.cli.options import Names, format_option, precision_option
from detente.cli.text import say
from detente.records.cell import Cell
from detente.records.chip import CHIPS
from detente.records.evidence import Evidence
from detente.records.fault import UsageFault
from detente.report.columns import columns


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("workloads", nargs=-1, required=True, metavar="WORKLOAD...")
@click.option("--stacks", type=Names(), help="Stacks, by comma.  [default: the installed ones]")
@click.option(
    "--size", help="A size, dimensions behind commas: paper,batch=8.  [default: the workload's largest]"
)
@click.option(
    "--contract", help="forward, gradient, train-step or train-step-sgd.  [default: the workload's first]"
)
@precision_option()
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, rocm, tpu.")
@click.option(
    "--chip",
    "chips",
    type=Names(),
    help=f"Compile for chips that are not here instead, by comma: {', '.join(CHIPS)}.",
)
@format_option("text", "json", "md")
def command(
    workloads: tuple[str, ...],
    stacks: tuple[str, ...] | None,
    size: str | None,
    contract: str | None,
    precision: str,
    device: str,
    chips: tuple[str, ...] | None,
    form: str,
) -> int:
    """Plan the memory of WORKLOADs on every stack, beside what this machine has. Nothing is measured.

    PyTorch's rows are run on fake tensors, of which each is counted for as long as it is held; JAX's and the bridge's
    are compiled. "process" adds what the process holds besides its tensors. A plan is kept until a source, a version or
    the row changes. Exit code 1 when a row does not fit, 3 when none could be planned.

    With --chip, the rows of JAX and of each form of the bridge are compiled for a chip that is not here, by its own
    compiler (`detente stacks add chips`), which plans them against the chip's memory.

    \b
    Examples:
      detente fits gpt2
      detente fits resnet50 --size paper,batch=32 --stacks torch-eager,jax,detente
      detente fits llama gpt_neo --chip tpu-v6e,h100 --precision bf16
    """
    import psutil

    from detente.cli.fits_chips import plan_and_tell
    from detente.records.codec import to_json
    from detente.session.memory_watch import available
    from detente.session.plans import plan_of_rows, shortfall
    from detente.session.request import Request
    from detente.session.underway import Stopped

    request = Request(
        workloads,
        stacks or (),
        size,
        contract,
        precision,
        device=device,
        aa=False,
        command=("detente", "fits"),
    )

    if chips is not None:
        if device != "auto":
            raise UsageFault(f"--device {device} and --chip {','.join(chips)}", "name one of them")
        return plan_and_tell(request, chips, form)
    sink = progress_sink()
    try:
        found = list(plan_of_rows(request, sink).items())
    except Stopped:
        say("interrupted; the plans that were made are kept", error=True)
        return 130
    finally:
        sink.close()
    total, free = available(), psutil.virtual_memory().available
    if form == "json":
        rows = [
            {"cell": to_json(c), "status": e.status, "reason": e.reason, "memory": e.memory} for c, e in found
        ]
        print(json.dumps({"schema": "detente/fits/1", "total": total, "free": free, "rows": rows}))
    else:
        head, *rows = _rows(found, shortfall)
        for line in columns(head, rows, form):
            say(line)
        print(f"\nthis machine has {total / 1e9:.3g} GB, {free / 1e9:.3g} GB of them free")
    if not any(e.status == "ok" for _, e in found):
        return 3
    return 1 if any(shortfall(e.memory) for _, e in found) else 0


_LABELS = (
    ("planned_parameters", "parameters"),
    ("planned_gradients", "gradients"),
    ("planned_state", "optimizer"),
    ("planned_activations", "activations"),
    ("planned_temporary", "temporary"),
    ("planned_peak", "at once"),
    ("planned_kept", "kept"),
    ("planned_compiler", "compiler"),
    ("planned_process", "process"),
)


def _rows(
    found: list[tuple[Cell, Evidence]], shortfall: Callable[[dict[str, int]], str | None]
) -> list[tuple[str, ...]]:
    """A head, and a row of each."""
    from detente.report.numbers import BYTES, quantity

    shown = [(label, name) for label, name in _LABELS if any(label in e.memory for _, e in found)]
    rows = [("workload", "size", "row", *(name for _, name in shown), "fits")]
    for cell, evidence in found:
        plan = evidence.memory
        fits = "no" if shortfall(plan) else "yes" if "planned_process" in plan else "not known"
        sizes = (quantity(plan.get(label), BYTES) for label, _ in shown)
        said = fits if evidence.status == "ok" else f"{evidence.status}: {evidence.reason}"
        rows.append((cell.workload, cell.size, cell.label, *sizes, said))
    return rows
