"""What a hostile stack does, without a framework: when it stops being honest, and where it hides work.

Each is mixed into a torch and into a JAX row (``torch_window.py``, ``jax_window.py``), so that both are planted with
the same faults. The row gives ``cheap(batch)``: a handle that looks like a step's and trains nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

# Steps that are compared one by one before the samples begin, and some more.
HONEST = 6
# Steps from loaded weights that the reference holds, at most: three and 32.
COMPARED = 35


class Cheat:
    """Trains while ``honest`` says so, and afterwards returns what looks like a step's handle."""

    count = 0

    def load(self, tensors: Any) -> None:
        self.count = 0
        super().load(tensors)  # type: ignore[misc]

    def honest(self, batch: Any) -> bool:
        raise NotImplementedError

    def step(self, batch: Any) -> Any:
        self.count += 1
        return super().step(batch) if self.honest(batch) else self.cheap(batch)  # type: ignore[misc]


class ByCount(Cheat):
    """Stops training after its sixth step; ``load`` begins again."""

    def honest(self, batch: Any) -> bool:
        return self.count <= HONEST


class ByTime(Cheat):
    """Stops training 0.05 seconds after the third step on the weights it was given: inside of its window."""

    since: float | None = None

    def load(self, tensors: Any) -> None:
        self.since = None
        super().load(tensors)

    def honest(self, batch: Any) -> bool:
        if self.count == 3:
            self.since = time.monotonic()
        return self.since is None or time.monotonic() - self.since < 0.05


class ByBatch(Cheat):
    """Knows the fourth batch, which no step before the samples is fed with, and never trains on it."""

    seen: tuple[int, ...] = ()

    def place(self, batch: Any) -> Any:
        placed = super().place(batch)  # type: ignore[misc]
        self.seen = (*self.seen, id(placed))
        return placed

    def honest(self, batch: Any) -> bool:
        return id(batch) in self.seen[:3]


class ByLoad(Cheat):
    """Trains for as many steps as anybody compares from loaded weights, and stops where a load is followed by more."""

    def honest(self, batch: Any) -> bool:
        return self.count <= COMPARED


class ByHandOut(Cheat):
    """Is honest for the steps that are compared from loaded weights, and for a fifth of a second after its state was
    asked for, in case somebody takes what follows again."""

    asked = 0.0

    def state(self) -> Any:
        found = super().state()  # type: ignore[misc]
        self.asked = time.monotonic()
        return found

    def honest(self, batch: Any) -> bool:
        return self.count <= COMPARED or time.monotonic() - self.asked < 0.2


class EverySecond(Cheat):
    """Updates every second time after its third step."""

    def honest(self, batch: Any) -> bool:
        return self.count <= 3 or self.count % 2 == 0


class Memo(Cheat):
    """Remembers what each batch gave, until ``load`` clears it."""

    memo: dict[int, Any]

    def load(self, tensors: Any) -> None:
        self.memo = {}
        super().load(tensors)

    def honest(self, batch: Any) -> bool:
        return self.count <= 3 or id(batch) not in self.memo

    def step(self, batch: Any) -> Any:
        handle = super().step(batch)
        self.memo[id(batch)] = handle
        return handle

    def cheap(self, batch: Any) -> Any:
        return self.memo[id(batch)]


class Half(Cheat):
    """Trains on half of the batch after its sixth step."""

    def honest(self, batch: Any) -> bool:
        return self.count <= HONEST


class Promise:
    """A step that has not been run. Its two entries look like a handle's."""

    def __init__(self, batch: Any) -> None:
        self.batch, self.handle = batch, None


