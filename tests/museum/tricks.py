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
    """Stops training a second and a half after the first step on the weights it was given."""

    since: float | None = None

    def load(self, tensors: Any) -> None:
        self.since = None
        super().load(tensors)

    def honest(self, batch: Any) -> bool:
        self.since = self.since or time.monotonic()
        return time.monotonic() - self.since < 1.5


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


class Helper:
    """A second process computes beside this one. The harness ends it with the worker's group."""

    def start(self, device: str, precision: str, threads: int) -> str:
        everywhere = f"import os; os.sched_setaffinity(0, range({os.cpu_count()}))"
        self.helpers = [
            subprocess.Popen([sys.executable, "-c", everywhere + "\nwhile True: sum(range(100000))"])
            for _ in range(os.cpu_count() or 1)
        ]
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
