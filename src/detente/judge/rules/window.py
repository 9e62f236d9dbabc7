"""The timed window: what is published must be what was proved."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from detente.judge.parity import (
    first_difference,
    judge_tensors,
    tell_difference,
    times_reference,
)
from detente.judge.rules.clock import MOST_READ_S
from detente.judge.rules.hardware import FOREIGN
from detente.judge.rules.rule import Group, Hit, Row, Rule, each, on_gpu
from detente.records.precision import PRECISIONS
from detente.records.sample import Sample
from detente.records.session import Process
from detente.records.tensor_error import TensorError
from detente.records.window import MANY_STEPS, Window

# The largest share of a state's change that a stretch may lie from the reference, whatever two eager runs differ by:
# one step of eight that is left out is a tenth of it. Where products are rounded to fewer digits, one step of AdamW on
# noise alone moves more than that.
CAP = {"fp64": 1e-6, "fp32": 1e-2, "tf32": 5e-2, "bf16": 1e-1}
# The same behind more than ``MANY_STEPS``: one step in twenty. A kink that one trajectory meets and nine others do not
# parts them: of 542 steps of a small ReLU net a fair JAX row was off by 2.4 %, the furthest of nine eager runs by 0.5.
MANY_CAP = {**CAP, "fp32": 5e-2}
# Drift of a whole change that says nothing, whatever the eager runs differ by.
LEAST_DRIFT = 1e-3
# Of what the eager runs lie off themselves so much is never too much: nine of them and a fair row lay off alike, 0.99
# and 1.00 % behind 1,556 steps of a small MLP, where the cap alone drew the line between them.
LIKE_ITSELF = 2.0
# Beyond the cap, what is left to say: a state that was not trained is off by all of its change.
WILD = 0.5
# Of a loss in the window it is asked whether it is that step's, and not how it was rounded: one of long ago, or of
# another batch, is off by percents. So much of itself may it be off beside what the eager runs are, twenty times that
# behind ``MANY_STEPS``, and so much of the first loss: of batches that are known by heart the loss is the last digits
# of 1 - p.
LOSS_CAP = {"fp64": 1e-3, "fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}
MANY_LOSS = 20.0
OF_FIRST_LOSS = 1e-4
# Samples right after a hand-out against the others: caches are cold and threads have slept there. Beyond this, in
# every process and past the samples' own spread, they do other work.
TELL = 1.25
# The same beside others: one turn of a neighbour is a sample's half.
TELL_SHARED = 2.0
# The samples' own spread excuses what it explains: four times of it, and a row that was uneven on purpose, honest
# behind hand-outs and quick in two ways elsewhere, published a third of its step. What no spread explains is that these
# samples are longer than nearly every other one made so much longer: so many standard deviations, by ranks, of all
# processes together. Seven of 27 that are the longest are 3.9; of 443 fair rows none was above 0 (30 November).
OUTRANKED = 3.5
# Seconds of processes that a row started in its window: some ticks of the kernel's. What sleeps there has none.
HELPED_S = 0.05
# Steps that are read behind the window over those in it: a few per cent on a quiet machine, by processor time a half
# where a neighbour comes with the reads.
INSIDE = 1.5
INSIDE_SHARED = 2.0


def windows(row: Row) -> Iterator[tuple[Process, Window]]:
    """The windows of the row's timing processes."""
    for p in row.fine:
        if p.evidence.window is not None:
            yield p, p.evidence.window


def change_share(errors: Sequence[TensorError], own: bool = False) -> float:
    """The error of a state's whole change as a share of it; ``own``: that of the eager runs. Parameters whose gradient
    is a mathematical zero are left out where their first moment says so: Adam makes steps of a whole learning rate of
    their rounding noise."""
    first = {
        e.name.partition(":")[2]: e.rms
        for e in errors
        if e.kind == "moment" and e.name.startswith("exp_avg:")
    }
    least = 1e-6 * max(first.values(), default=0.0)
    noise = {name for name, size in first.items() if size < least}
    kept = [e for e in errors if e.kind == "update" and e.name not in noise and e.rms > 0]
    whole = math.fsum(e.rms**2 * e.elements for e in kept)
    off = math.fsum((e.err_ref if own else e.err) ** 2 * e.elements for e in kept)
    return math.sqrt(off / whole) if whole else 0.0


def says_nothing(errors: Sequence[TensorError]) -> bool:
    """Whether the eager runs lie so far off themselves that the whole change tells no row from another."""
    return change_share(errors, own=True) > WILD / 2