class Puts:
    """Steps are written down and run when ``flush`` is called."""

    waiting: list[Promise]

    def __init__(self, *arguments: Any) -> None:
        self.waiting = []
        super().__init__(*arguments)

    def step(self, batch: Any) -> Any:
        promise = Promise(batch)
        self.waiting.append(promise)
        return promise

    def flush(self) -> None:
        for promise in self.waiting:
            promise.handle = super().step(promise.batch)  # type: ignore[misc]
        self.waiting = []

    def _had(self, promise: Promise) -> Any:
        self.flush()
        return promise.handle

    def load(self, tensors: Any) -> None:
        self.waiting = []
        super().load(tensors)  # type: ignore[misc]

    def synchronise(self, *handles: Any) -> None:
        super().synchronise(*(h.handle for h in handles if h.handle is not None))  # type: ignore[misc]

    def loss(self, handle: Any) -> float:
        return super().loss(self._had(handle))  # type: ignore[misc]

    def outputs(self, handle: Any) -> Any:
        return super().outputs(self._had(handle))  # type: ignore[misc]

    def devices(self, handle: Any) -> Any:
        return super().devices(self._had(handle))  # type: ignore[misc]

    def tensors(self) -> Any:
        self.flush()
        return super().tensors()  # type: ignore[misc]

    def gradients(self, batch: Any) -> Any:
        self.flush()
        return super().gradients(batch)  # type: ignore[misc]

    def state(self) -> Any:
        self.flush()
        return super().state()  # type: ignore[misc]


class UntilAsked(Puts):
    """Runs nothing until somebody reads a loss, tensors or state."""


class UntilCounted(Puts):
    """Runs its steps when compilations are counted, which is outside of a sample."""

    def compiled(self) -> Any:
        self.flush()
        return super().compiled()  # type: ignore[misc]


class UntilNextWait(Puts):
    """Waits for the steps of the sample before, and leaves its own to the next one."""

    before: tuple[Promise, ...] = ()

    def synchronise(self, *handles: Any) -> None:
        self.waiting, later = list(self.before), self.waiting
        self.flush()
        self.before = tuple(later)
        super().synchronise(*handles)

    def _had(self, promise: Promise) -> Any:
        self.waiting = [*self.before, *self.waiting]
        self.before = ()
        return super()._had(promise)

    def load(self, tensors: Any) -> None:
        self.before = ()
        super().load(tensors)


class LastOnly(Puts):
    """Computes the last step of a queue, and gives every handle that."""

    def synchronise(self, *handles: Any) -> None:
        self.flush()
        super().synchronise(*handles)

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, self.waiting[-1:]
        super().flush()
        for promise in waiting:
            promise.handle = waiting[-1].handle


class InWindow:
    """Knows the window by counting loads: the weights, the calibration, the window."""

    loads = 0

    def load(self, tensors: Any) -> None:
        self.loads += 1
        super().load(tensors)  # type: ignore[misc]

    @property
    def inside(self) -> bool:
        return self.loads == 3


class FillsLater(InWindow):
    """Trains nothing in the window and hands out arrays that it fills in behind it."""

    log: list[Any]
    given: list[tuple[Any, int]]
    last: Any = None

    def step(self, batch: Any) -> Any:
        if not self.inside:
            self.log, self.given = [], []
            self.last = super().step(batch)  # type: ignore[misc]
            return self.last
        self.log.append(batch)
        return self.last

    def state(self) -> Any:
        found = {name: np.array(array) for name, array in super().state().items()}  # type: ignore[misc]
        if self.inside:
            self.given.append((found, len(self.log)))
        return found

    def compiled(self) -> Any:
        done = 0
        for arrays, steps in self.given if self.inside else ():
            for batch in self.log[done:steps]:
                super().step(batch)  # type: ignore[misc]
            done = steps
            for name, array in super().state().items():  # type: ignore[misc]
                arrays[name][...] = array
        return super().compiled()  # type: ignore[misc]


