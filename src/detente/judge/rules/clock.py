"""Clock and synchronisation: does the clock cover the work, all of it, and the same on every side?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from detente.judge.rules.hardware import FOREIGN
from detente.judge.rules.rule import Group, Hit, Row, Rule, each, on_gpu

# A forced read of every output may cost this much more than the clock saw; beyond it, work was still running.
READ_GAP = 0.05
# What one read of a finished scalar may be credited with, seconds. More than that is no copy of four bytes: a stack
# that defers its work until somebody asks for the number does it then.
MOST_READ_S = 1e-4
# Twice the steps must take twice the time, within this share.
SLOPE_GAP = 0.2
# What a single reading may be off by, in robust standard deviations of the process's own samples.
SPREADS = 3.0
# Beyond this the samples' spread excuses nothing: where the clock is early they alternate between a dispatch and a
# wait for a full queue, and their spread is the fault itself and no noise of the machine.
MOST_NOISE = 1.0

# Names of what makes the next batch; inside only where the contract feeds from a loader. Elsewhere they are what
# input-pipeline-inside warns of, while placing a batch there makes it another region: inputs were not resident.
FEEDING = frozenset({"fetch", "input", "loader"})

DECLARED = {"forward": set(), "gradient": {"backward"}, "train-step": {"backward", "optimizer"}}
# What every region has: the proof watches it, not this rule. Older sessions list it.
ALWAYS = frozenset({"forward", "loss"})
# Reading back everything beside somebody else's load: a gap below this is what one process's bad luck can make.
LOADED_GAP = 1.0
# A wait for nothing may take this share of the shortest block that ends with one.
IDLE_SHARE = 0.005
# The same for a wait that computes: asking every array of a large tree whether it is ready is what waiting means.
BUSY_SHARE = 0.05


def _spread(row: Row) -> float:
    """Relative spread of one reading: 1.48 x the median absolute deviation of per-step times, the worst process."""
    worst = 0.0
    for p in row.fine:
        steps = [s.wall_ns / s.steps for s in p.evidence.samples]
        if len(steps) >= 3:
            centre = statistics.median(steps)
            worst = max(worst, 1.48 * statistics.median(abs(x - centre) for x in steps) / centre)
    return worst


def _gap(slope: dict[str, Any]) -> float:
    """How much longer k steps took when all were read, less the reads themselves, than when they were waited for."""
    read = min(slope.get("reads") or [slope["read_t_k"]])
    waited = max(slope.get("waits") or [slope["t_k"]])
    reads_alone = min(slope.get("idle_t_k", 0.0), MOST_READ_S * slope.get("k", 1))
    return (read - reads_alone) / waited - 1


def _growth(slope: dict[str, Any]) -> float:
    """What twice the steps could have taken at most, over the steps; the repetitions taken against each other."""
    return max(slope.get("doubles") or [slope["t_2k"]]) / slope["t_k"]


def _looks(slope: dict[str, Any]) -> list[dict[str, Any]]:
    """What the probe read, and what it read when that looked odd to it and it looked again."""
    again = slope.get("again")
    return [slope] if not again else [slope, {**again, "t_k": min(again["waits"]), "k": slope.get("k", 1)}]


def _stops_early(group: Group) -> Iterator[Hit]:
    for row in group.rows:
        slopes = [s for s in row.every("slope") if s.get("t_k")]
        if not slopes:
            continue
        spread = _spread(row)
        # One reading on a machine that others use proves little: a neighbour that came with the reads and left with
        # the waits doubles a time, and voids an honest row.
        sure = LOADED_GAP if len(slopes) == 1 and any(p.foreign > FOREIGN for p in row.fine) else 0.0
        noise = min(SPREADS * spread, MOST_NOISE)
        # Every process must show it, and in it every read be longer than every wait: a machine that stutters once is
        # not a clock that stops early.
        read = [s for s in slopes if s.get("read_t_k")]
        least = min((_gap(s) for s in read), default=0.0)
        if least > max(READ_GAP, noise):
            lasting = min(_gap(look) for s in read for look in _looks(s))
            yield Hit(
                row,
                f"reading the outputs back takes {100 * least:.3g} % longer than the clock saw "
                f"({len(read)} process{'es' if len(read) > 1 else ''}): "
                + _told(lasting > max(READ_GAP, noise), least > sure, "the work was still running"),
                {"slope": slopes[0], "read_gap": least, "spread": spread},
                severity="void" if lasting > max(READ_GAP, noise, sure) else "warn",
            )
            continue
        # Only too little growth is a sign: a clock that saw too little of k steps and all of 2k is one that the reads
        # above have found, and on a busy machine 2k steps alone meet a neighbour often enough.
        doubled = [s for s in slopes if s.get("t_2k")]
        growth = [s["t_2k"] / s["t_k"] for s in doubled]
        few = 2 / (1 + max(SLOPE_GAP, noise))
        most = max((_growth(s) for s in doubled), default=few)
        if most < few:
            lasting = max(_growth(look) for s in doubled for look in _looks(s))
            yield Hit(
                row,
                f"twice the steps take {statistics.median(growth):.3g} times as long instead of 2: "
                + _told(lasting < few, most < 2 / (1 + sure), "the clock does not follow the work"),
                {"slope": slopes[0], "growth": growth, "spread": spread},
                severity="void" if lasting < min(few, 2 / (1 + sure)) else "warn",
            )


def _told(lasting: bool, sure: bool, what: str) -> str:
    if not lasting:
        return "looked at again, it did not: the machine went faster or slower in between"
    return what if sure else f"{what}, or a neighbour was"


def _regions(group: Group) -> Iterator[Hit]:
    for row in group.rows:
        contract = row.cell.contract
        inside = set(row.get("region.inside", ()))
        if contract.feed == "resident":
            inside |= {"read"} if row.get("observed.reads") or row.get("observed.loss_read") else set()
        declared = DECLARED[contract.region]
        steps = inside - ALWAYS - FEEDING - ({"place"} if contract.feed == "loader" else set())
        if steps != declared:
            outside, extra = sorted(declared - steps), sorted(steps - declared)
            said = "; ".join(
                part
                for part in (
                    f"outside the clock: {', '.join(outside)}" if outside else "",
                    f"inside although not declared: {', '.join(extra)}" if extra else "",
                )
                if part
            )
            yield Hit(
                row,
                f"the clock covers another region than `{contract.name}`: {said}",
                {"inside": sorted(inside)},
            )


def _idle(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    # The least over processes: a machine stutters once, a sleep is always there.
    shares, idle = row.every("waiting.share"), row.every("waiting.idle_s")
    asleep = row.every("waiting.asleep")
    if shares and (min(shares) > BUSY_SHARE or min(asleep, default=0.0) > IDLE_SHARE):
        yield (
            f"waiting for work that is long finished takes {min(idle):.3g} s, {100 * min(shares):.3g} % of a sample: "
            "the wait does something of its own",
            {"idle_s": min(idle), "share": min(shares)},
        )


def _patched(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    names = sorted({name for found in row.every("host.patched_timers") for name in found})
    if names:
        yield f"replaced after the worker began: time.{', time.'.join(names)}", {"patched": names}


RULES = (
    Rule(
        code="clock-stops-early",
        alias="P1",
        family="clock",
        severity="void",
        title="The clock stops before the work is done",
        what="The time between the two readings covers the dispatch of the work, and not the work.",
        why="JAX, CUDA and PyTorch/XLA return before they have finished. A 2048 x 2048 product was dispatched in "
        "0.016 ms and took 42.8 ms: a ratio of 2,659 that is no speed at all.",
        evidence=("slope",),
        detected="k and 2k queued steps are timed, then k steps with a forced read of every loss on the host, each in "
        "bursts that add up to 0.1 s. Reads that all take over 5 % longer than the clock ever saw (or three spreads "
        "of the process's own samples, where the machine is noisier), beyond what k reads of finished numbers take "
        "(0.1 ms each at most), or a time that does not double with the steps (by 20 %), in every process, void the "
        "row. Where others use the machine and one process alone was read so, a gap below a factor of two is a "
        "warning, and so is one that a second look, in turns, at steps of over 0.5 s does not see.",
        fix="Synchronise on every output before the second reading: torch.cuda.synchronize(), "
        "jax.block_until_ready(outputs and new state), torch_xla.sync(wait=True).",
        waive="Never for a ratio. To study dispatch cost, time dispatch on every side and call it that.",
        example="t0 = now(); y = step(x); t1 = now()   # jax: y is a promise, t1 - t0 is 16 microseconds",
        cpu=True,
        check=_stops_early,
    ),
    Rule(
        code="regions-differ",
        alias="P2",
        family="clock",
        severity="void",
        title="The sides time different regions",
        what="One side's clock includes something that the contract leaves out, or leaves out something that it "
        "includes: a copy to the host, the optimizer, autograd bookkeeping.",
        why="The only open suite that ran JAX, TensorFlow and PyTorch side by side stopped its clock after the copy "
        "to the host in PyTorch, before it in JAX, and fed numpy to TensorFlow: three regions under one name.",
        evidence=("region.inside", "observed"),
        detected="One step from the prepared weights shows what it does: parameters that move are an optimizer inside, "
        "parameters that stay are none, and gradients must come back where the contract returns them. A step is also "
        "watched by the framework's own profiler: a value copied to the host once backward has begun, the loss among "
        "the values that were read, numpy anywhere in a placed batch or numbers in a handle are "
        "inside although inputs and outputs are declared resident.",
        fix="Time the contract's region: place batches before the clock starts, leave outputs on the device, run the "
        "optimizer inside exactly when the contract is train-step.",
        waive="When the region is the question (`--contract forward` against `train-step`): as two contracts, never "
        "as a ratio.",
        example="OpenXLA comparative benchmark: `.cpu()` inside the PyTorch loop, `device_get` outside in JAX",
        cpu=True,
        check=_regions,
    ),
    Rule(
        code="work-on-another-stream",
        alias="P2b",
        family="clock",
        severity="void",
        title="Work runs on a stream that the clock does not wait for",
        what="Kernels are launched on a side stream; waiting for the current stream ends before they do.",
        why="Generated kernels were found that won a leaderboard this way (KernelBench issue 82).",
        evidence=("streams",),
        detected="A device-wide and a stream-wide synchronise must agree within 2 %.",
        fix="Synchronise the device, or join every stream before the second reading.",
        waive="Never.",
        example="with torch.cuda.stream(side): y = kernel(x)   # torch.cuda.current_stream().synchronize() returns",
        cpu=False,
        applies=on_gpu,
        unchecked="needs the stream probe of a device with streams",
    ),
    Rule(
        code="clock-patched",
        alias="P45",
        family="clock",
        severity="void",
        title="Somebody replaced the interpreter's timers",
        what="A function of Python's module `time` is another one than when the worker began.",
        why="A timer at half speed makes any row twice as fast. The harness holds on to its own timers, and what else "
        "in the process goes by the wrong time (queues, libraries that tune themselves) nobody knows.",
        evidence=("host.patched_timers",),
        detected="The timers of `time` are compared, by identity, with those bound before the stack's file was loaded.",
        fix="Do not replace them; a library that fakes time belongs in tests.",
        waive="Never.",
        example="time.perf_counter_ns = lambda: real() // 2",
        cpu=True,
        check=each(_patched),
    ),
    Rule(
        code="wait-not-idle",
        alias="P46",
        family="clock",
        severity="void",
        title="The wait does work of its own",
        what="Waiting for a step that is long finished takes time: a sleep, a read, a copy, or work put off until "
        "then.",
        why="Every sample ends with one wait, so that half a millisecond in it is 1 % of a sample of 50 ms: as large "
        "as the differences that are looked for, and nobody's computation.",
        evidence=("waiting.share", "waiting.asleep"),
        detected="The fastest of 20 waits on a step that is finished and read, over the shortest sample of the "
        "process: above 0.5 % asleep, or 5 % in all, in every process voids the row.",
        fix="`synchronise` waits for what `step` started, and does nothing else.",
        waive="Never.",
        example="def synchronise(self, *handles): time.sleep(0.0005); torch.cuda.synchronize()",
        cpu=True,
        check=each(_idle),
    ),
)
