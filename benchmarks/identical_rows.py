"""Twenty real sessions in which two rows are the same stack, and a third run of it sets the margin.

python benchmarks/identical_rows.py [sessions] [workload] [stack]     # writes docs/results/identical-rows.md

A FASTER or SLOWER here would be a false alarm. What the machine does meanwhile is part of the test.
"""

from __future__ import annotations

import sys
from pathlib import Path

import detente
from detente.records.job import Sampling

OUT = Path(__file__).resolve().parent.parent / "docs/results/identical-rows.md"


def main(sessions: int, workload: str, stack: str) -> int:
    lines = [
        f"# Two identical `{stack}` rows, {sessions} sessions",
        "",
        f"`python benchmarks/identical_rows.py {sessions} {workload} {stack}`: `compare {workload} --size tiny "
        f"--stacks {stack},{stack}`, the A/A twin a third run of the same. FASTER or SLOWER would be a false alarm.",
        "",
        "| session | blocks | verdict | ratio | interval | margin | state |",
        "|---|---|---|---|---|---|---|",
    ]
    alarms = 0
    for i in range(sessions):
        result = detente.compare(
            workload,
            stacks=[stack, stack],
            size="tiny",
            memory=False,
            seed=1000 + i,
            sampling=Sampling(samples=12, seconds=1.0),
        )
        verdict = result.verdicts[0]
        alarms += verdict.word in ("FASTER", "SLOWER")
        told = "" if verdict.low is None else f"{verdict.low:.3f} to {verdict.high:.3f}"
        ratio = "" if verdict.ratio is None else f"{verdict.ratio:.3f}"
        lines.append(
            f"| {i + 1} | {verdict.blocks} | {verdict.word} | {ratio} | {told} | {100 * verdict.margin:.1f} % | "
            f"{result.session.state} |"
        )
        print(lines[-1], flush=True)
    lines += ["", f"False alarms: {alarms} of {sessions}."]
    OUT.write_text("\n".join(lines) + "\n")
    print(lines[-1])
    return 1 if alarms else 0


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("20", "gemm", "jax")[len(sys.argv) - 1 :]]
    sys.exit(main(int(arguments[0]), arguments[1], arguments[2]))