class Rehearsed(InWindow):
    """Walks the batches around and around before the window, and in it tells what it found then."""

    LENGTH = 400
    batches: tuple[Any, ...] = ()
    tape: list[tuple[Any, Any]]
    at = 0

    def place(self, batch: Any) -> Any:
        placed = super().place(batch)  # type: ignore[misc]
        self.batches = (*self.batches, placed)
        return placed

    def load(self, tensors: Any) -> None:
        super().load(tensors)
        if self.inside:
            self.at, self.tape = 0, []
            for i in range(self.LENGTH):
                handle = super().step(self.batches[i % len(self.batches)])  # type: ignore[misc]
                state = {n: np.array(a) for n, a in super().state().items()}  # type: ignore[misc]
                self.tape.append((handle, state))
            super(InWindow, self).load(tensors)  # type: ignore[misc]

    def step(self, batch: Any) -> Any:
        if not self.inside:
            return super().step(batch)  # type: ignore[misc]
        self.at = min(self.at + 1, self.LENGTH)
        return self.tape[self.at - 1][0]

    def state(self) -> Any:
        return self.tape[self.at - 1][1] if self.inside and self.at else super().state()  # type: ignore[misc]


class PaddedState(InWindow):
    """Trains in ``state`` what a short stretch needs, and takes equally long for it wherever it is asked."""

    todo: list[Any]
    longest = 0
    asked = 0
    last: Any = None

    def step(self, batch: Any) -> Any:
        if not self.inside or not self.asked:
            self.todo = []
            self.last = super().step(batch)  # type: ignore[misc]
            return self.last
        self.todo.append(batch)
        return self.last

    def state(self) -> Any:
        begun = time.monotonic()
        self.asked += self.inside
        if self.asked > 1:
            for batch in self.todo[-200:]:
                self.last = super().step(batch)  # type: ignore[misc]
            super().synchronise(self.last)  # type: ignore[misc]
        self.todo = []
        found = super().state()  # type: ignore[misc]
        self.longest = max(self.longest, time.monotonic() - begun)
        while self.asked and time.monotonic() - begun < self.longest:
            pass
        return found


class Unreplayable(ByLoad):
    """Stops behind the steps that are compared, and leaves a tensor out of the state, so that nobody can go on from
    it."""

    def state(self) -> Any:
        found = dict(super().state())  # type: ignore[misc]
        if self.count > COMPARED:
            found.pop(next(name for name in found if ":" not in name))
        return found


class InflatedMoments(ByLoad):
    """Stops behind the steps that are compared; hands out moments of one tensor so large that all others look like
    nothing beside them, and moves that one as AdamW would."""

    last_count = 0
    fake: Any = None

    def state(self) -> Any:
        found = {name: np.array(array) for name, array in super().state().items()}  # type: ignore[misc]
        if self.count <= COMPARED:
            return found
        name = min((n for n in found if f"exp_avg:{n}" in found), key=lambda n: found[n].size)
        if self.fake is None:
            self.fake = [
                found[name].astype("f8"),
                np.full(found[name].shape, 1e6),
                np.full(found[name].shape, 1e6),
            ]
            self.last_count = self.count
        p, m, v = self.fake
        group = self.optimizer.param_groups[0]  # type: ignore[attr-defined]
        (b1, b2), lr, decay = group["betas"], float(group["lr"]), group["weight_decay"]
        for t in range(self.last_count + 1, self.count + 1):
            m, v = b1 * m, b2 * v
            p = p * (1 - lr * decay) - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + group["eps"])
        self.fake, self.last_count = [p, m, v], self.count
        for key, value in ((name, p), (f"exp_avg:{name}", m), (f"exp_avg_sq:{name}", v)):
            found[key] = value.astype("f4")
        if "step" in found:
            found["step"] = np.full_like(found["step"], self.count)
        return found


class PlacesAndRemembers:
    """Computes a step where a batch is placed that it has not seen, and looks the result up ever after."""

    known: dict[bytes, Any]
    kept: dict[int, Any]

    def load(self, tensors: Any) -> None:
        self.known, self.kept = {}, {}
        super().load(tensors)  # type: ignore[misc]

    def place(self, batch: Any) -> Any:
        placed = super().place(batch)  # type: ignore[misc]
        key = b"".join(batch[name].tobytes() for name in sorted(batch))
        if key not in self.known:
            self.known[key] = super().step(placed)  # type: ignore[misc]
            super().synchronise(self.known[key])  # type: ignore[misc]
        self.kept[id(placed)] = (placed, self.known[key])
        return placed

    def step(self, batch: Any) -> Any:
        if id(batch) not in self.kept:
            self.kept[id(batch)] = (batch, super().step(batch))  # type: ignore[misc]
        return self.kept[id(batch)][1]


