"""Host and harness: threads, profilers, input pipelines, versions, and rows that went missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from detente.judge.rules.clock import FEEDING
from detente.judge.rules.rule import Group, Hit, Row, Rule, each

RUNTIMES = ("torch", "jax", "tensorflow", "torch_xla", "keras")
# Frameworks that are one runtime: torch_xla is torch's device, Keras runs on one of the others.
_PART_OF = {"torch_xla": "torch", "keras": ""}
# Autocorrelation of samples that is taken for a rhythm, when every process shows it at the same lag.
RHYTHM = 0.6
RHYTHM_SAMPLES = 20
# Probes on which rules rest that void a row. A test holds them against the rules.
VOIDING = frozenset(
    {
        "consumed", "devices", "host", "modules", "observed", "precision", "program", "region", "rotation", "slope",
        "threads", "waiting", "weights",
    }
)  # fmt: skip
# Processor time over wall time, as a multiple of the declared cores.
MOST_BUSY = 1.1


def _threads(group: Group) -> Iterator[Hit]:
    for row in group.rows:
        for found in row.every("threads"):
            asked = found.get("asked")
            own = {k: v for k, v in (found.get("framework") or {}).items() if "inter" not in k.lower() and v}
            fewer = {k: v for k, v in own.items() if asked and v < asked}
            if fewer:
                said = ", ".join(f"{k} {v}" for k, v in sorted(fewer.items()))
                yield Hit(row, f"{asked} threads asked for, read back: {said}", {"threads": found})
                break


def _more_cores(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for found in row.every("threads"):
        asked, busy = found.get("asked"), found.get("busy")
        own = {k: v for k, v in (found.get("framework") or {}).items() if "inter" not in k.lower() and v}
        more = {k: v for k, v in own.items() if asked and v > asked}
        if more:
            said = ", ".join(f"{k} {v}" for k, v in sorted(more.items()))
            yield f"{asked} threads declared, read back: {said}", {"threads": found}
            return
        if asked and busy and busy > MOST_BUSY * asked:
            yield (
                f"{busy:.3g} cores were busy for this row, {asked} are declared",
                {"busy": busy, "declared": asked},
            )
            return


def _affinity(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for found in row.every("threads"):
        declared, affinity = found.get("declared"), found.get("affinity")
        # Sessions of older versions have a number here and nothing that was declared.
        if not declared or not isinstance(affinity, list):
            continue
        said = _elsewhere(affinity, declared) or _fewer(found, affinity, declared)
        if said:
            yield f"{said}, declared are {_cores(declared)}", {"affinity": affinity, "declared": declared}
            return


def _elsewhere(affinity: list[list[int]], declared: list[int]) -> str:
    other = next((list(cores) for cores in affinity if not set(cores) <= set(declared)), None)
    if other is None:
        return ""
    return f"a thread of it, or of a process that it started, may run on cores {_cores(other)}"


def _fewer(found: dict[str, Any], affinity: list[list[int]], declared: list[int]) -> str:
    """Whether the work is kept on fewer cores. A helper that sleeps may be bound to one of the row's own, and so may
    each thread of a pool to its own (OMP_PROC_BIND): what computes must have all of them, and no two share one."""
    computing = [frozenset(cores) for cores in found.get("computing") or ()]
    if not computing:  # nobody counted who computes, in sessions of before 28 November
        other = next((list(cores) for cores in affinity if list(cores) != declared), None)
        return "" if other is None else f"a thread of it may run on cores {_cores(other)} alone"
    reached = sorted(frozenset().union(*computing))
    # A pool whose threads are each bound to a core of their own: of a small step one of them does it all, and the
    # others are there. What shrank itself has nobody on the other cores.
    pool = {core for cores in affinity if len(cores) == 1 for core in cores}
    if reached != declared and not (pool >= set(declared) and all(len(cores) == 1 for cores in computing)):
        return f"its threads that compute may run on cores {_cores(reached)} alone"
    for cores in sorted(set(computing), key=sorted):
        bound = sum(other <= cores for other in computing)
        if cores < set(declared) and bound > len(cores):
            return f"{bound} threads that compute are bound to cores {_cores(sorted(cores))}"
    return ""


def _cores(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _priority(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for found in row.every("threads"):
        for key, said in (("niceness", "niceness"), ("policies", "scheduling policy")):
            now, before = found.get(key), found.get(f"{key}_before")
            if now is not None and before is not None and now != before:
                yield (
                    f"{said} {_cores(now)} at the window, {_cores(before)} when the worker began",
                    {key: now, "before": before},
                )
                return


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
    if any(row.every("host.collector")):
        yield "a step turned Python's garbage collector on", {"collector": True}
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
    by_stack: dict[tuple[str, str], dict[str, str]] = {}
    for row in group.rows:
        for p in row.fine:
            if not p.evidence.versions:
                continue
            before = by_stack.setdefault((row.cell.stack, row.cell.arm.release), p.evidence.versions)
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


def _probes_failed(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    failed = {key: why for key in sorted(VOIDING) if (why := row.broken(key))}
    if failed:
        said = "; ".join(f"{key}: {why}" for key, why in failed.items())
        yield (
            f"asked, and no answer came ({said}): what these would have found is not known to be absent",
            {"failed": failed},
        )


RULES = (
    Rule(
        code="threads-differ",
        alias="P30",
        family="harness",
        severity="warn",
        title="Different thread counts",
        what="A side uses fewer CPU threads than asked for.",
        why="torch.utils.benchmark's Timer sets one thread by default, XLA takes every core.",
        evidence=("threads.framework",),
        detected="Every thread count that the framework reads back, against what was asked for (pools between "
        "operators are not counted). Fewer is a warning; more is more-cores-than-declared.",
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
        evidence=("region.inside",),
        detected="Who fetches and places the batches of the window, against the contract's feed.",
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
        evidence=("host.collector", "samples"),
        detected="Whether the collector is still off after a step, and the autocorrelation of the samples: one lag "
        "that stands out in "
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
    Rule(
        code="more-cores-than-declared",
        alias="P41",
        family="harness",
        severity="void",
        title="More cores are busy than declared",
        what="A row computes with more threads or processes than the session declared for every row.",
        why="Two cores against one is a ratio of two that says nothing of either framework, and a helper process does "
        "not show in its parent's own clock.",
        evidence=("threads.busy", "threads.framework"),
        detected="Thread counts that the framework's own functions read back, above those asked for; and processor "
        "time over wall time in the window, of the process and of everything that it started, above the declared "
        "cores by 10 %.",
        fix="Use the threads that the session gives; ask for more with --threads, for every row.",
        waive="Never within a session.",
        example="torch.set_num_threads(64)   # in a stack that was asked for 2",
        cpu=True,
        check=each(_more_cores),
    ),
    Rule(
        code="affinity-differs",
        alias="P42",
        family="harness",
        severity="void",
        title="A thread may run elsewhere than declared",
        what="Some thread of the worker, or of a process that it started, may use cores that the row was not given, or "
        "the threads that compute are kept on fewer.",
        why="A process that was shrunk to one of two cores ran 100 times slower, and one that escapes its cores takes "
        "its neighbour's.",
        evidence=("threads.affinity", "threads.declared"),
        detected="The affinity of every thread, and of those of processes that it started, before and after the "
        "window, from the kernel, against the cores that the parent named: none may have others; and those that used "
        "a tenth of the busiest one's time in it must have all of them, or each its own of a pool that has a thread "
        "bound to every one of them; and no two threads bound to one core.",
        fix="Leave the affinity alone; `--threads` chooses how many cores every row gets.",
        waive="Never within a session.",
        example="os.sched_setaffinity(0, {0})   # in a stack, or in a library that it imports",
        cpu=True,
        check=each(_affinity),
    ),
    Rule(
        code="priority-differs",
        alias="P44",
        family="harness",
        severity="void",
        title="The process changed its priority",
        what="Niceness or scheduling policy of some thread are not those with which the worker began.",
        why="On a machine with anything else to do, a nicer process waits for whatever comes: its row is slower, and "
        "the "
        "ratio is the scheduler's.",
        evidence=("threads.niceness", "threads.policies"),
        detected="Niceness and policy of every thread before and after the window, from the kernel, against those of "
        "the worker before the stack's file was loaded.",
        fix="Start `detente` itself at the priority that you want: every row inherits it.",
        waive="Never within a session.",
        example="os.nice(10)   # in a stack",
        cpu=True,
        check=each(_priority),
    ),
    Rule(
        code="probe-failed",
        alias="P50",
        family="harness",
        severity="void",
        title="A look at the row failed",
        what="A probe raised an error, so that rules which void a row could not be asked of this one.",
        why="A row that ran on two cores where one was declared wrote a character into its environment that the probe "
        "of its threads stumbled over: four rules were silent, and it was called proved.",
        evidence=("processes",),
        detected="An error, in any process, of a probe on which a voiding rule rests. What a stack cannot have (eager "
        "PyTorch has no program) is absent and no error.",
        fix="The finding names the probe and its error; of a stack of your own, let the method that it calls answer as "
        "stacks/protocol.py says.",
        waive="Never: measure again where it was the machine (memory that ran out beside a neighbour).",
        example='os.environ["OMP_NUM_THREADS"] = "\u00b2"   # isdigit() is true, int() raises',
        cpu=True,
        check=each(_probes_failed),
    ),
)
