"""Whether the clock stops after the work: twice the steps take twice as long, and reading changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

from detente.records.sample import Sample
from detente.worker.clock import now, readings, without_collector
from detente.worker.opened import Opened

# At most so many steps are queued at once: where they outnumber what a device's queue holds, even a clock that does not
# wait sees most of the work.
_MOST_STEPS = 64
# A reading lasts at least this long, in as many bursts of k steps as it takes. One burst of a small program was 2.5 ms,
# one turn of a neighbour on the same core 3 to 4 ms: twice the steps once took 1.22 times as long, of a fair row.
_READING_S = 0.1
# Reads of finished numbers meet no work: the best of a few says what they cost.
_IDLE_BURSTS = 5
# A step of at least this averages its own noise, and is a reading alone: the window's samples are its waits then, and
# two looks at reading back and one at twice the steps are 4 steps instead of 6.
_LONG_STEP_S = 0.5
# Of long steps so few readings are taken, and so long behind the samples, that a machine that went faster or slower in
# between looks like an early clock (twice the steps of a fair row took 0.51 times as long). What differs by this share
# is looked at again, in turns.
_DOUBTFUL = 0.05


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``slope``: seconds of k steps, of 2k steps, and of k steps whose losses are all read on the host, each the
    mean over ``bursts``. The first two end with the stack's own ``synchronise``; the third forces the work whatever
    that does. ``t_k``, ``t_2k`` and ``read_t_k`` are the best of ``waits``, ``doubles`` and ``reads``; ``idle_t_k``
    is what k reads alone take when the work has long been over. ``read_cpu_k``: the least processor time of the reads.
    ``again``: of long steps that look odd, the three once more, in turns; a clock that stops early does so in both."""
    running = opened.running

    def queued(n: int) -> list[Any]:
        return [running.step(b) for b, _ in zip(cycle(opened.placed), range(n), strict=False)]

    def waited(handles: list[Any]) -> None:
        running.synchronise(*handles)

    def read(handles: list[Any]) -> None:
        # All steps are queued before the first is read: a read between steps would add the host's own latency to
        # each, which is no sign of an early clock.
        for handle in handles:
            running.loss(handle)

    def seconds(n: int, end: Callable[[list[Any]], None]) -> float:
        start = now()
        handles = queued(n)
        end(handles)
        taken = now() - start
        # Whatever is still in flight is finished outside the clock, so that it is not charged to the next burst.
        read(handles[-1:])
        return taken

    def reading_alone(n: int, work_s: float) -> float:
        handles = queued(n)
        running.synchronise(*handles)
        # Were the clock early, the work would still run: it is given as long again as it takes when it is forced.
        time.sleep(work_s)
        start = now()
        read(handles)
        return now() - start

    cpu: list[float] = []
    with without_collector():
        # The samples cannot say how many steps make a reading: where the clock is early, they say nothing.
        single = seconds(1, read)
        if single < _LONG_STEP_S:
            single = seconds(1, read)  # the first pays for what the probes before it left cold
        k = max(1, min(_MOST_STEPS, int(_READING_S / max(single, 1e-6))))
        forced = seconds(k, read) if k > 1 else single
        bursts = max(1, int(_READING_S / forced))
        long = single >= _LONG_STEP_S
        rounds = 2 if long else 3
        # Of one step the guess is a reading already, and beside it one read of a scalar is nothing.
        found = {"waits": [], "reads": [single] if k == 1 else [], "doubles": [], "idle": [0.0]}
        if long:
            # The shortest and the longest: what is published is held against what reading back takes.
            waits = sorted(s.wall_ns / 1e9 for s in samples if s.steps == k)
            found["waits"] = waits if len(waits) < 2 else [waits[0], waits[-1]]
        ends: dict[str, Callable[[], float]] = {
            "waits": lambda: seconds(k, waited),
            "reads": lambda: seconds(k, read),
            "doubles": lambda: seconds(2 * k, waited),
        }
        # Burst by burst in turn: a machine that is busy for a while is busy for all of them.
        for i in range(rounds):
            wanted = [n for n in ("waits", "reads") if len(found[n]) < rounds]
            wanted += ["doubles"] if i < rounds - 1 else []
            sums, computed = dict.fromkeys(wanted, 0.0), dict.fromkeys(wanted, 0.0)
            for name in (n for _ in range(bursts) for n in wanted):
                _, begun = readings()
                sums[name] += ends[name]()
                computed[name] += (readings()[1] - begun) / 1e9
            for name, taken in sums.items():
                found[name].append(taken / bursts)
            cpu += [computed[name] / bursts for name in wanted if name == "reads"]
        again: dict[str, list[float]] = {}
        if long and _odd(found):
            turns = [{name: end() for name, end in ends.items()} for _ in range(2)]
            again = {name: [turn[name] for turn in turns] for name in ends}
        if k > 1:
            found["idle"] = [reading_alone(k, forced) for _ in range(_IDLE_BURSTS)]
    return {
        "slope": {
            "k": k,
            "bursts": bursts,
            "t_k": min(found["waits"]),
            "t_2k": min(found["doubles"]),
            "read_t_k": min(found["reads"]),
            "idle_t_k": min(found["idle"]),
            "waits": found["waits"],
            "doubles": found["doubles"],
            "reads": found["reads"],
            "read_cpu_k": min(cpu, default=None),
        }
        | ({"again": again} if again else {})
    }


def _odd(found: Mapping[str, Sequence[float]]) -> bool:
    """Whether reading back took longer than every wait, or twice the steps less than twice as long."""
    longest, shortest = max(found["waits"]), min(found["waits"])
    return (
        min(found["reads"]) > (1 + _DOUBTFUL) * longest
        or max(found["doubles"]) * (1 + _DOUBTFUL) < 2 * shortest
    )
