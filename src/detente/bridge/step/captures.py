"""What the step's forward and loss are captured as, one graph per batch layout, train/eval mode and answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.ahead import Ahead
from detente.bridge.capture.batch import Layout, flatten
from detente.bridge.capture.capture import capture
from detente.bridge.capture.captured import Captured, alike
from detente.bridge.capture.counters import only_counts
from detente.bridge.capture.functions import unkept
from detente.bridge.capture.memory import from_0
from detente.bridge.capture.micro import split
from detente.bridge.capture.settled import is_check
from detente.bridge.capture.weights import Weights, weights
from detente.bridge.graph import Where
from detente.bridge.live.moving_number import asks_for_types
from detente.bridge.live.ran import Names
from detente.bridge.live.unasked import asks_what_kind
from detente.bridge.live.walk import sources, standing_for
from detente.bridge.refusal import Refused, refuse
from detente.bridge.state.meta import stand_ins
from detente.bridge.state.place import Placed, from_jax, to_jax
from detente.bridge.state.state import State
from detente.bridge.step.keeping import Keeping
from detente.bridge.step.options import Options
from detente.bridge.step.parts import of_all_parts
from detente.bridge.telling import phase, telling


class Captures:
    """Captures, and tells the user what no program has of what eager does."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Any], options: Options) -> None:
        self.model, self.loss, self.options = model, loss, options
        self.catch_up: Callable[[], None] = lambda: None  # the live module gets the values of now
        self.numbers: dict[str, torch.Tensor] = {}  # Python's numbers that change with the steps: inputs
        self.ran: Names | None = None  # whose code names them
        self.keeping = Keeping(model)  # places in Python that steps fill
        # By batch layout, mode and answers, with its seconds; survives a change of the optimizer's rule.
        self.captured: dict[Any, tuple[Captured, float]] = {}
        # What captures asked for outside of Python, and whether to tell of it yet.
        self.outside: dict[str, bool] = {}
        self.unkept: set[str] = set()  # names of what no step leaves in Python, of which it was told
        self.asks: dict[int, Ahead] = {}  # what each captured program asks, by its graph's id

    def weights(self, placed: Placed) -> Weights:
        """The module's tensors, after every refusal that needs no program. Raises Refused."""
        found = weights(self.model)
        reasons = unkept(self.model)
        if reasons:
            # the full list of reasons comes from a capture
            with stand_ins(self.model):
                capture(self.model, self.loss, self.example(placed))
            raise Refused(reasons)
        return found

    def example(self, placed: Placed) -> Any:
        """What one pass through the model sees: the batch, or its first micro-batch."""
        return split(placed.to_capture, self.options.accumulate)[0]

    def capture(self, placed: Placed) -> Captured:
        """A program for this batch, with what the user is to know of it. Raises Refused."""
        self._check_structure(placed.layout)
        self.keeping.settle()
        with phase("capture"), stand_ins(self.model):
            captured = self._capture(placed)
            if self.options.accumulate > 1 and captured.writes:
                captured = of_all_parts(captured, lambda: self._capture(placed), self.options.accumulate)
            from_0(captured.begins, placed.layout.paths, placed.begins, self.options.accumulate)
            self._refuse_what_it_reads(captured, placed)
        self._warn_of_outside(captured)
        self._warn_of_unkept(captured)
        self.warn_of_batch(captured)
        self._warn_of_undrawn(captured)
        return captured

    def _capture(self, placed: Placed) -> Captured:
        moving = bool(self.numbers or placed.layout.floats)
        with standing_for(self.model, self.loss, self.numbers, self.ran):
            captured = capture(
                self.model,
                self.loss,
                self.example(placed),
                # Another value of a number may give another answer: then each value is a program.
                settle=not moving,
                inputs=True,
                again=None if self.options.accumulate > 1 else self.catch_up,
                keep=True,
                own=True,
            )
        if moving and any(map(asks_for_types, captured.codes)):
            raise refuse("control-flow", "the loss asks for the type of a float that changes between steps")
        if placed.layout.unasked and any(map(asks_what_kind, captured.codes)):
            raise refuse("control-flow", "the loss asks for the type of a value that changes between steps")
        return captured

    def _refuse_what_it_reads(self, captured: Captured, placed: Placed) -> None:
        """Raises Refused where this program reads what another one of this step puts into Python's places: it would
        have the value of now for good."""

        def held(name: str) -> torch.Tensor:
            return sources(self.model, self.loss).tensors[name]

        def again() -> bool:
            return alike(captured, self._capture(placed), values=True)

        read = self.keeping.read_by(captured, held, again)
        if read:
            raise refuse(
                "held-tensor",
                f"{read} is filled by one program of this step, and read by another, of another mode or batch",
            )

    def only_counts(self, name: str, placed: Placed, ran: Names) -> bool:
        """Whether the integer that is named only counts, in the program for this batch."""
        slots = [s for s in sources(self.model, self.loss, ran).slots if s[3] == name and type(s[2]) is int]
        if len(slots) != 1 or not isinstance(slots[0][0], dict | list):
            return False
        table, key, value, _ = slots[0]

        self.keeping.settle()

        def captured() -> Captured:
            with stand_ins(self.model), standing_for(self.model, self.loss, self.numbers, self.ran):
                return capture(self.model, self.loss, self.example(placed), inputs=True, keep=True)

        with telling(f"two more captures: does {name} only count?", self.options.quiet):
            return only_counts(captured, lambda a, b: alike(a, b, values=True), table, key, value)

    def _check_structure(self, layout: Layout) -> None:
        """A changed shape or dtype is another program, and so are other containers: a loader gives a list, which a loop
        unpacks and hands over as a tuple. Other tensors are a mistake, said before exporting."""
        known = next((c.batch for c, _ in self.captured.values()), layout)
        had, has = (
            {path for i, path in enumerate(one.paths) if i not in one.floats} for one in (known, layout)
        )
        absent, extra = had - has, has - had
        if not absent and not extra:
            return
        what = [f"missing {', '.join(sorted(absent))}"] if absent else []
        what += [f"unexpected {', '.join(sorted(extra))}"] if extra else []
        raise refuse("batch", f"the batch has another structure: {'; '.join(what)}")

    def _other(self, captured: Captured, placed: Placed, state: State) -> Where | None:
        """What this program has another answer to than this batch."""
        asks = self.asks.get(id(captured.graph))
        if asks is None:
            asks = self.asks[id(captured.graph)] = Ahead.of(captured.graph, is_check)
        if (
            not asks.checks or self.options.accumulate > 1
        ):  # micro-batches may differ: the checks of the step say so
            return None
        return asks.other(placed.arrays, lambda name: from_jax(state.value(name)))

    def _misfits(self, captured: Captured, placed: Placed, state: State) -> Where | None:
        """What a stored program has another answer to than a capture of this batch, or of its first micro-batch, would
        have."""
        if self.options.accumulate == 1:
            return self._other(captured, placed, state)
        asks = Ahead.of(captured.graph, is_check)
        first = [to_jax(tensor) for tensor in flatten(self.example(placed))[0]]
        return asks.other(first, lambda name: from_jax(state.value(name))) if asks.checks else None

    def _warn_of_outside(self, captured: Captured) -> None:
        """Where the step would ask for a file again in eager, and no program does. One that forward keeps (it writes to
        a value of Python's) is told where a second capture asks for it, too."""
        fresh = [said for said in captured.again if self.outside.get(said, not captured.writes)]
        self.outside |= {said: said not in fresh for said in captured.again}
        if fresh:
            warnings.warn(
                f"{'; '.join(fresh)}: a compiled step keeps what was found there when it was captured, and PyTorch "
                "would look again in every step; look before detente.compile, and hand over what may change in the "
                "batch, a buffer or an attribute",
                stacklevel=9,
            )

    def _warn_of_unkept(self, captured: Captured) -> None:
        """What eager would leave in Python for the loop, and no step does."""
        fresh = self._untold(captured.unkept)
        if fresh:
            warnings.warn(
                f"forward leaves a tensor in {', '.join(fresh)}, and a compiled step does not: it is more than is kept "
                "for the loop, is left in the first call alone, or inside of a transform or a branch; return it beside "
                "the loss, (loss, aux), where the loop reads it",
                stacklevel=9,
            )

    def warn_of_batch(self, captured: Captured) -> None:
        """What eager would leave in the batch that it is given, and no step does: of a batch that is new in every step
        nobody sees it."""
        fresh = self._untold(captured.into_batch)
        if fresh:
            warnings.warn(
                f"the loss puts {', '.join(fresh)} into its batch, and a compiled step leaves the batch as it was: "
                "where the loop reads it, or gives the same batch again, return it beside the loss, (loss, aux), and "
                "put it there",
                stacklevel=9,
            )

    def _untold(self, names: Iterable[str]) -> list[str]:
        """Those of which nobody was told yet; from now on they are."""
        fresh = [name for name in names if name not in self.unkept]
        self.unkept.update(fresh)
        return fresh

    def _warn_of_undrawn(self, captured: Captured) -> None:
        names = self._untold(name for name, words in captured.drawn if words is None)
        if names:
            warnings.warn(
                f"forward draws from {' and '.join(names)} what decides nothing, now more and now less, and a compiled "
                "step draws nothing: what the loop draws from there comes in another order than in PyTorch",
                stacklevel=9,
            )
