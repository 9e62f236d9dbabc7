"""When a loop pays: step and compile time of the forms of GPT-2, and of shallow models written out or rolled.

    PYTHONPATH=src python benchmarks/bridge_forms.py                       # both parts; writes the page
    PYTHONPATH=src python benchmarks/bridge_forms.py --size small --forms unrolled rolled rolled+dots
    PYTHONPATH=src python benchmarks/bridge_forms.py --size narrow --depths 2 4 6 8 12

``small`` is GPT-2 Small itself (hidden 768, vocabulary 50,257, batch 2 x 64), ``narrow`` the same architecture with
hidden 256. Each figure comes from a process of its own, which compiles one form and takes steps; the forms take turns
in a new random order in every round. What is compared is decided within a round, where the machine was the same. Two
constants of ``bridge/choose/choose.py`` rest on this page: ``ROLL_FROM`` and ``DEFAULT``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from rounds import Size, command_line, figures, parser, publish, small


@dataclass(frozen=True)
class Sweep:
    size: Size
    depths: tuple[int, ...]
    forms: tuple[str, ...] = ("unrolled", "rolled", "rolled+dots")


SWEEPS = {
    "small": Sweep(small(), (12,)),
    "narrow": Sweep(Size(256, 4, 1024, 128, 4), (2, 4, 6, 8, 12)),
}


def measure(name: str, layers: int, form: str, steps: int) -> dict[str, Any]:
    """One form compiled and run in this process; the fastest and the median step, wall and processor time."""
    import torch

    import detente

    model, ids = SWEEPS[name].size.model(layers)
    step = detente.compile(
        model,
        lambda m, b: m(input_ids=b, labels=b).loss,
        torch.optim.AdamW(model.parameters(), lr=3e-4),
        example_batch=ids,
        certificate="none",
        cache=False,
        form=form,
    )
    float(step(ids)), float(step(ids))
    walls, cpus = [], []
    for _ in range(steps):
        wall, cpu = time.perf_counter(), time.process_time()
        step(ids)
        step.wait()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    seconds = step.programs[0].seconds
    planned = next(c for c in step.choice.considered if c.form == form)
    return {
        "size": name,
        "layers": layers,
        "form": form,
        "compile_s": seconds["lower"] + seconds["compile"],
        "step_s": statistics.median(walls),
        "fastest_s": min(walls),
        "step_cpu_s": statistics.median(cpus),
        "temp": planned.temp_bytes,
    }


def sweep(
    name: str, depths: tuple[int, ...], forms: tuple[str, ...], rounds: int, steps: int
) -> list[dict[str, Any]]:
    rows = []
    cells = [(name, d, f) for d in depths for f in forms]
    for row in figures(__file__, cells, rounds, [f"--steps={steps}"]):
        rows.append(row)
        print(
            f"round {row['round']}, {name}, {row['layers']:>2} layers, {row['form']:<14} "
            f"lower + XLA {row['compile_s']:.1f} s, step {row['step_s'] * 1e3:.1f} ms "
            f"(fastest {row['fastest_s'] * 1e3:.1f}, processor {row['step_cpu_s'] * 1e3:.1f})",
            flush=True,
        )
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A row per depth and form; ratios to ``unrolled`` are taken within a round, then their median."""
    lines = [
        "| layers | form | lowering + XLA | step | of unrolled, per round | processor time of a step | of unrolled | "
        "temporary memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cells = {(r["layers"], r["form"]): [] for r in rows}
    for row in rows:
        cells[row["layers"], row["form"]].append(row)
    for (layers, form), mine in sorted(cells.items(), key=lambda c: c[0][0]):
        base = {r["round"]: r for r in cells.get((layers, "unrolled"), [])}

        def ratios(key: str, mine: Any = mine, base: Any = base) -> list[float]:
            return sorted(r[key] / base[r["round"]][key] for r in mine if r["round"] in base)

        cells_of_row = [
            str(layers),
            f"`{form}`",
            f"{middle(mine, 'compile_s'):.1f} s",
            f"{middle(mine, 'step_s') * 1e3:.1f} ms",
            spread(ratios("step_s")),
            f"{middle(mine, 'step_cpu_s') * 1e3:.1f} ms",
            spread(ratios("step_cpu_s")),
            f"{mine[0]['temp'] / 2**20:.0f} MiB",
        ]
        lines.append(f"| {' | '.join(cells_of_row)} |")
    return lines


def spread(values: list[float]) -> str:
    """The median of sorted values, with the first and the last."""
    return f"{statistics.median(values):.2f} ({values[0]:.2f} … {values[-1]:.2f})" if values else "-"


def middle(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.median(r[key] for r in rows)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--size", nargs="+", default=list(SWEEPS), choices=list(SWEEPS))
    options.add_argument("--depths", type=int, nargs="+", help="default: as the size says")
    options.add_argument("--forms", nargs="+", help="default: as the size says")
    options.add_argument("--steps", type=int, default=8)
    given = options.parse_args()
    if given.one:
        name, layers, form = given.one
        print(json.dumps(measure(name, int(layers), form, given.steps)))
        return 0
    lines = [
        "# The forms of one training step, measured",
        "",
        command_line(__file__)
        + f"{given.rounds} rounds, a process per figure, {given.steps} steps after two).",
        "",
        "A ratio is taken within a round and its median given, with the smallest and the largest. Processor time is "
        "that of the process, all threads together; other work on the machine does not enter it.",
        "",
    ]
    every = []
    for name in given.size:
        plan = SWEEPS[name]
        depths, forms = tuple(given.depths or plan.depths), tuple(given.forms or plan.forms)
        rows = sweep(name, depths, forms, given.rounds, given.steps)
        every += rows
        lines += [f"## GPT-2, hidden {plan.size.hidden}", "", str(plan.size), "", *table(rows), ""]
    publish(given, "bridge-forms", lines, every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
