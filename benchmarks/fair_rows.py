"""Fair rows at drawn sizes, contracts, precisions and seeds: none may end void, and no process may fail.

    python benchmarks/fair_rows.py                     # an hour of drawn rows; the same command goes on, and draws
                                                       # again whose lines were taken out of the file
    python benchmarks/fair_rows.py --minutes 10 --only gpt2 --page /tmp/page.md

The proof's bounds were measured at the sizes that ship. A user sets others (``--set batch=4``), and a bound that holds
by luck at one size calls an honest framework a liar at the next. One block of each row, replays included; seconds are
not looked at, so that other work beside it does no harm. Writes docs/results/fair-rows.md and a line of JSON for every
row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import detente
from detente.records.fault import UsageFault
from detente.records.job import Sampling
from detente.session.fingerprint import machine
from detente.workloads.catalogue import find_workload
from detente.workloads.overrides import override
from detente.workloads.workload import Workload

PAGE = Path(__file__).resolve().parent.parent / "docs/results/fair-rows.md"
# torch.compile as well by `--stacks`: it compiles for as long as all others take together.
STACKS = ("torch-eager", "jax", "jax-scan", "detente")
WORKLOADS = ("gemm", "ffn", "mha", "resnet50", "bert", "gpt2", "vit", "gpt_neo", "llama")
PRECISIONS = ("fp32", "fp32", "fp32", "bf16")
# What a dimension of `tiny` is multiplied by. A step of so many operations takes the reference a moment, in fp64 too.
FACTORS = (0.5, 1, 1, 1.5, 2, 3, 4)
MOST_FLOPS = 1e9
# What says nothing of the referee: a stack that a workload has not, a draw that does not go together.
UNASKED = ("skipped", "refused")
Line = dict[str, Any]


def drawn(workload: Workload, draw: np.random.Generator) -> str:
    """A size of the workload, by the name that ``--size`` takes: two to four dimensions of ``tiny`` are others."""
    tiny = workload.sizes["tiny"]
    while True:
        names = draw.permutation(list(tiny.dims))[: draw.integers(2, 5)]
        given = {str(n): max(1, int(tiny.dims[str(n)] * draw.choice(FACTORS))) for n in names}
        try:
            size = override(workload, tiny, given)
        except UsageFault:
            continue  # dimensions that do not go together
        if size.name != tiny.name and workload.flops(size, "train-step") <= MOST_FLOPS:
            return size.name


def asked(number: int, only: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """What the draw of this number asks for."""
    draw = np.random.default_rng([20261128, number])
    workload = find_workload(only[number % len(only)])
    contract = str(draw.choice(workload.contracts))
    return workload.name, {
        "size": drawn(workload, draw),
        "contract": contract,
        "precision": str(draw.choice(PRECISIONS)),
        "seed": int(draw.integers(1, 10**6)),
        "threads": int(draw.integers(1, 3)),
    }


def rows_of(number: int, only: Sequence[str], stacks: Sequence[str]) -> list[Line]:
    name, options = asked(number, only)
    draw: Line = {"number": number, "workload": name, **options}
    try:
        result = detente.compare(
            name,
            stacks=stacks,
            blocks=1,
            memory=False,
            aa=False,
            sampling=Sampling(samples=8, seconds=1.0),
            **options,
        )
    except UsageFault as fault:
        return [{**draw, "stack": "", "status": "refused", "reason": str(fault)}]
    processor = machine()["processor"]
    return [
        {
            **draw,
            "stack": cell.stack,
            "status": cell.status,
            "reason": cell.reason,
            "share": cell.parity.share if cell.parity else None,
            "worst": f"{cell.parity.worst.kind} {cell.parity.worst.name}"
            if cell.parity and cell.parity.worst
            else "",
            "findings": [f.rule for f in cell.findings if f.severity != "unchecked"],
            "processor": processor,
        }
        for cell in result.cells
    ]


def page(lines: Sequence[Line]) -> str:
    judged = [line for line in lines if line["status"] not in UNASKED]
    wrong = [line for line in judged if line["status"] != "ok"]
    text = [
        "# Fair rows at drawn sizes",
        "",
        "`python benchmarks/fair_rows.py`: two to four dimensions of `tiny` are others, contract, precision, seed and",
        f"threads are drawn. **Not as it must: {len(wrong)} of {len(judged)} rows.** Processor: "
        f"{', '.join(sorted({line['processor'] for line in judged}))}.",
        "",
        "| workload | draws | rows | not ok | nearest to its bound |",
        "|---|---:|---:|---:|---|",
    ]
    for name in sorted({line["workload"] for line in judged}):
        rows = [line for line in judged if line["workload"] == name]
        bad = sum(line["status"] != "ok" for line in rows)
        nearest = max(rows, key=lambda line: line["share"] or 0.0)
        told = (
            f"{nearest['share']:.2f} of it: {nearest['stack']}, {nearest['worst']}"
            if nearest["share"]
            else ""
        )
        text.append(f"| {name} | {len({r['number'] for r in rows})} | {len(rows)} | {bad} | {told} |")
    if wrong:
        text += ["", "Not as it must:", ""]
        text += [
            f"- {w['stack']}: {w['workload']} {w['size']}, {w['contract']}, {w['precision']}, seed {w['seed']}, "
            f"{w['threads']} threads: {w['status']}: {w['reason']}"
            for w in wrong
        ]
    return "\n".join([*text, ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, by comma")
    parser.add_argument("--stacks", default=",".join(STACKS), help="by comma")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    kept = given.page.with_suffix(".jsonl")
    lines: list[Line] = [json.loads(t) for t in kept.read_text().splitlines()] if kept.exists() else []
    known = {line["number"] for line in lines}
    end = time.monotonic() + 60 * given.minutes
    for number in (n for n in itertools.count() if n not in known):
        if time.monotonic() >= end:
            break
        found = rows_of(number, given.only.split(","), given.stacks.split(","))
        with kept.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in found)
        lines = sorted([*lines, *found], key=lambda line: line["number"])
        given.page.write_text(page(lines))
        first = found[0]
        told = ", ".join(f"{line['stack']} {line['status']}" for line in found)
        print(
            f"{number}: {first['workload']} {first['size']} {first['contract']} {first['precision']}: {told}",
            flush=True,
        )
    return 1 if any(line["status"] not in ("ok", *UNASKED) for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
