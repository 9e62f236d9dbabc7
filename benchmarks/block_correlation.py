"""How far does a block resemble the one before it? Measures sessions, stores their medians, bounds the correlation.

python benchmarks/block_correlation.py [--sessions 10] [--blocks 15]   # measures, then writes what follows
python benchmarks/block_correlation.py --estimate                      # from the stored blocks; nothing is measured

Writes docs/results/block-correlation.jsonl (a line per session, the median of every process), the page beside it, and
src/detente/judge/block_correlation.py, which every interval is widened by.

The workload is small and sampling short, so that a block takes about ten seconds: neighbouring blocks of a real session
lie further apart in time, so what is carried from one to the next is, if anything, overstated here. Run it again when
the machine of the claims changes. Sessions that others disturbed are stored and counted like the rest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from detente.judge.correlation import MOST, lag_one, widening
from detente.judge.load import load_of
from detente.judge.statistics import log_ratios, t_quantile
from detente.records.codec import from_json
from detente.records.job import Sampling
from detente.records.sample import process_median
from detente.records.session import Session
from detente.store.lines import parse_lines

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "docs/results/block-correlation.jsonl"
PAGE = ROOT / "docs/results/block-correlation.md"
DATA = ROOT / "src/detente/judge/block_correlation.py"
# Whole sessions that are in the repository: what the bound rests on until ten sessions of 15 blocks were measured.
OLDER = (ROOT / "docs/results/demo/session.jsonl", ROOT / "docs/results/torch-xla-cpu.jsonl")
WANTED_SESSIONS, WANTED_BLOCKS = 10, 15
LEVEL = 0.95
# Ten sessions of 15 *independent* blocks give this bound in the median (0.01 to 0.25 in nine of ten): a smaller one is
# luck, or too few blocks, and is not believed.
LEAST = 0.12
STACKS = ("torch-eager", "jax")


@dataclass(frozen=True)
class Series:
    """Process medians of one session and group: label -> seconds per step, a figure per whole block, in order."""

    session: str
    day: str
    processor: str
    group: str
    load: float | None
    seconds: dict[str, list[float]]

    @property
    def blocks(self) -> int:
        return min(map(len, self.seconds.values()))

    def mean_lag_one(self) -> float | None:
        """The mean lag-1 autocorrelation over all pairs of rows."""
        rows = [dict(enumerate(found)) for found in self.seconds.values()]
        found = [lag_one(log_ratios(a, b, range(self.blocks))) for a, b in combinations(rows, 2)]
        known = [r for r in found if r is not None]
        return statistics.fmean(known) if known else None


@dataclass(frozen=True)
class Estimate:
    """``of``: each session's estimate, corrected; ``mean`` and ``bound`` as in the package's record."""

    of: tuple[float, ...]
    mean: float
    bound: float


def series_of(session: Session) -> list[Series]:
    """What a session adds: one series per group, whole blocks and rows without a failure only."""
    blocks, dead = session.whole_blocks(), session.dead()
    load = load_of(session, blocks)
    day = time.strftime("%Y-%m-%d", time.gmtime(session.started))
    groups: dict[str, dict[str, list[float]]] = {}
    for cell in session.planned:
        by = {p.block: process_median(p.evidence.samples) for p in session.of(cell)}
        found = [m for b in blocks if (m := by.get(b))]
        if cell.key not in dead and len(found) == len(blocks) >= 4:
            groups.setdefault(cell.group, {})[cell.label] = [float(f"{x:.6g}") for x in found]
    processor = str(session.fingerprint.machine.get("processor", "unknown"))
    share = None if load.share is None else round(load.share, 4)
    return [Series(session.id, day, processor, g, share, rows) for g, rows in groups.items() if len(rows) > 1]


def expected_lag_one(n: int, sessions: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """(rho, mean of ``lag_one`` over AR(1) series of ``n`` blocks), by simulation with a fixed seed: short series
    underestimate, by 0.2 at a true 0.5 and n = 15."""
    rng = np.random.default_rng(n)
    draws = rng.normal(size=(n, sessions))
    rhos = np.linspace(-0.9, MOST, 38)
    means = []
    for rho in rhos:
        x = np.empty_like(draws)
        x[0] = draws[0]
        for i in range(1, n):
            x[i] = rho * x[i - 1] + np.sqrt(1 - rho * rho) * draws[i]
        away = x - x.mean(axis=0)
        means.append(float(np.mean((away[1:] * away[:-1]).sum(axis=0) / (away**2).sum(axis=0))))
    return rhos, np.maximum.accumulate(np.array(means))


def estimate(series: Sequence[Series]) -> Estimate:
    """The session is the replicate: Student's t over the sessions' corrected estimates, so that sessions that differ in
    earnest widen the bound too. Never under ``LEAST``."""
    tables = {n: expected_lag_one(n) for n in {s.blocks for s in series}}
    found = []
    for s in series:
        r = s.mean_lag_one()
        if r is not None:
            rhos, means = tables[s.blocks]
            found.append(float(np.interp(r, means, rhos)))
    mean = statistics.fmean(found)
    reach = t_quantile(LEVEL, len(found) - 1) * statistics.stdev(found) / len(found) ** 0.5
    return Estimate(tuple(found), mean, float(min(MOST, max(LEAST, mean + reach))))


# -- stored -------------------------------------------------------------------------------------------------------


def stored() -> list[Series]:
    """The measured sessions, as they were written."""
    if not STORED.exists():
        return []
    return [from_json(Series, json.loads(line)) for line in STORED.read_text().splitlines()]


def older() -> list[Series]:
    """Series of the sessions that the repository holds anyway."""
    found = []
    for path in OLDER:
        with path.open("rb") as lines:
            found += series_of(parse_lines(lines, str(path))[0])
    return found


def measure(sessions: int, blocks: int) -> None:
    """Run the sessions; each is appended when it ends, so that an interrupted run keeps what it has."""
    from detente.session.request import Request
    from detente.session.run import run_session

    for i in range(sessions):
        request = Request(
            workloads=("gemm",),
            stacks=STACKS,
            size="tiny",
            blocks=blocks,
            memory=False,
            seed=3000 + i + len(stored()),
            sampling=Sampling(samples=8, seconds=0.5),
            command=("benchmarks/block_correlation.py",),
        )
        begun = time.monotonic()
        session = run_session(request, lambda event: None)
        with STORED.open("a") as out:
            for found in series_of(session):
                out.write(json.dumps(asdict(found)) + "\n")
        took = time.monotonic() - begun
        print(
            f"session {i + 1} of {sessions}: {len(session.whole_blocks())} blocks in {took:.0f} s", flush=True
        )
        if session.note == "interrupted":
            raise KeyboardInterrupt


def write(series: Sequence[Series], provisional: bool) -> Estimate:
    """The package's data and the page."""
    found = estimate(series)
    machines = sorted({s.processor for s in series})
    days = sorted({s.day for s in series})
    blocks = min(s.blocks for s in series)
    source = (
        "docs/results/block-correlation.jsonl"
        if not provisional
        else ", ".join(str(p.relative_to(ROOT)) for p in OLDER)
    )
    DATA.write_text(
        DATA.read_text().split("STORED = ", maxsplit=1)[0]
        + DATA_FORM.format(
            bound=f"{found.bound:.3f}",
            mean=f"{found.mean:.3f}",
            sessions=len(found.of),
            blocks=blocks,
            provisional=provisional,
            measured=days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
            machine="; ".join(machines),
            source=source,
        )
    )
    lines = [
        "# How far a block resembles the one before it",
        "",
        "`python benchmarks/block_correlation.py` measures, and writes this page, the blocks behind it and the bound "
        "that every interval is widened by; `--estimate` does so from the stored blocks. Nothing here is typed.",
        "",
    ]
    if provisional:
        lines += [
            f"**Provisional.** It takes {WANTED_SESSIONS} sessions of {WANTED_BLOCKS} blocks; until they are measured, "
            f"each comparison in {source} counts as a session, though it has {blocks} blocks only.",
            "",
        ]
    lines += [
        f"Processor: {'; '.join(machines)}. Day: {', '.join(days)}.",
        "",
        f"Mean lag-1 correlation over {len(found.of)} sessions: **{found.mean:.2f}**; one-sided 95 % bound, Student's "
        f"t over sessions, at least {LEAST}: **{found.bound:.2f}**. Intervals are wider by a factor of "
        f"{widening(found.bound):.2f} = sqrt((1 + rho) / (1 - rho)). A smaller bound than {LEAST} is not believed: ten "
        "sessions of 15 independent blocks give that one in the median.",
        "",
        "| session | comparison | blocks | load of others | lag-1 as measured | corrected for short series |",
        "|---|---|---|---|---|---|",
    ]
    shown = [s for s in series if s.mean_lag_one() is not None]
    for s, rho in zip(shown, found.of, strict=True):
        load = "not recorded" if s.load is None else f"{100 * s.load:.1f} %"
        lines.append(
            f"| {s.session} | {s.group} | {s.blocks} | {load} | {s.mean_lag_one():.2f} | {rho:.2f} |"
        )
    PAGE.write_text("\n".join(lines) + "\n")
    return found


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=WANTED_SESSIONS)
    parser.add_argument("--blocks", type=int, default=WANTED_BLOCKS)
    parser.add_argument("--estimate", action="store_true", help="measure nothing")
    args = parser.parse_args(None if arguments is None else list(arguments))
    if not args.estimate:
        measure(args.sessions, args.blocks)
    whole = [s for s in stored() if s.blocks >= WANTED_BLOCKS]
    enough = len(whole) >= WANTED_SESSIONS
    found = write(whole if enough else older(), provisional=not enough)
    if not enough:
        print(
            f"{len(whole)} sessions of {WANTED_BLOCKS} blocks are stored, {WANTED_SESSIONS} wanted: provisional"
        )
    print(f"rho: mean {found.mean:.3f}, bound {found.bound:.3f}, factor {widening(found.bound):.3f}")
    return 0


DATA_FORM = """STORED = BlockCorrelation(
    bound={bound},
    estimate={mean},
    sessions={sessions},
    blocks={blocks},
    provisional={provisional},
    measured="{measured}",
    machine="{machine}",
    source="{source}",
    command="python benchmarks/block_correlation.py",
)
"""


if __name__ == "__main__":
    sys.exit(main())
