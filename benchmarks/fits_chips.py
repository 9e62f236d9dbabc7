"""Which rows of the large models fit chips that are not here: their own compilers' plans, in one table.

    detente stacks add chips                    # once: 1.2 GB, no driver and no device
    python benchmarks/fits_chips.py             # writes docs/results/fits-chips.md; an hour, most of it libtpu's
    python benchmarks/fits_chips.py --chips h100 --workloads vit --page /tmp/page.md

Nothing is run. Plans are kept by ``detente fits``: interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from asked import asked

from detente.environments.place import folder_of, read_record
from detente.records.chip import CHIPS

PAGE = Path(__file__).resolve().parent.parent / "docs/results/fits-chips.md"
WORKLOADS = ("vit", "gpt_neo", "llama")


def rows_of(chip: str, workload: str, precision: str) -> list[dict[str, Any]]:
    """The rows that ``detente fits`` tells, of a workload at ``paper``."""
    told = asked("fits", workload, "--size", "paper", "--chip", chip, "--precision", precision)
    return told["rows"]


def page(rows: list[dict[str, Any]]) -> str:
    record = read_record(folder_of("chips"))
    plugins = record.installed if record is not None else {}
    versions = ", ".join(
        [f"{n} {importlib.metadata.version(n)}" for n in ("jax", "torch", "transformers")]
        + [f"{n} {v}" for n, v in sorted(plugins.items()) if n not in ("pip", "setuptools")]
    )
    command = " ".join(["python benchmarks/fits_chips.py", *sys.argv[1:]])
    lines = [
        "# Which rows fit chips that are not here",
        "",
        f"`{command}` ({versions}). Nothing was run: each chip's own compiler",
        "plans the whole step (weights, optimizer state, activations, scratch), without the device. Sizes `paper`,",
        "contract and precision as in the row; a row that is larger than a TPU is refused by its compiler, which says",
        "how large it would be; XLA for GPUs recomputes what it can where a program is larger than the chip.",
        "",
        "| workload | contract | chip | row | arguments | temporary | peak | of | fits |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        plan, said = (
            r["plan"],
            {
                True: "yes",
                False: "**no**" + (f": {r['reason']}" if r["reason"] else ""),
                None: f"{r['status']}: {r['reason'].partition('; its log')[0]}",
            }[r["fits"]],
        )
        sizes = [f"{plan[k] / 1e9:.3g} GB" if k in plan else "" for k in ("arguments", "temporary", "peak")]
        row = f"{r['stack']} {r['form']}".strip()
        lines.append(
            f"| {r['workload']} | {r['contract']} {r['precision']} | {r['chip']} | {row} | {' | '.join(sizes)} | "
            f"{r['capacity'] / 1e9:.3g} GB | {said} |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chips", default="tpu-v6e,h100", help=f"by comma: {', '.join(CHIPS)}")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for workload in options.workloads.split(","):
        for precision in options.precisions.split(","):
            for chip in options.chips.split(","):
                rows += [r for r in rows_of(chip, workload, precision) if r["status"] != "skipped"]
                options.page.write_text(page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
