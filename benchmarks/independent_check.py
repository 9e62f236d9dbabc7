"""Does detente's clock agree with one that is not ours? Regenerates docs/results/independent-clock.md.

python benchmarks/independent_check.py SESSION [rounds]

Runs benchmarks/independent_clock.py for torch and JAX in turns, fresh processes, and holds the medians against those
of a stored session of `compare gpt2`. The bound is that session's own A/A bound: how far one stack lay from itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from detente.cli.sessions import find_session
from detente.judge import judge

HERE = Path(__file__).resolve().parent
SIDES = {"torch": "torch-eager", "jax": "jax"}


def main(name: str, rounds: int) -> int:
    session = find_session(name)
    result = judge(session)
    margin = max(result.session.margins.values())
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": str(HERE.parent / "src"),
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "HF_HUB_OFFLINE": "1",
    }
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            done = subprocess.run(
                [sys.executable, str(HERE / "independent_clock.py"), side],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            times[side].append(float(done.stdout.split()[-1]))
    lines = [
        "# An independent clock",
        "",
        "`python benchmarks/independent_check.py SESSION` runs `benchmarks/independent_clock.py` beside a stored "
        f"session ({session.id}).",
        "",
        f"| side | session, s | independent, s ({rounds} processes) | ratio | bound (A/A) | |",
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
    sys.exit(
        main(sys.argv[1] if len(sys.argv) > 1 else "latest", int(sys.argv[2]) if len(sys.argv) > 2 else 5)
    )
