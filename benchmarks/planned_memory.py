"""What rows were planned to hold, and what they held: the memory of one process, before and after.

python benchmarks/planned_memory.py                    # some 15 minutes; writes docs/results/planned-memory.md
python benchmarks/planned_memory.py vit                # these again; the page keeps its other rows
python benchmarks/planned_memory.py gpt2 --size tiny --page /tmp/page.md

Of each row a ``plan`` worker and a ``memory`` worker run, as in a session; the measured peak is VmHWM of the third step
alone. The prepared folder holds weights and batches and no reference: nothing is proved here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.session.fingerprint import machine
from detente.session.interrupts import Interrupts
from detente.session.spawn import spawn
from detente.worker.prepared import write_batches, write_weights
from detente.workloads.catalogue import find_size, find_workload

PAGE = Path(__file__).resolve().parent.parent / "docs/results/planned-memory.md"
WORKLOADS = ("gemm", "ffn", "mha", "resnet50", "bert", "gpt2", "vit")
STACKS = ("torch-eager", "torch-compile", "jax", "jax-scan", "detente")
SEED = 0
# How far a plan may lie off.
LIMITS = {"torch-eager": 0.20, "torch-compile": 0.20, "jax": 0.10, "jax-scan": 0.10, "detente": 0.10}


def make(name: str, size_name: str, folder: Path) -> None:
    """Weights and batches as ``prepare`` makes them, in a process of its own."""
    from detente.stacks.torch_eager import TorchEagerDefault

    workload = find_workload(name)
    size = find_size(workload, size_name)
    stack = TorchEagerDefault()
    stack.start("cpu", "fp32", 1)
    stack.torch.manual_seed(SEED)
    running = stack.build(workload, size, replace(CONTRACTS["gradient"], optimizer=None))
    write_batches(folder, [workload.batch(size, np.random.default_rng(SEED + 1 + i)) for i in range(4)])
    write_weights(folder, running.tensors())


def worker(kind: str, name: str, size: str, stack: str, folder: Path) -> Evidence:
    contract = CONTRACTS[find_workload(name).contracts[0]]
    cell = Cell(name, size, stack, contract, "cpu", stack)
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as cache, Interrupts() as interrupts:
        job = Job(kind, cell, SEED, str(folder), cache, cache, len(cpus))  # type: ignore[arg-type]
        log = folder / f"{kind}-{stack}.log"
        return spawn(job, log, interrupts, lambda phase: None, {"first": 3600}, cpus).evidence


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--size", default="paper")
    parser.add_argument("--stacks", default=",".join(STACKS))
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.make:
        make(asked.workloads[0], asked.size, asked.make)
        return 0
    rows, good = [], True
    for name in asked.workloads:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            subprocess.run([sys.executable, __file__, name, "--size", asked.size, "--make", made], check=True)
            for stack in asked.stacks.split(","):
                planned = worker("plan", name, asked.size, stack, folder)
                if planned.status == "skipped":
                    continue
                measured = worker("memory", name, asked.size, stack, folder)
                row, fine = told(name, stack, planned, measured)
                good &= fine
                rows.append(row)
                print(row, flush=True)
    rows = [*_stored(asked.page, asked.workloads), *rows]
    order = list(dict.fromkeys((*WORKLOADS, *map(_workload, rows))))
    rows.sort(key=lambda row: order.index(_workload(row)))
    lines = [
        f"# Memory, planned and measured, at {asked.size}",
        "",
        f"`python benchmarks/planned_memory.py`. Processor: {machine()['processor']}, "
        f"{len(os.sched_getaffinity(0))} cores; fp32, AdamW where the region trains.",
        "",
        "Planned before anything of the row exists: PyTorch on fake tensors, JAX and the bridge from the compiled "
        "program. The process adds what it holds besides its tensors. Measured: the peak of the third step alone "
        "(VmHWM, set back before it). The tensors of torch-compile are planned as eager holds them; what its compiler "
        "leaves in the process is found by compiling on fake tensors (`compiler`).",
        "",
        "| workload | row | parameters | gradients | state | activations | temporary | tensors at once | compiler | "
        "process, planned | process, measured | off | limit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    asked.page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if good else 1


def _stored(page: Path, again: list[str]) -> list[str]:
    """The page's rows of workloads that were not named: they stay."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| workload")]
    return [line for line in rows if _workload(line) not in again]


def _workload(row: str) -> str:
    return row.split("|")[1].strip()


def told(name: str, stack: str, planned: Evidence, measured: Evidence) -> tuple[str, bool]:
    limit = LIMITS[stack]
    if planned.status != "ok" or measured.status != "ok":
        why = planned.reason or measured.reason
        return (
            f"| {name} | {stack} |" + " |" * 8 + f" {planned.status}, {measured.status}: {why} | | |",
            False,
        )
    labels = ("parameters", "gradients", "state", "activations", "temporary", "peak", "compiler", "process")
    sizes = [planned.memory.get(f"planned_{label}") for label in labels]
    process, peak = planned.memory["planned_process"], measured.memory["step_peak"]
    off = process / peak - 1
    cells = " | ".join("" if s is None else f"{s / 1e6:,.0f} MB" for s in sizes)
    return f"| {name} | {stack} | {cells} | {peak / 1e6:,.0f} MB | {off:+.1%} | {limit:.0%} |", abs(
        off
    ) <= limit


if __name__ == "__main__":
    sys.exit(main())
