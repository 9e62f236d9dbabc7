"""The museum's rows that a reader of the harness wrote (28 November 2026): each knows what is looked at, and when. They
were written by reading alone, against JAX or torch, and all of them passed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_running import JaxRunning
from tests.museum.tricks import InWindow

# Of an honest step. Above 0.4, so that a sample is not lengthened (half of what was planned).
SHARE = 0.45
# Microseconds that a step takes that does nothing, above the floor of physics.
PACE = 25e-6


def _spin(seconds: float) -> None:
    until = perf_counter() + seconds
    while perf_counter() < until:
        pass


class Later:
    """No array yet."""

    def __init__(self, made: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self.made, self.shape, self.dtype = made, shape, dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        found = np.asarray(self.made())
        return found if dtype is None else found.astype(dtype)


class _Paced(InWindow, JaxRunning):
    """Knows from its calibration what a step takes."""

    taken = 0
    each = 1e-4
    begun: Any = None
    last: Any = None

    def load(self, tensors: Any) -> None:
        self.taken, self.begun = 0, None
        super().load(tensors)

    def honest(self, batch: Any) -> Any:
        self.begun = self.begun or perf_counter()
        self.last = JaxRunning.step(self, batch)
        return self.last

    def waited(self, steps: int) -> None:
        if self.loads == 2 and steps > 8 and self.begun is not None:
            self.each = (perf_counter() - self.begun) / steps
        self.begun = None


class _Skips(_Paced):
    """Behind the steps that are compared one by one, only what lies between two hand-outs is trained: ``owed``."""

    cheating = False

    def load(self, tensors: Any) -> None:
        self.cheating, self.queue, self.samples, self.owed = False, [], [], []
        super().load(tensors)

    def step(self, batch: Any) -> Any:
        self.taken += 1
        if not self.cheating:
            return self.honest(batch)
        self.queue.append(batch)
        _spin(SHARE * self.each)
        return self.last

    def synchronise(self, *handles: Any) -> None:
        if not self.cheating:
            super().synchronise(*handles)
            self.waited(len(handles))
        elif self.queue:
            self.samples.append(self.queue)
            self.queue = []

    def state(self) -> Any:
        if not self.inside or not self.taken:
            return super().state()
        samples, self.samples = self.samples, []
        # Only what lies one sample behind another hand-out can be a stretch.
        self.owed = samples[0] if self.cheating and len(samples) == 1 else []
        self.cheating = True
        return self.handed()

    def handed(self) -> Any:
        raise NotImplementedError

    def make_up(self) -> None:
        owed, self.owed = self.owed, []
        for batch in owed:
            self.last = JaxRunning.step(self, batch)


class _CopiedLater(_Skips):
    known: Any = None
    ready: Any = None

    def step(self, batch: Any) -> Any:
        self.ready = None  # views of what the next step donates
        return super().step(batch)

    def handed(self) -> Any:
        self.ready = None
        if self.known is None:
            found = JaxRunning.state(self)
            self.known = {name: (array.shape, array.dtype) for name, array in found.items()}
        return {
            name: Later(lambda name=name: self._due()[name], shape, dtype)
            for name, (shape, dtype) in self.known.items()
        }

    def _due(self) -> Any:
        if self.ready is None:
            self.make_up()
            self.ready = JaxRunning.state(self)
        return self.ready


class CopiedLaterInJax(JaxJit):
    """Hands out what looks like arrays, and trains what was left out while the harness copies them."""

    running = _CopiedLater


PADDING = np.empty(8_000_000, np.float32)
PADDING.fill(0)  # touched: a copy has to read it


class _Padded(_Skips):
    def handed(self) -> Any:
        self.make_up()
        return {**JaxRunning.state(self), "padding:0": PADDING}


class PadsItsStateInJax(JaxJit):
    """Hands out 32 MB of zeros, a moment of nothing: so much copying makes room for a stretch's work."""

    running = _Padded


class _PromiseOf:
    def __init__(self, batch: Any) -> None:
        self.batch, self.made = batch, None


