"""Host and harness: threads, profilers, input pipelines, versions, and rows that went missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from detente.judge.rules.clock import FEEDING
from detente.judge.rules.rule import Group, Hit, Row, Rule, each, odd_ones

RUNTIMES = ("torch", "jax", "tensorflow", "torch_xla", "keras")
# Frameworks that are one runtime: torch_xla is torch's device, Keras runs on one of the others.
_PART_OF = {"torch_xla": "torch", "keras": ""}
# Autocorrelation of samples that is taken for a rhythm, when every process shows it at the same lag.
RHYTHM = 0.6
RHYTHM_SAMPLES = 20


def _threads(group: Group) -> Iterator[Hit]:
    flagged = set()
    for row in group.rows:
        for found in row.every("threads"):
            asked, affinity = found.get("asked"), found.get("affinity")
            cores = len(affinity) if isinstance(affinity, list) else affinity
            own = {k: v for k, v in (found.get("framework") or {}).items() if "inter" not in k.lower() and v}
            wrong = {k: v for k, v in own.items() if asked and v != asked}
            if wrong or (asked and cores and cores != asked):
                said = [f"{k} {v}" for k, v in sorted(wrong.items())]
                if asked and cores and cores != asked:
                    said.append(f"affinity {cores}")
                flagged.add(row.cell.key)
                yield Hit(row, f"{asked} threads asked for, read back: {', '.join(said)}", {"threads": found})
                break
    known = Group(group.name, tuple(r for r in group.rows if r.has("threads.asked")))
    for row, mine, usual in odd_ones(known, lambda row: row.get("threads.asked")):
        if row.cell.key not in flagged:
            yield Hit(row, f"{mine} threads, {usual} in the other rows", {"asked": mine, "others": usual})


def _profiler(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    if any(row.every("host.profiler_active")):
        yield "a profiler or tracer was active during the timing", {"profiler_active": True}


def _pipeline(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    inside = set(row.get("region.inside", ())) & FEEDING
    if inside and row.cell.contract.feed == "resident":
        yield (
            f"inside the clock although inputs are declared resident: {', '.join(sorted(inside))}",
            {"inside": sorted(inside)},
        )


def _rhythm(values: list[float]) -> tuple[int, float]:
    """The lag (2 and up) with the largest autocorrelation of the samples, a straight line taken out first."""
    n = len(values)
    centre, middle = statistics.fmean(values), (n - 1) / 2
    slope = sum((i - middle) * (v - centre) for i, v in enumerate(values)) / sum(
        (i - middle) ** 2 for i in range(n)
    )
    rest = [v - centre - slope * (i - middle) for i, v in enumerate(values)]
    power = sum(r * r for r in rest)
    if power == 0:
        return 0, 0.0
    best = max(
        (sum(rest[i] * rest[i + lag] for i in range(n - lag)) / power * n / (n - lag), lag)
        for lag in range(2, n // 3 + 1)
    )
    return best[1], best[0]


def _interruptions(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    disabled = row.every("host.gc_disabled")
    if disabled and not all(disabled):
        yield "Python's garbage collector was on during the timing", {"gc_disabled": False}
    runs = [[s.wall_ns / s.steps for s in p.evidence.samples] for p in row.fine]
    runs = [r for r in runs if len(r) >= RHYTHM_SAMPLES]
    if len(runs) >= 3:
        found = [_rhythm(r) for r in runs]
        lags = {lag for lag, _ in found}
        if len(lags) == 1 and min(strength for _, strength in found) > RHYTHM:
            yield (
                f"every {lags.pop()}th sample stands out in all {len(runs)} processes: something runs on a rhythm",
                {"autocorrelation": min(strength for _, strength in found)},
            )


def _runtimes(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for found in row.every("modules"):
        loaded = [f for f in found.get("frameworks", ()) if f in RUNTIMES]
        runtimes = {_PART_OF.get(f, f) for f in loaded} - {""}
        # A stack says which frameworks are foreign to it (the bridge is two by nature, a loader may be torch's);
        # where it says nothing, one runtime is what a process may have.
        foreign = found.get("foreign", loaded if len(runtimes) > 1 else [])
        if foreign:
            yield (
                f"{', '.join(sorted(loaded))} in one process: {', '.join(sorted(foreign))} is foreign to this "
                "stack and competes for its threads and memory",
                {"frameworks": loaded, "foreign": sorted(foreign)},
            )
            return


def _drift(group: Group) -> Iterator[Hit]:
    by_stack: dict[str, dict[str, str]] = {}
    for row in group.rows:
        for p in row.fine:
            if not p.evidence.versions:
                continue
            before = by_stack.setdefault(row.cell.stack, p.evidence.versions)
            moved = {
                name: (before.get(name, "absent"), p.evidence.versions.get(name, "absent"))
                for name in before.keys() | p.evidence.versions.keys()
                if before.get(name) != p.evidence.versions.get(name)
            }
            if moved:
                listed = ", ".join(f"{n} {a} then {b}" for n, (a, b) in sorted(moved.items()))
                yield Hit(
                    row, f"versions changed within the session: {listed}", {"versions": list(map(str, moved))}
                )
                break


def _survivors(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    lost = [p for p in row.processes if p.evidence.status != "ok"]
    if lost and row.fine:
        first = lost[0].evidence
        yield (
            f"{len(lost)} of {len(row.processes)} processes did not end well ({first.status} in {first.phase}"
            f"{': ' + first.reason if first.reason else ''}): the rest are survivors",
            {"lost": len(lost), "processes": len(row.processes), "reason": first.reason},
        )


RULES = (
    Rule(
        code="threads-differ",
        alias="P30",
        family="harness",
        severity="warn",
        title="Different thread counts",
        what="The sides use different numbers of CPU threads, or another number than asked for.",
        why="torch.utils.benchmark's Timer sets one thread by default, XLA takes every core.",
        evidence=("threads",),
        detected="The affinity and every thread count that the framework reads back, against what was asked for, "
        "and over the rows (pools between operators are not counted).",
        fix="torch.set_num_threads and the process's affinity; XLA follows the affinity.",
        waive="When threads are the question: as rows of their own.",
        example="torch.set_num_threads(1) beside XLA on 16 cores",
        cpu=True,
        check=_threads,
    ),
    Rule(
        code="profiler-on",
        alias="P31",
        family="harness",
        severity="warn",
        title="A profiler was on",
        what="Profiling or tracing ran during the timing.",
        why="It costs more on the side that launches more operations.",
        evidence=("host.profiler_active",),
        detected="The state of sys.setprofile, sys.settrace and the framework's profiler.",
        fix="Profile in a process of its own.",
        waive="Never for a ratio.",
        example="with torch.profiler.profile(): timed_loop()",
        cpu=True,
        check=each(_profiler),
    ),
    Rule(
        code="input-pipeline-inside",
        alias="P32",
        family="harness",
        severity="warn",
        title="The input pipeline is inside the clock",
        what="Fetching, decoding or placing the next batch is timed, and the contract says that inputs are resident.",
        why="A tf.data pipeline under PyTorch was part of a published step time.",
        evidence=("region",),
        detected="What ran between the readings, against the contract's feed.",
        fix="Place the batches before the clock starts, or ask for the contract with a loader on every side.",
        waive="Under a contract with `feed: loader`.",
        example="for batch in dataloader: t0 = now() ...   # the iterator ran before t0, the copy after it",
        cpu=True,
        check=each(_pipeline),
    ),
    Rule(
        code="host-interruptions",
        alias="P33",
        family="harness",
        severity="warn",
        title="Garbage collection, logging or .item() on a rhythm",
        what="Something on the host interrupts the steps, often every so many of them.",
        why="loss.item() every 100 steps synchronises one side only; the collector walks a large graph of objects.",
        evidence=("host", "samples"),
        detected="Whether the collector was off, and the autocorrelation of the samples: one lag that stands out in "
        "every process.",
        fix="gc.freeze() and gc.disable() during the window; read losses after it.",
        waive="When the training loop really logs: on every side.",
        example="if step % 100 == 0: print(loss.item())",
        cpu=True,
        check=each(_interruptions),
    ),
    Rule(
        code="two-frameworks",
        alias="P34",
        family="harness",
        severity="void",
        title="Two frameworks in one process",
        what="A second framework's runtime is loaded in the timing process.",
        why="Thread pools and memory pools of both compete, and the one imported first wins.",
        evidence=("modules",),
        detected="sys.modules after the window; a stack that is two by nature declares them.",
        fix="One worker process per stack; `transformers` imports what it finds, so hide what it should not.",
        waive="For a stack that declares both (the bridge), and a torch data loader with one thread.",
        example="import tensorflow   # through a logging callback",
        cpu=True,
        check=each(_runtimes),
    ),
    Rule(
        code="versions-drift",
        alias="P35",
        family="harness",
        severity="void",
        title="Versions or hardware changed between the sides",
        what="The processes of one row ran with different versions, or on another machine.",
        why="The same container took 2,800 s and then 3,262 s (algorithmic-efficiency 468): such a pair is a trend, "
        "never a verdict.",
        evidence=("processes",),
        detected="Versions in every process of a stack must agree; machine and settings are one fingerprint per "
        "session, and `history` never calls a comparison across fingerprints a verdict.",
        fix="Measure both in one session.",
        waive="In `history`, under its own words.",
        example="pip install -U between two runs with --resume",
        cpu=True,
        check=_drift,
        applies=lambda row: bool(row.fine),
    ),
    Rule(
        code="survivors-only",
        alias="P36",
        family="harness",
        severity="void",
        title="Survivor bias",
        what="Processes or workloads that failed are left out, and the rest is averaged.",
        why="A well-known table removes the models that fail its accuracy check, and every compiler then looks "
        "better the more it breaks (pytorch 93517).",
        evidence=("processes",),
        detected="The denominator is the planned matrix: a cell that failed, ran out of memory or was skipped stays "
        "in the table, and a row of which some processes failed is void.",
        fix="Find out why the processes failed; `detente compare --resume` runs what is missing.",
        waive="Never.",
        example="speed-up over the 12 of 20 models that compiled",
        cpu=True,
        check=each(_survivors),
    ),
)
