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

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs/results/bridge-forms.md"


@dataclass(frozen=True)
class Size:
    hidden: int
    heads: int
    vocab: int
    tokens: int
    batch: int
    depths: tuple[int, ...]
    forms: tuple[str, ...]


SIZES = {
    "small": Size(768, 12, 50257, 64, 2, (12,), ("unrolled", "rolled", "rolled+dots")),
    "narrow": Size(256, 4, 1024, 128, 4, (2, 4, 6, 8, 12), ("unrolled", "rolled", "rolled+dots")),
}


def measure(name: str, layers: int, form: str, steps: int) -> dict[str, Any]:
    """One form compiled and run in this process; the fastest and the median step, wall and processor time."""
    import torch
    import transformers

    import detente

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    size = SIZES[name]
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=size.hidden,
        n_head=size.heads,
        vocab_size=size.vocab,
        n_positions=size.tokens,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(config).train()
    ids = torch.randint(0, size.vocab, (size.batch, size.tokens))
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
    rows, order = [], random.Random(0)
    cells = [(d, f) for d in depths for f in forms]
    for number in range(rounds):
        for layers, form in order.sample(cells, len(cells)):
            command = [sys.executable, __file__, "--one", name, str(layers), form, f"--steps={steps}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name}, {layers} layers, {form} failed:\n{done.stderr[-3000:]}")
            rows.append({"round": number, **json.loads(done.stdout.splitlines()[-1])})
            row = rows[-1]
            print(
                f"round {number}, {name}, {layers:>2} layers, {form:<14} lower + XLA {row['compile_s']:.1f} s, "
                f"step {row['step_s'] * 1e3:.1f} ms (fastest {row['fastest_s'] * 1e3:.1f}, "
                f"processor {row['step_cpu_s'] * 1e3:.1f})",
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--depths", type=int, nargs="+", help="default: as the size says")
    parser.add_argument("--forms", nargs="+", help="default: as the size says")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("SIZE", "LAYERS", "FORM"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, layers, form = arguments.one
        print(json.dumps(measure(name, int(layers), form, arguments.steps)))
        return 0
    import jax
    import torch

    lines = [
        "# The forms of one training step, measured",
        "",
        f"`{' '.join(['python benchmarks/bridge_forms.py', *sys.argv[1:]])}`",
        f"(jax {jax.__version__}, torch {torch.__version__}, {os.cpu_count()} CPU cores; {arguments.rounds} rounds, "
        f"a process per figure, {arguments.steps} steps after two).",
        "",
        "A ratio is taken within a round and its median given, with the smallest and the largest. Processor time is "
        "that of the process, all threads together; other work on the machine does not enter it.",
        "",
    ]
    every = []
    for name in arguments.size:
        size = SIZES[name]
        depths = tuple(arguments.depths or size.depths)
        rows = sweep(name, depths, tuple(arguments.forms or size.forms), arguments.rounds, arguments.steps)
        every += rows
        lines += [
            f"## GPT-2, hidden {size.hidden}",
            "",
            f"{size.heads} heads, vocabulary {size.vocab}, batch {size.batch} x {size.tokens} tokens, AdamW, dropout.",
            "",
            *table(rows),
            "",
        ]
    text = "\n".join(lines)
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps({"schema": "detente/bridge-forms/1", "rows": every}, indent=1))
    if not arguments.no_page:
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