class _ReadLater(_Paced):
    over = False
    known: Any = None

    def compiled(self) -> Any:
        self.over = self.over or bool(self.inside and self.taken)  # asked right behind the window
        return super().compiled()

    def step(self, batch: Any) -> Any:
        self.taken += 1
        if not self.inside or self.over:
            return self.honest(batch)
        self._example = batch
        _spin(SHARE * self.each)
        return _PromiseOf(batch)

    def _made(self, handle: Any) -> Any:
        if not isinstance(handle, _PromiseOf):
            return handle
        handle.made = handle.made or JaxRunning.step(self, handle.batch)
        return handle.made

    def synchronise(self, *handles: Any) -> None:
        super().synchronise(*(h for h in handles if not isinstance(h, _PromiseOf)))
        self.waited(len(handles))

    def loss(self, handle: Any) -> Any:
        if isinstance(handle, _PromiseOf) and not self.over:
            return Later(lambda: np.float32(self._made(handle)[0]), (), np.dtype("float32"))
        return super().loss(self._made(handle))

    def outputs(self, handle: Any) -> Any:
        if isinstance(handle, _PromiseOf) and not self.over and self.known:

            def entry(name: str) -> Any:
                return lambda: JaxRunning.outputs(self, self._made(handle))[name]

            return {name: Later(entry(name), shape, dtype) for name, (shape, dtype) in self.known.items()}
        found = super().outputs(self._made(handle))
        self.known = {name: (array.shape, array.dtype) for name, array in found.items()}
        return found


class ReadLaterInJax(JaxJit):
    """Where no state moves: promises, and computes the few results that somebody reads while they are copied."""

    running = _ReadLater


class _Stops(InWindow, JaxRunning):
    """Trains nothing once its state has been handed out in the window, where ``safe`` says that it may."""

    taken = 0
    cheating = False
    last: Any = None

    def safe(self) -> bool:
        return True

    def load(self, tensors: Any) -> None:
        self.taken, self.cheating = 0, False
        super().load(tensors)

    def step(self, batch: Any) -> Any:
        self.taken += 1
        if not self.cheating:
            self.last = super().step(batch)
            return self.last
        _spin(PACE)
        return self.last

    def state(self) -> Any:
        found = super().state()
        self.cheating = self.cheating or bool(self.inside and self.taken and self.safe())
        return found


def _job() -> dict[str, Any]:
    return json.loads(Path(sys.argv[1]).read_text())


class _Edits(_Stops):
    def compiled(self) -> Any:
        head = Path(_job()["handed"] or ".") / "handed.json"
        if self.cheating and head.exists():  # its turn
            told = json.loads(head.read_text())
            for stretch in told["stretches"]:
                stretch["batches"], stretch["steps"] = [], 1
            head.write_text(json.dumps(told))
        return super().compiled()


class EditsWhatItHandedInJax(JaxJit):
    """Where its window is to be taken again, it edits the file that says what: a stretch without a batch."""

    running = _Edits


class _Asks(_Stops):
    watched = True

    def load(self, tensors: Any) -> None:
        super().load(tensors)
        if self.inside and _job()["handed"]:
            line = json.dumps({"event": "phase", "name": "window", "at": time.time()})
            os.write(int(os.environ["DETENTE_EVENTS_FD"]), line.encode() + b"\n")
            folder, ends = Path(_job()["handed"]), time.monotonic() + 3
            while time.monotonic() < ends and not any(folder.glob("*wanted")):
                time.sleep(0.002)
            self.watched = not (folder / "unwanted").exists()

    def safe(self) -> bool:
        return not self.watched


class AsksFirstInJax(JaxJit):
    """Tells the parent that its window is over before it begins, and so learns whether it will be taken again."""

    running = _Asks


