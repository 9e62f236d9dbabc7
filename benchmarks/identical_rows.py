"""Real sessions in which two rows are the same stack, and a third run of it sets the margin.

python benchmarks/identical_rows.py [--sessions 20] [--workload gemm] [--stack jax] [--minutes 60]

Writes docs/results/identical-rows.md wholly. A FASTER or SLOWER here is a false alarm, and the script then ends with 1.
What the machine does meanwhile is part of the test, and is stated. ``--minutes`` bounds the whole run: no session
starts that would, by the longest so far, end later.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from attempts import Attempt, remember, share, today, told

import detente
from detente.judge.block_correlation import STORED
from detente.records.job import Sampling
from detente.records.result import Result
from detente.report.numbers import count

OUT = Path(__file__).resolve().parent.parent / "docs/results/identical-rows.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--workload", default="gemm")
    parser.add_argument("--stack", default="jax")
    parser.add_argument("--minutes", type=float, default=60.0)
    args = parser.parse_args()
    command = (
        f"python benchmarks/identical_rows.py --sessions {args.sessions} --workload {args.workload} "
        f"--stack {args.stack} --minutes {args.minutes:g}"
    )
    begun, longest = time.monotonic(), 0.0
    results: list[Result] = []
    for i in range(args.sessions):
        left = begun + 60 * args.minutes - time.monotonic()
        if left < max(longest, 30.0):
            print(
                f"{len(results)} sessions of {args.sessions}: {args.minutes:g} minutes are over", flush=True
            )
            break
        at = time.monotonic()
        results.append(
            detente.compare(
                args.workload,
                stacks=[args.stack, args.stack],
                size="tiny",
                memory=False,
                seed=1000 + i,
                budget_s=left,
                sampling=Sampling(samples=12, seconds=1.0),
            )
        )
        longest = max(longest, time.monotonic() - at)
        print(_row(i, results[-1]), flush=True)
    if not results:
        print("no session fits into the time given", file=sys.stderr)
        return 2
    alarms = sum(r.verdicts[0].word in ("FASTER", "SLOWER") for r in results)
    OUT.write_text(_page(results, args, command, alarms))
    print(f"False alarms: {alarms} of {len(results)}.")
    return 1 if alarms else 0


def _bound(result: Result) -> float | None:
    """How far the A/A pair may differ; None where it has too few blocks to say."""
    noise = next(iter(result.session.noise.values()))
    return noise.bound if noise.known else None


def _load(result: Result) -> float | None:
    return result.session.load.share if result.session.load else None


def _row(i: int, result: Result) -> str:
    verdict = result.verdicts[0]
    told_ = "" if verdict.low is None or verdict.high is None else f"{verdict.low:.3f} to {verdict.high:.3f}"
    ratio = "" if verdict.ratio is None else f"{verdict.ratio:.3f}"
    return (
        f"| {i + 1} | {verdict.blocks} | {verdict.word} | {ratio} | {told_} | {100 * verdict.margin:.1f} % | "
        f"{share(_bound(result))} | {share(_load(result))} | {result.session.state} |"
    )


def _page(results: list[Result], args: argparse.Namespace, command: str, alarms: int) -> str:
    bounds = [x for r in results if (x := _bound(r)) is not None]
    loads = [x for r in results if (x := _load(r)) is not None]
    words = [r.verdicts[0].word for r in results]
    counted = ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words))
    processor = str(results[0].session.fingerprint.machine.get("processor", "unknown"))
    attempt = Attempt(
        today(),
        processor,
        command,
        statistics.median(bounds) if bounds else None,
        statistics.fmean(loads) if loads else None,
        f"{counted}; {alarms} false",
    )
    less = "" if len(results) == args.sessions else f" ({args.sessions} asked for; the time was over)"
    lines = [
        f"# Two identical `{args.stack}` rows, {count(len(results), 'session')}{less}",
        "",
        "`python benchmarks/identical_rows.py` writes this page: "
        f"`compare {args.workload} --size tiny --stacks {args.stack},{args.stack}`, the "
        "A/A twin a third run of the same. FASTER or SLOWER is a false alarm.",
        "",
        f"**False alarms: {alarms} of {len(results)}.** Words: {counted}. Processor: {processor}. Intervals are "
        f"widened for a correlation between blocks of at least {STORED.bound:.2f}"
        f"{' (provisional)' if STORED.provisional else ''}. A/A bound and load below are medians and means over "
        "sessions.",
        "",
        *told(remember(OUT, attempt)),
        "",
        "| session | blocks | verdict | ratio | interval | margin | A/A bound | load of others | state |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(i, r) for i, r in enumerate(results)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