def difference(errors: Sequence[TensorError], precision: str, steps: int) -> str:
    """What of a stretch of so many ``steps`` differs from the reference: the first tensor beyond its bound, or the
    whole change beyond the cap. Empty when nothing does."""
    found = first_difference(judge_tensors(errors, PRECISIONS[precision], steps))
    if found is not None:
        return tell_difference(found)
    caps = MANY_CAP if steps > MANY_STEPS else CAP
    share, own, cap = change_share(errors), change_share(errors, own=True), caps.get(precision, caps["fp32"])
    times = times_reference(steps)
    allowed = max(LEAST_DRIFT, min(times * own, max(cap, LIKE_ITSELF * own)))
    if own > cap:
        # A reference that drifts so far by itself tells no small error; training from none it still tells.
        allowed = min(times * own, WILD)
        if says_nothing(errors):
            return ""
    if share > allowed:
        return f"the change of the parameters is off by {share:.2g} of itself, {allowed:.2g} is allowed"
    return ""


def loss_difference(error: TensorError | None, first: float, precision: str, steps: int) -> str:
    """What a loss of a stretch of so many ``steps`` differs by from the reference; ``first``: the row's first. Empty
    when it does not, where nobody read one, and where the reference itself has none."""
    if error is None or not math.isfinite(error.rms + error.err_ref):
        return ""
    share = LOSS_CAP.get(precision, LOSS_CAP["fp32"]) * (MANY_LOSS if steps > MANY_STEPS else 1.0)
    scale = abs(first) if math.isfinite(first) else 0.0
    allowed = times_reference(steps) * error.err_ref + share * error.rms + OF_FIRST_LOSS * scale
    if error.err <= allowed:
        return ""
    return f"the loss of its step is off by {error.err:.2g} of {error.rms:.3g}, {allowed:.2g} is allowed"