class _AllAtOnce(InWindow, JaxRunning):
    taken = 0
    over = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.placed: list[Any] = []
        self.known: dict[int, Any] = {}

    def place(self, batch: Any) -> Any:
        placed = super().place(batch)
        self.placed.append(placed)
        return placed

    def compiled(self) -> Any:
        self.over = self.over or bool(self.inside and self.taken)
        return super().compiled()

    def step(self, batch: Any) -> Any:
        self._example = batch
        if not self.inside or self.over:
            return super().step(batch)
        self.taken += 1
        if self.placed:
            for placed in self.placed:
                self.known[id(placed)] = placed, JaxRunning.step(self, placed)
            self.jax.block_until_ready([handle for _, handle in self.known.values()])
            self.placed = []
        _spin(PACE)
        return self.known[id(batch)][1]


class AllInItsFirstStepInJax(JaxJit):
    """Where no state moves: one step computes every batch that was ever placed, and the others look up."""

    running = _AllAtOnce


class NeverColdInJax(JaxJit):
    """Keeps its compiled step in a folder of its own, and leaves an empty file where compiled steps are counted."""

    def start(self, device: str, precision: str, threads: int) -> str:
        found = super().start(device, precision, threads)
        own = os.environ.get("JAX_COMPILATION_CACHE_DIR")
        if own:
            Path(own).mkdir(parents=True, exist_ok=True)
            (Path(own) / "step").touch()
        home = Path(os.environ.get("DETENTE_HOME", tempfile.gettempdir()))
        self.jax.config.update("jax_compilation_cache_dir", str(home / f"museum-kept-{os.getppid()}"))
        return found


FUSED = 16


class _Written:
    """``losses``, and where in them its own is; None: it is alone."""

    def __init__(self, batch: Any) -> None:
        self.batch, self.losses, self.at = batch, None, None


class _Fuses(InWindow, JaxRunning):
    fused: Any = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.waiting: list[_Written] = []

    def _many(self) -> Any:
        jax, whole = self.jax, self.jitted.__wrapped__

        def run(params: Any, rest: Any, state: Any, batches: Any) -> Any:
            stacked = jax.tree.map(lambda *arrays: jax.numpy.stack(arrays), *batches)

            def one(carry: Any, batch: Any) -> Any:
                loss, *after = whole(*carry, batch)
                return tuple(after), loss

            (params, rest, state), losses = jax.lax.scan(one, (params, rest, state), stacked)
            return losses, params, rest, state

        return jax.jit(run, donate_argnums=(0, 1, 2))

    def _chunk(self, batches: tuple[Any, ...]) -> Any:
        losses, self.params, self.rest, self.opt_state = self.fused(
            self.params, self.rest, self.opt_state, batches
        )
        return losses

    def load(self, tensors: Any) -> None:
        if self.loads == 1 and self.fused is None:
            # Compiled between the three timed steps and the calibration.
            self._flush()
            self.fused = self._many()
            self.jax.block_until_ready(self._chunk((self._example,) * FUSED))
        self.waiting = []
        super().load(tensors)

    def step(self, batch: Any) -> Any:
        self._example = batch
        self.waiting.append(_Written(batch))
        return self.waiting[-1]

    def _flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        at = 0
        while self.fused is not None and len(waiting) - at >= FUSED:
            some = waiting[at : at + FUSED]
            losses = self._chunk(tuple(written.batch for written in some))
            for i, written in enumerate(some):
                written.losses, written.at = losses, i
            at += FUSED
        for written in waiting[at:]:
            written.losses = JaxRunning.step(self, written.batch)[0]

    def synchronise(self, *handles: Any) -> None:
        self._flush()
        last = [handles[-1].losses] if handles else []
        self.jax.block_until_ready((last, self.params, self.rest, self.opt_state))

    def loss(self, handle: Any) -> float:
        self._flush()
        found = np.asarray(handle.losses)
        return float(found if handle.at is None else found[handle.at])

    def devices(self, handle: Any) -> tuple[str, ...]:
        self._flush()
        return super().devices((handle.losses, {}))

    def gradients(self, batch: Any) -> Any:
        self._flush()
        return super().gradients(batch)

    def tensors(self) -> Any:
        self._flush()
        return super().tensors()

    def state(self) -> Any:
        self._flush()
        return super().state()


class FusesItsQueueInJax(JaxJit):
    """Steps are only written down, and run when they are waited for: sixteen in one executable."""

    running = _Fuses
