"""What depth costs before the first step: export, lowering and XLA compilation of GPT-2 with 12, 24 and 48 layers.

    PYTHONPATH=src python benchmarks/bridge_depth.py                  # small hidden and GPT-2 Small's; writes the page
    PYTHONPATH=src python benchmarks/bridge_depth.py --hidden 64 --no-page

``detente.compile`` as a user calls it, on ``transformers``' GPT-2 with AdamW, without cache and certificate. Each
compilation has a process of its own; the depths take turns in a new random order in every round; medians. Goals:
lowering + XLA at 48 layers at most 1.3 of 12 layers; export at most linear. The processor time of the process stands
beside the wall time: on a machine that does other work it is the one to read.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from rounds import Size, command_line, figures, parser, publish, small

PHASES = ("export", "lower", "compile", "rest", "first step")
GOAL = 1.3


SIZES = {64: Size(64, 4, 1024, 32, 2), 768: small()}


@dataclass(frozen=True)
class Moment:
    """Wall and processor time, read together; the bridge only subtracts them."""

    wall: float
    cpu: float

    def __sub__(self, other: Moment) -> Moment:
        return Moment(self.wall - other.wall, self.cpu - other.cpu)


def now() -> Moment:
    return Moment(time.perf_counter(), time.process_time())


def measure(layers: int, hidden: int) -> dict[str, Any]:
    """One compilation and one step in this process, which has done neither yet."""
    import torch

    import detente
    from detente.bridge.program import program
    from detente.bridge.step import variants

    # the bridge's own phases, in both clocks
    program.perf_counter = variants.perf_counter = now  # type: ignore[assignment]
    model, ids = SIZES[hidden].model(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    begun = now()
    step = detente.compile(
        model,
        lambda m, b: m(input_ids=b, labels=b).loss,
        optimizer,
        example_batch=ids,
        certificate="none",
        cache=False,
    )
    whole = now() - begun
    begun = now()
    value = float(step(ids))
    first = now() - begun
    made = step.programs[0]
    seconds = {k: vars(v) for k, v in made.seconds.items()}
    known = [sum(s[clock] for s in seconds.values()) for clock in ("wall", "cpu")]
    seconds["rest"] = {"wall": whole.wall - known[0], "cpu": whole.cpu - known[1]}
    seconds["first step"] = vars(first)
    return {
        "layers": layers,
        "hidden": hidden,
        "form": made.choice.form,
        "nodes": len(made.captured.graph.nodes),
        "loss": value,
        "seconds": seconds,
    }


def sweep(depths: list[int], hidden: int, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for row in figures(__file__, [(d, hidden) for d in depths], rounds):
        rows.append(row)
        cells = ", ".join(
            f"{p} {row['seconds'][p]['wall']:.2f} ({row['seconds'][p]['cpu']:.2f})" for p in PHASES
        )
        where = f"round {row['round']}, hidden {hidden}, {row['layers']} layers, {row['form']}"
        print(f"{where}: {cells}", flush=True)
    return rows


def median(rows: list[dict[str, Any]], layers: int, phases: tuple[str, ...], clock: str) -> float:
    return statistics.median(
        sum(r["seconds"][p][clock] for p in phases) for r in rows if r["layers"] == layers
    )


def table(rows: list[dict[str, Any]], depths: list[int]) -> list[str]:
    """Medians, and each against the shallowest model."""
    kinds = [
        ("export", ("export",)),
        ("lowering", ("lower",)),
        ("XLA compilation", ("compile",)),
        ("**lowering + XLA**", ("lower", "compile")),
        ("rest of `detente.compile`", ("rest",)),
        ("first step", ("first step",)),
    ]
    nodes = {r["layers"]: r["nodes"] for r in rows}
    forms = {r["form"] for r in rows}
    head = [f"{d} layers" for d in depths] + [f"{d} / {depths[0]}" for d in depths[1:]]
    lines = [
        f"Form: {', '.join(f'`{f}`' for f in sorted(forms))}. Captured operators: "
        + ", ".join(f"{nodes[d]} ({d} layers)" for d in depths)
        + ".",
        "",
        "| phase | clock | " + " | ".join(head) + " |",
        "|---|---|" + "---|" * len(head),
    ]
    for name, phases in kinds:
        for clock in ("wall", "cpu"):
            values = [median(rows, d, phases, clock) for d in depths]
            ratios = [f"{v / values[0]:.2f}" for v in values[1:]]
            cells = [f"{v:.2f} s" for v in values] + ratios
            lines.append(f"| {name} | {clock} | " + " | ".join(cells) + " |")
    return lines


def verdicts(rows: list[dict[str, Any]], depths: list[int]) -> list[str]:
    first, last = depths[0], depths[-1]

    def ratio(phases: tuple[str, ...], clock: str) -> float:
        return median(rows, last, phases, clock) / median(rows, first, phases, clock)

    both, export = ("lower", "compile"), ("export",)
    return [
        f"Lowering + XLA at {last} layers is {ratio(both, 'wall'):.2f} (wall) and {ratio(both, 'cpu'):.2f} (processor) "
        f"of {first} layers; goal at most {GOAL}.",
        f"Export at {last} layers is {ratio(export, 'wall'):.2f} (wall) and {ratio(export, 'cpu'):.2f} (processor) of "
        f"{first} layers; linear would be {last / first:.2f}.",
    ]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--depths", type=int, nargs="+", default=[12, 24, 48])
    options.add_argument("--hidden", type=int, nargs="+", default=list(SIZES), choices=list(SIZES))
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(*map(int, given.one))))
        return 0
    lines = [
        "# What depth costs before the first step",
        "",
        command_line(__file__) + f"median of {given.rounds} processes per depth, interleaved).",
        "",
        "*cpu* is the processor time of the process, which other work on the machine does not enter; *wall* is what a "
        "user waits.",
        "",
    ]
    every = []
    for hidden in given.hidden:
        rows = sweep(given.depths, hidden, given.rounds)
        every += rows
        head = [f"## GPT-2, hidden {hidden}", "", str(SIZES[hidden])]
        lines += [*head, *table(rows, given.depths), "", *verdicts(rows, given.depths), ""]
    publish(given, "bridge-depth", lines, every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
