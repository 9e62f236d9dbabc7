"""Does detente's clock agree with one that is not ours? Regenerates docs/results/independent-clock.md.

python benchmarks/independent_check.py [blocks]

Runs `compare gpt2` on torch-eager and jax, and after every whole block benchmarks/independent_clock.py once in torch
and once in JAX, each in a fresh process: what the machine does meanwhile happens to both clocks. The bound is the
session's own A/A bound: how far one stack lay from itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import detente
from detente.session.progress import Progress

HERE = Path(__file__).resolve().parent
SIDES = {"torch": "torch-eager", "jax": "jax"}
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "2",
    "PYTHONPATH": str(HERE.parent / "src"),
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    "HF_HUB_OFFLINE": "1",
}


def main(blocks: int) -> int:
    times: dict[str, list[float]] = {side: [] for side in SIDES}

    def between(event: Progress) -> None:
        if event.kind != "phase":
            print(event.text, flush=True)
        if event.kind != "block":
            return
        for side in SIDES:
            command = [sys.executable, str(HERE / "independent_clock.py"), side]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
            times[side].append(float(done.stdout.split()[-1]))
            print(f"  independent clock, {side}: {times[side][-1]:.4f} s", flush=True)

    result = detente.compare(
        "gpt2", stacks=tuple(SIDES.values()), blocks=blocks, memory=False, progress=between
    )
    margin = max(result.session.margins.values())
    lines = [
        "# An independent clock",
        "",
        f"`python benchmarks/independent_check.py {blocks}`: `compare gpt2` on {' and '.join(SIDES.values())} "
        "(GPT-2 Small, train-step, fp32), and between its blocks `benchmarks/independent_clock.py`.",
        "",
        f"| side | session, s | independent, s ({blocks} processes) | ratio | bound (A/A) | |",
        "|---|---|---|---|---|---|",
    ]
    good = True
    for side, stack in SIDES.items():
        ours = next(c.steady_s.median for c in result.cells if c.label == stack and c.steady_s)
        theirs = statistics.median(times[side])
        inside = 1 / (1 + margin) <= theirs / ours <= 1 + margin
        good &= inside
        lines.append(
            f"| {side} | {ours:.4f} | {theirs:.4f} | {theirs / ours:.3f} | {100 * margin:.1f} % | "
            f"{'within' if inside else '**beyond**'} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    (HERE.parent / "docs/results/independent-clock.md").write_text(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