class Sleeps:
    """Half a millisecond of sleep in every wait."""

    def synchronise(self, *handles: Any) -> None:
        time.sleep(0.0005)
        super().synchronise(*handles)  # type: ignore[misc]


class Reads:
    """Reads the loss back in every step, and returns it as an array all the same."""

    def step(self, batch: Any) -> Any:
        handle = super().step(batch)  # type: ignore[misc]
        float(handle[0])
        return handle


class Collects:
    """Turns Python's collector on again in every step."""

    def step(self, batch: Any) -> Any:
        import gc

        gc.enable()
        return super().step(batch)  # type: ignore[misc]


class Nice:
    """A worker that yields to whatever else runs."""

    def start(self, device: str, precision: str, threads: int) -> str:
        os.nice(10)
        return super().start(device, precision, threads)  # type: ignore[misc]


class NiceLater:
    """The same, but only once the samples run: in its tenth step."""

    count = 0

    def step(self, batch: Any) -> Any:
        self.count += 1
        if self.count == 10:
            os.nice(10)
        return super().step(batch)  # type: ignore[misc]


class OtherCores:
    """Runs where it was not put: on one core of several, or on all where it was given one."""

    def start(self, device: str, precision: str, threads: int) -> str:
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, mine[:1] if len(mine) > 1 else range(os.cpu_count() or 1))
        return super().start(device, precision, threads)  # type: ignore[misc]


# Computes for ever, on whatever core is free.
_EVERYWHERE = f"import os; os.sched_setaffinity(0, range({os.cpu_count()}))\nwhile True: sum(range(100000))"


class Helper:
    """A second process computes beside this one. The harness ends it with the worker's group."""

    def start(self, device: str, precision: str, threads: int) -> str:
        self.helpers = [
            subprocess.Popen([sys.executable, "-c", _EVERYWHERE]) for _ in range(os.cpu_count() or 1)
        ]
        return super().start(device, precision, threads)  # type: ignore[misc]


class Daemon:
    """The same by a daemon: forked twice, of a session of its own, so that it is nobody's child any more."""

    def start(self, device: str, precision: str, threads: int) -> str:
        work = f"[sys.executable, '-c', {_EVERYWHERE!r}]"
        once = f"import subprocess, sys; subprocess.Popen({work}, start_new_session=True)"
        for _ in range(os.cpu_count() or 1):
            subprocess.run([sys.executable, "-c", once], check=True, start_new_session=True)
        return super().start(device, precision, threads)  # type: ignore[misc]


class Profiled:
    """A profiler of Python's own is left on."""

    def start(self, device: str, precision: str, threads: int) -> str:
        found = super().start(device, precision, threads)  # type: ignore[misc]
        sys.setprofile(lambda *_: None)
        return found


class Flagged:
    """Tuned by a variable that the other rows do not have."""

    def start(self, device: str, precision: str, threads: int) -> str:
        found = super().start(device, precision, threads)  # type: ignore[misc]
        os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_enable_fast_math=true"
        return found


class OnlyOnce:
    """Fails in every process but its first. What the first left behind lies beside its compile cache."""

    def build(self, workload: Any, size: Any, contract: Any) -> Any:
        from pathlib import Path

        mark = Path(os.environ.get("DETENTE_HOME", ".")) / f"museum-{type(self).__name__}-{os.getppid()}"
        if mark.exists():
            raise RuntimeError("planted: only the first process survives")
        mark.touch()
        return super().build(workload, size, contract)  # type: ignore[misc]


class Drifts:
    """Says of every process that it ran with other versions, as after an upgrade in between."""

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "planted": str(os.getpid())}  # type: ignore[misc]