def _not_proved(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    if row.parity is not None and row.parity.same_function == "failed":
        return  # another function leaves another state: not-the-same-function says so already
    precision = row.cell.contract.precision
    for p, window in windows(row):
        where = f"after {window.proved} steps" if window.proved else "in the window"
        first = p.evidence.losses[0] if p.evidence.losses else 0.0
        told = difference(window.errors, precision, window.proved) if window.errors else ""
        told = told or loss_difference(window.loss, first, precision, window.proved)
        if told:
            yield f"{where} of block {p.block + 1}: {told}", {"block": p.block, "steps": window.proved}
            return
        for replay in window.replays:
            if replay.refused:
                yield f"in block {p.block + 1}: {replay.refused}", {"block": p.block}
                return
            told = "" if replay.reason else difference(replay.errors, precision, replay.steps)
            told = told or loss_difference(replay.loss, first, precision, replay.steps)
            if told:
                behind = (
                    "on a batch that it had not seen"
                    if not window.proved
                    else f"behind sample {replay.first}"
                )
                yield (
                    f"{replay.steps} step{'s' if replay.steps > 1 else ''} {behind} in block {p.block + 1}, taken "
                    f"again by the reference: {told}",
                    {"block": p.block, "first": replay.first, "steps": replay.steps},
                )
                return


def _proved(group: Group) -> Iterator[Hit]:
    """What differs; and of a row whose replays all met a drift of eager's own, that these proved nothing."""
    for row in group.rows:
        told = [Hit(row, *one) for one in _not_proved(row, group)]
        replays = [r for _, w in windows(row) for r in w.replays if r.errors and not r.reason]
        if not told and replays and all(says_nothing(r.errors) for r in replays):
            drift = min(change_share(r.errors, own=True) for r in replays)
            told = [
                Hit(
                    row,
                    "not checked: in part: what was timed after the first steps was taken again, and eager runs of "
                    f"it differ among themselves by {drift:.2g} of the change of the parameters",
                    {"drift": drift},
                    severity="unchecked",
                )
            ]
        yield from told


def helped(p: Process) -> bool:
    """Whether processes that this one started computed in its window. Then its own processor time says nothing of who
    was waited for: a helper that makes up for left-out steps where the state is asked for costs its row a sleep."""
    threads = p.evidence.probes.get("threads")
    seconds = threads.get("helped_s") if isinstance(threads, dict) else None
    return p.cell.contract.feed != "loader" and (seconds or 0.0) > HELPED_S


def shared(foreign: float) -> bool:
    """Whether others used the machine; what is no number is as bad as it can be."""
    return not foreign <= FOREIGN


@dataclass(frozen=True)
class Tell:
    """Samples right behind a hand-out over the others of one process, by wall time and by processor time (medians), the
    others' spread (1.48 x the median absolute deviation, relative), and what others used of the machine."""

    wall: float
    cpu: float
    spread: float
    foreign: float

    @property
    def beyond(self) -> bool:
        """Whether this is no noise. Beside others a sample may wait for a neighbour's turn, but it computes no more."""
        beside = shared(self.foreign)
        least = max(TELL_SHARED if beside else TELL, 1 + 4 * min(self.spread, 1.0))
        return self.wall > least and (not beside or self.cpu > least)


def tells(row: Row) -> list[Tell]:
    """One for each process whose window handed out its state."""
    found = []
    for p, looked, others in _looked_at(row):
        centre = _median(others, "wall_ns")
        spread = 1.48 * statistics.median(abs(s.wall_ns / s.steps - centre) for s in others) / centre
        cpu = _median(looked, "cpu_ns") / max(_median(others, "cpu_ns"), 1.0)
        wall = _median(looked, "wall_ns") / centre
        found.append(Tell(wall, wall if helped(p) else cpu, spread, p.foreign))
    return found


def _looked_at(row: Row) -> Iterator[tuple[Process, list[Sample], list[Sample]]]:
    """The samples of each process right behind a hand-out of its state, and the others."""
    for p, window in windows(row):
        samples = p.evidence.samples
        after = {h.at for h in window.hand_outs if h.at < len(samples)}
        looked = [samples[i] for i in sorted(after)]
        others = [s for i, s in enumerate(samples) if i not in after]
        if row.cell.contract.region == "train-step" and looked and len(others) >= 3:
            yield p, looked, others


def ranked(row: Row) -> float:
    """How far above the others the samples behind hand-outs lie, in standard deviations of what chance makes of ranks
    (Mann and Whitney's U, summed over processes); 0 without any. Of a row that does the same everywhere each sample is
    as likely to be the longest, however uneven they are. Beside others by the clock and by processor time, whichever
    says less."""
    above = variance = 0.0
    for p, looked, others in _looked_at(row):
        beside = shared(p.foreign)
        times = TELL_SHARED if beside else TELL
        above += min(
            sum(_longer(a, b, field, times) for a in looked for b in others)
            for field in (("wall_ns", "cpu_ns") if beside and not helped(p) else ("wall_ns",))
        )
        above -= len(looked) * len(others) / 2
        variance += len(looked) * len(others) * (len(looked) + len(others) + 1) / 12
    return above / math.sqrt(variance) if variance else 0.0


def _longer(a: Sample, b: Sample, field: str, times: float) -> bool:
    return getattr(a, field) / a.steps > times * getattr(b, field) / b.steps


def _median(samples: Sequence[Sample], field: str) -> float:
    return statistics.median(getattr(s, field) / s.steps for s in samples)


def _tell(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    found = tells(row)
    if found and 2 * sum(t.beyond for t in found) > len(found):
        ratio = statistics.median(t.wall for t in found)
        yield (
            f"samples behind a hand-out take {ratio:.3g} times as long as the others "
            f"({len(found)} process{'es' if len(found) > 1 else ''}): they do other work where they are looked at",
            {"ratios": [t.wall for t in found]},
        )
    elif (far := ranked(row)) > OUTRANKED:
        ratio = statistics.median(t.wall for t in found)
        yield (
            f"samples behind a hand-out take {ratio:.3g} times as long as the others, and of these, however uneven, "
            f"hardly one is as long ({far:.3g} standard deviations by ranks): they do other work where they are looked "
            "at",
            {"ratios": [t.wall for t in found], "ranked": far},
        )


def steps_read(p: Process) -> tuple[float, float] | None:
    """How many times as long as a published step one takes behind the window, in a queue of which every loss is read:
    by the clock and by processor time, less what reading itself takes. None where steps are long (clock-stops-early
    holds these against the samples) or nobody looked."""
    slope, samples = p.evidence.probes.get("slope"), p.evidence.samples
    if not isinstance(slope, dict) or not slope.get("read_cpu_k") or slope["k"] < 2 or not samples:
        return None
    k, wall, cpu = slope["k"], _median(samples, "wall_ns") / 1e9, _median(samples, "cpu_ns") / 1e9
    alone = min(slope.get("idle_t_k", 0.0), MOST_READ_S * k)
    return (slope["read_t_k"] - alone) / k / wall, (slope["read_cpu_k"] - alone) / k / max(cpu, 1e-9)


def _only_inside(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    found = []
    for p in row.fine:
        read = steps_read(p)
        if read is None:
            continue
        wall, cpu = read
        # Of an accelerator's work the processor knows nothing; beside others the clock knows little of the row's.
        said = [wall] if on_gpu(row) or helped(p) else [cpu] if shared(p.foreign) else [wall, cpu]
        found.append((min(said), INSIDE_SHARED if shared(p.foreign) else INSIDE))
    if found and all(times > most for times, most in found):
        times = statistics.median(times for times, _ in found)
        yield (
            f"steps of which every loss is read take {times:.3g} times as long as those that are published: they are "
            "quick in the window alone",
            {"times": [times for times, _ in found]},
        )


def _honest_there(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    yield from _tell(row, group)
    yield from _only_inside(row, group)


def _out_of_order(row: Row, group: Group) -> Iterator[tuple[str, dict]]:
    for p, window in windows(row):
        if window.disorder:
            yield (
                f"in block {p.block + 1} {window.disorder}: somebody else spoke in the worker's name",
                {"block": p.block, "disorder": window.disorder},
            )
            return


RULES = (
    Rule(
        code="window-not-proved",
        alias="P37",
        family="clock",
        severity="void",
        title="What is timed is not what was proved",
        what="Steps of the timed window leave another state, or return other values, than the reference does.",
        why="A row that dropped its backward pass from the seventh step on was proved over three steps and published "
        "as 5.45 times faster; updates every second step, half a batch and results remembered passed likewise.",
        evidence=("window.errors",),
        detected="The state after the window's first 8 to 35 steps against an fp64 reference that `prepare` advanced "
        "as far (at most four times the larger error of two eager runs, the rows of each batch in another order, and "
        "a hundredth of the whole change). In one random block of each row a stretch at a random place (of a small "
        "model three), taken again by the reference from the state that was handed out before it, moments "
        "included, and the loss of one of its steps, as of the last of the first ones. What was kept for that is known "
        "by its SHA-256, which the parent hears before the stack's code runs again. Regions without state: what steps "
        "at random places returned, and one on a batch that no step had seen.",
        fix="Run the same step throughout; look for a schedule, a cache or a counter that changes it.",
        waive="Never.",
        example="if self.calls > 6: return cached_loss",
        cpu=True,
        check=_proved,
        partly=("replay",),
    ),
    Rule(
        code="handout-is-a-tell",
        alias="P38",
        family="clock",
        severity="void",
        title="Honest only where it is looked at",
        what="Samples right behind a place where the state was handed out are slower than the others, or steps behind "
        "the window than steps in it.",
        why="Whatever a stack can notice, it can behave for: the probes of an earlier version reloaded the weights "
        "first, and that reset every counter that a cheating row kept.",
        evidence=("window", "samples"),
        detected="Samples behind a hand-out against the others of the same process: over 1.25 times as long, and "
        "beyond four times the others' own spread, in most processes; on a shared machine twice as long, by processor "
        "time too. Or longer than nearly every other one made as much longer, by ranks, however uneven they are. And "
        "short steps behind the window, every loss of which is read: over 1.5 times as long as what is "
        "published, by the clock and by processor time (on a shared machine twice, by processor time).",
        fix="Do the same work in every step.",
        waive="Never.",
        example="def state(self): self.honest_steps = 4; return super().state()",
        cpu=True,
        check=each(_honest_there),
    ),
    Rule(
        code="told-out-of-order",
        alias="P51",
        family="clock",
        severity="void",
        title="The worker's phases came out of their order",
        what="The parent heard that a window began or ended when it could not have, or heard it twice.",
        why="Behind its window a process learns whether that is taken again. One that wrote `the window is over` into "
        "the pipe before it began knew it in time, and trained only where it was looked at.",
        evidence=("window",),
        detected="The messages that the window begins and that it is over must come once each, in this order. A stack "
        "runs in the worker and can write to the worker's pipe; it cannot keep the worker from writing, too.",
        fix="Leave the worker's pipe alone. A model that forks must not let its child go on as the worker.",
        waive="Never.",
        example='os.write(int(os.environ["DETENTE_EVENTS_FD"]), b\'{"event": "phase", "name": "window"}\\n\')',
        cpu=True,
        check=each(_out_of_order),
    ),
)
