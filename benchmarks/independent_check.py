"""Does detente's clock agree with one that is not ours? Writes docs/results/independent-clock.md wholly.

python benchmarks/independent_check.py [--blocks 5] [--minutes 40]

Runs `compare gpt2` on torch-eager and jax, and after every whole block benchmarks/independent_clock.py once in torch
and once in JAX, each in a fresh process: what the machine does meanwhile happens to both clocks. They agree when their
medians are within a fixed 5 %. Where the A/A pair alone may differ by more, nobody can tell, and the page says
UNDECIDED: a wide bound is no agreement. Ends with 1 where they disagree, 2 where nothing is decided.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from attempts import Attempt, remember, today, told

import detente
from detente.records.result import Result
from detente.session.progress import Progress
from detente.stacks.catalogue import find_entry

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "docs/results/independent-clock.md"
SIDES = {"torch": "torch-eager", "jax": "jax"}
TOLERANCE = 0.05
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    "PYTHONPATH": str(HERE.parent / "src"),
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    "HF_HUB_OFFLINE": "1",
}


def verdict(ours: float, theirs: float, bound: float | None, tolerance: float = TOLERANCE) -> str:
    """``agree``, ``DISAGREE`` or ``UNDECIDED`` of two medians, seconds, on a machine whose A/A pair may differ by
    ``bound`` (None: nobody knows). Both edges are ratios: 1/1.05 is as far as 1.05. Beyond bound and tolerance
    together the clocks disagree, however noisy the machine is."""
    apart = max(theirs / ours, ours / theirs) - 1
    if bound is None:
        return "UNDECIDED"
    if apart > (1 + tolerance) * (1 + bound) - 1:
        return "DISAGREE"
    if bound > tolerance:
        return "UNDECIDED"
    return "agree" if apart <= tolerance else "DISAGREE"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=40.0, help="no block starts that would end later")
    args = parser.parse_args()
    times: dict[str, list[float]] = {side: [] for side in SIDES}

    def between(event: Progress) -> None:
        if event.kind != "phase":
            print(event.text, flush=True)
        if event.kind != "block":
            return
        for side, stack in SIDES.items():
            command = [sys.executable, str(HERE / "independent_clock.py"), side]
            # What the row's framework documents for its best speed is set for both clocks.
            environment = {**ENVIRONMENT, **find_entry(stack).variables}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            times[side].append(float(done.stdout.split()[-1]))
            print(f"  independent clock, {side}: {times[side][-1]:.4f} s", flush=True)

    result = detente.compare(
        "gpt2",
        stacks=tuple(SIDES.values()),
        blocks=args.blocks,
        budget_s=60 * args.minutes,
        memory=False,
        progress=between,
    )
    text, words = page(
        result,
        times,
        f"python benchmarks/independent_check.py --blocks {args.blocks} --minutes {args.minutes:g}",
    )
    print(text)
    OUT.write_text(text)
    return 1 if "DISAGREE" in words else 0 if set(words) == {"agree"} else 2


def page(result: Result, times: dict[str, list[float]], command: str) -> tuple[str, list[str]]:
    """The page, and the word of each side."""
    noise = next(iter(result.session.noise.values()))
    bound = noise.bound if noise.known else None
    load = result.session.load.share if result.session.load else None
    processor = str(result.session.fingerprint.machine.get("processor", "unknown"))
    rows, words = [], []
    for side, stack in SIDES.items():
        ours = next((c.steady_s.median for c in result.cells if c.label == stack and c.steady_s), None)
        if ours is None or not times[side]:
            words.append("UNDECIDED")
            rows.append(f"| {side} | not measured | | | UNDECIDED |")
            continue
        theirs = statistics.median(times[side])
        words.append(verdict(ours, theirs, bound))
        rows.append(f"| {side} | {ours:.4f} | {theirs:.4f} | {theirs / ours:.3f} | {words[-1]} |")
    told_ = ", ".join(f"{side} {word}" for side, word in zip(SIDES, words, strict=True))
    processes = min(map(len, times.values()))
    lines = [
        "# An independent clock",
        "",
        "`python benchmarks/independent_check.py` writes this page: `compare gpt2` on "
        f"{' and '.join(SIDES.values())} (GPT-2 Small, train-step, fp32), and between its blocks "
        "`benchmarks/independent_clock.py`, which uses neither worker nor judge. Both run under the variables that the "
        "row names (torch's allocator settings).",
        "",
        f"Two clocks agree when their medians are within a fixed {100 * TOLERANCE:g} %. Where one stack differs from "
        "itself by more than that (the A/A bound), the word is UNDECIDED.",
        "",
        f"| side | session, s | independent, s ({processes} processes) | independent over session | word |",
        "|---|---|---|---|---|",
        *rows,
        "",
        *told(remember(OUT, Attempt(today(), processor, command, bound, load, told_))),
    ]
    return "\n".join(lines) + "\n", words


if __name__ == "__main__":
    sys.exit(main())
