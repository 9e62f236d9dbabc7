"""What must be light: importing detente, `detente --help`, and the clock itself. Median of 7 processes.

python benchmarks/light.py            # prints the table; writes docs/results/light.md
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from detente.session.fingerprint import machine
from detente.worker.clock import timer_cost_ns

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = (
    "torch",
    "jax",
    "flax",
    "transformers",
    "tensorflow",
    "torch_xla",
    "scipy",
    "sqlalchemy",
    "numpy",
)
# Arguments of Python, and milliseconds at most.
COMMANDS = {
    "bare `python -c pass`": (["-c", "pass"], None),
    "`python -c 'import detente'`": (["-c", "import detente"], 60),
    "`detente --help`": (["-m", "detente", "--help"], 90),
}


def median_ms(arguments: list[str]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    times = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> int:
    lines = [
        "# What must be light",
        "",
        f"`python benchmarks/light.py`, median of 7 processes. Processor: {machine()['processor']}.",
        "",
        "| what | ms | limit |",
        "|---|---|---|",
    ]
    good = True
    for name, (arguments, limit) in COMMANDS.items():
        took = median_ms(arguments)
        good &= limit is None or took < limit
        lines.append(f"| {name} | {took:.0f} | {'' if limit is None else limit} |")
    code = (
        "import sys, contextlib, io\nfrom detente.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main(['--help'])\n"
        f"print([m for m in {FRAMEWORKS!r} if m in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    good &= loaded == "[]"
    cost = timer_cost_ns()
    lines += [
        "",
        f"Frameworks and heavy libraries that `detente --help` imports: {loaded}.",
        "",
        f"One reading of the clock costs {cost:.0f} ns: {100 * cost / 50e6:.5f} % of the shortest block (50 ms; "
        "limit 0.1 %).",
    ]
    good &= cost / 50e6 < 1e-3
    text = "\n".join(lines) + "\n"
    print(text)
    (ROOT / "docs/results/light.md").write_text(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
