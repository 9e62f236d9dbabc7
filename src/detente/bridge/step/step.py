"""``Step``: the compiled training step with its state on the device."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from detente.bridge.certify.eager import eager_step
from detente.bridge.choose.memory import available_bytes, memory
from detente.bridge.graph import Aval, Ref
from detente.bridge.live.around import Surroundings, ambient
from detente.bridge.live.forks import attend, not_in_child
from detente.bridge.live.guard import Guard, release
from detente.bridge.live.inside import ONE
from detente.bridge.live.modes import Modes
from detente.bridge.live.places import has
from detente.bridge.live.seeded import Seeded
from detente.bridge.live.shared import Meeting
from detente.bridge.live.writes import same
from detente.bridge.refusal import Refused, refuse
from detente.bridge.state.emptied import Emptied
from detente.bridge.state.hole import Hole
from detente.bridge.state.kept import ALONE, ground, settle_down
from detente.bridge.state.meta import Source, on_meta, source, stand_ins
from detente.bridge.state.pending import Pending
from detente.bridge.state.place import Placed, from_jax, place, to_jax
from detente.bridge.state.state import State
from detente.bridge.step import shown
from detente.bridge.step.certifier import Certifier, Open
from detente.bridge.step.draws import Draws
from detente.bridge.step.examine import check
from detente.bridge.step.filling import refill
from detente.bridge.step.given import named
from detente.bridge.step.keeping import Keeping
from detente.bridge.step.moving import Moving
from detente.bridge.step.options import Options
from detente.bridge.step.plain_values import PlainValues
from detente.bridge.step.profile import Profile, profile_step
from detente.bridge.step.readable import Readable
from detente.bridge.step.sharing import Sharing, same_tensors
from detente.bridge.step.switching import Now, switched
from detente.bridge.step.variants import Variant, Variants
from detente.bridge.telling import telling

Loss = Callable[[Any, Any], Any]
TIMED = 3  # steps of a side, in a turn


class Step(Readable):
    """A training step that runs as one XLA executable. Made by ``detente.compile``.

    The state (weights, buffers, optimizer) lives on JAX's device; the live module and optimizer keep their
    values of the last ``sync_to_torch``, and are brought up to date when somebody reads them. One thread at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        example_batch: Any,
        options: Options,
        share: Step | None = None,
    ) -> None:
        not_in_child()
        self.model, self.loss, self.optimizer, self.options = model, loss, optimizer, options
        self._modes = Modes()
        self.count = 0
        self._open: Open | None = None
        # a step whose results are not in their place yet
        self._ran: tuple[Variant, int, list[Any], Any] | None = None
        self._certifier = Certifier(model, loss, optimizer, options, self._gradients, type(self))
        placed = example_batch if isinstance(example_batch, Placed) else place(example_batch)
        self._variants = Variants(model, loss, optimizer, options)
        self._source: Source | None = None
        if on_meta(model):
            self._source = source(model, optimizer, options.weights, options.seed)
        elif options.weights is not None:
            raise refuse("meta", "weights= is for a module on the meta device, and this one has values")
        try:
            self._follow(self._begun(placed))
            self.weights = self._variants.weights(placed)
        except Refused as refused:
            with stand_ins(model) if self._source is not None else nullcontext():
                found = check(model, loss, self._variants.example(placed), optimizer)
            known = {reason.what for reason in found}
            raise Refused([*found, *(r for r in refused.reasons if r.what not in known)]) from None
        self._guard, self._outside = Guard(self._read_live), Guard(self._read_outside)
        self._moments = Guard(self._read_moments)
        self._held_moments: list[tuple[torch.Tensor, int]] = []  # handed out, with their versions
        self._keeping = Keeping(model)
        self._draws = Draws(model, loss, options.accumulate)
        self._variants.keeping = self._keeping
        self._around = Surroundings(model, loss, self._keeping)
        self._moving = Moving(self._variants, self._around)
        self._seeded = Seeded()
        self._plain_values = PlainValues(self._variants.capture, self._moving.warn)
        self._caller: int | None = None  # the thread that is inside of a call
        self._told_reads = 0  # how often what the optimizer's step reads in Python moved
        self._told = False  # of a failed certificate
        self._told_values = False  # the state was given values that a program may have in it
        self._keeps = False  # whether what a step frees is kept for the next
        self._hole: Hole | None = None  # where a step waits for the block of the one before
        self._last: Any = None  # its loss
        # a short certificate failed: the state is that of a step that is not trusted
        self._kept_nothing = False
        self._begins = True  # there may be gradients from before
        self._rewritten = False  # the live optimizer was given another state
        self._held: dict[str, torch.Tensor] = {}  # what the loss holds, by name
        self._meeting, self._moments_at = Meeting(), []
        self._attended: list[torch.Tensor] = []
        self._emptied = Emptied(refill)
        weakref.finalize(self, release, self._attended, self._guard).atexit = False
        self._variants.adopt = self._adopt
        self._variants.catch_up = self._live_values
        self._variants.settle = self._make_certificate
        self._variants.waiting = lambda: self._open.variant if self._open is not None else None
        self._see()
        with self._away():
            self._load()
        with self._away():
            self._variant(placed, self._hyper())
            # Behind the capture: an actor shares its critic, which is not in its module but in its loss.
            if share is not None and not same_tensors(self, share):
                raise ValueError(
                    "share= is a step of another module: the two have no parameter or buffer in common"
                )
            self.sharing = Sharing(self, share)
            self._catch_up()
        self._hook()  # last: a step that was refused here hears of nothing
        attend(self, ONE)

    def __call__(self, batch: Any) -> Any:
        """One step on ``batch``: the loss, a 0-d tensor that is ready when read, or ``(loss, aux)``.

        Raises Refused for a batch of another structure, a module that was changed behind the step's back, a
        failed certificate (before the second step returns, with the module as it was). Reading the loss
        raises what torch would have raised inside the step (IndexError), or FloatingPointError when it is
        not finite.
        """
        mine = threading.get_ident()
        if self._caller not in (None, mine) and self._guard.busy:
            raise refuse("threads", "another thread is inside of a call of this step")
        placed = self._placed(batch)
        with self._away():
            try:
                self._caller = mine
                return self._step(batch, placed)
            finally:
                self._caller = None
                self._seeded.stepped()

    def _placed(self, batch: Any) -> Placed:
        """Asked for outside of the step's own code: a buffer of the module in the batch is read here, and its guard
        must see that, or it is the buffer of the last time that anybody looked."""
        return batch if isinstance(batch, Placed) else place(batch)

    def _step(self, batch: Any, placed: Placed) -> Any:
        seeded = self._seeded.moved
        ambient(self._modes)
        self._zero_grad()
        self._take_over()
        self._settle()
        self._catch_up()
        hyper = self._hyper()
        if self._rule.first:
            self.sync_to_torch()
            self._rule.taken()
            return self.eager(batch)
        variant, placed = self._variant_of(placed, hyper)
        if seeded and variant.captured.draws:
            self._seeded.warn()
        if variant.later is not None:
            variant = self._other_form(variant, batch, placed, hyper)
        if self.options.certificate != "none" and self._variants.certificate(variant) is None:
            self._open = self._opened(variant, batch, placed, hyper)
        self._let_go()
        return self._run(variant, placed.arrays, hyper)

    def _opened(self, variant: Variant, batch: Any, placed: Placed, hyper: Any) -> Open:
        """The step on ``batch`` as it is now, for a certificate. Of one that fails the module is as it was."""
        if self._emptied.tensors:
            self._write_back(optimizer=False)
        self._fill_held()
        mode, value = self._watch.mode, None if self._live else self._host_value
        given = batch.as_placed() if isinstance(batch, Placed) else batch
        return self._certifier.open(
            variant, given, placed.arrays, self.count, hyper, mode, self._before, value
        )

    def _other_form(self, variant: Variant, batch: Any, placed: Placed, hyper: Any) -> Variant:
        """The program to go on with: this one, or the form of it that was made meanwhile and is faster."""
        later, certified = variant.later, self.options.certificate != "none"
        assert later is not None
        found = later.found()
        if later.failed is not None:
            return self._variants.without(variant, later.failed)
        if found is None or (certified and self._variants.certificate(variant) is None):
            return variant
        opened = partial(self._opened, batch=batch, placed=placed, hyper=hyper) if certified else None
        now = Now(placed.arrays, hyper, self._state, self._rule, self.options.seed, self.count, opened)
        with telling(f"another form of the step of {type(self.model).__name__}", self.options.quiet):
            try:
                made, certificate = switched(variant, found, self._certifier, now)
            except Exception as error:  # of copies: the training is where it was, and goes on
                return self._variants.without(variant, error)
        made = self._variants.chosen(variant, made, self._rule)
        if certificate is not None:
            self._variants.certify(made, certificate)
        self._keeps = False  # another program computes with other memory
        return made

    def _run(self, variant: Variant, arrays: list[Any], hyper: Any) -> Any:
        state, run = self._state, variant.compiled.executable
        state.arrange(variant.stacks)
        state.bear()  # or a first state would come to lie where steps compute
        if not self._keeps and self._open is None:
            self._keeps = True
            planned = memory(run)
            temporary = planned.temp if planned else 0
            kept = settle_down(temporary, available_bytes())
            self._hole = Hole(temporary, ground()) if kept and temporary > ALONE else None
        if self._hole is not None:
            jax.block_until_ready(self._last)
            self._hole.wait()
        seed, number = np.uint32(self.options.seed), self.count
        own, fixed = variant.compiled.parts(state.values)
        # What goes in is used up. What comes out is bound in the same statement, and put in its place by whoever comes
        # next, should anything come between.
        writes = [write.due(self._moving.counted) for write in variant.captured.writes]
        due = self._rule.due(self.optimizer)
        before = [] if self._rule.once else [(t, k, t[k], v) for t, k, v in due if has(t, k)]
        writes += due
        self._ran = (
            variant,
            number,
            writes,
            run(own, state.optimizer, fixed, arrays, hyper, seed, np.uint32(number)),
        )
        loss, aux, word = self._book()
        self._last = loss
        self._draws.move(variant.captured)
        if self._guard.unasked or self._moments.unasked:
            self._show_unasked()
        if self._outside.in_c:
            self._ask_of_held()
        value = Pending.of(
            self._loss_aval(variant), lambda: self._read(variant, number, loss, word, before), loss
        )
        layout = variant.captured.aux
        if layout is None:
            return value
        lead = () if self.options.accumulate == 1 else (self.options.accumulate,)
        avals = [replace(a, shape=(*lead, *a.shape)) for a in layout.avals]
        own_leaves = zip(avals, aux, strict=False)  # what is kept stands behind them
        leaves: list[torch.Tensor] = [Pending.of(a, lambda x=x: x, x) for a, x in own_leaves]
        if not lead:  # what is stacked is a copy
            for one in variant.captured.lasting:
                if self.weights.tensors[one.name].is_meta:
                    self.sync_to_torch()
                leaves[one.leaf] = one.of(self.weights.tensors[one.name])
        return value, layout.build(leaves)

    def _read(self, variant: Variant, number: int, loss: Any, word: Any, before: list[Any]) -> Any:
        """The loss on the host. ``before``: numbers of the optimizer that Python keeps, as they were and as they are: a
        step that raises has updated nothing."""
        error = variant.compiled.program.sites.error(int(word))
        if error is not None:
            while before:
                table, key, old, new = before.pop()
                if has(table, key) and same(table[key], new):
                    table[key] = old
            raise error
        value = np.asarray(loss)
        if self.options.nonfinite == "raise" and not np.isfinite(value.astype(np.float64)):
            raise FloatingPointError(
                f"the loss of step {number} is {float(value)}\n    hint: look for the first bad value with "
                "step.eager(batch) under torch.autograd.detect_anomaly(), or compile with nonfinite='return'"
            )
        return value

    def place(self, batch: Any) -> Placed:
        """Copy a batch to the device ahead of its step: ``step(step.place(batch))`` is ``step(batch)``, whatever the
        batch was changed to in between (a buffer that is filled anew). The copy is made before this returns."""
        not_in_child()
        return place(batch, ahead=True)

    def wait(self) -> None:
        """Wait until every step that was started is done."""
        jax.block_until_ready(self.arrays())

    def restart(self, tensors: Mapping[str, Any] | None = None) -> None:
        """Set weights and buffers (torch, numpy or JAX arrays by name) and forget the optimizer's state, without
        compiling anything. The count of steps, and so the random numbers, start anew. Names are those of
        ``state_dict()``, any of those that a tied tensor has, and of other buffers; what is not named stays what it is.
        Raises Refused (``weights``) for a name or a shape that is none of the module's, and without tensors: a step
        keeps no weights of before. Nothing has changed then.

        >>> import detente
        >>> layer = nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> batch = torch.ones(1, 2)
        >>> step = detente.compile(layer, lambda m, b: m(b).sum(), sgd, example_batch=batch, cache=False)
        >>> begin = step.state_dict()
        >>> first, second = float(step(batch)), float(step(batch))
        >>> step.restart(begin)
        >>> float(step(batch)) == first
        True
        """
        if tensors is None:
            raise refuse(
                "weights",
                "restart() was given no weights, and the step keeps none of before",
                hint="begin = step.state_dict() before the first step, and step.restart(begin) when it is time",
            )
        with self._away():
            self._settle()
            given = named(self.weights, tensors)
            self._wrote(self.weights.tensors[name] for name in given)  # what was written there before is gone
            self._take_writes()
            self._catch_up()
            self._held_moments = []  # whoever has them: nobody's
            self._moments.exposed.clear()
            values, stacks = self._state.by_torch_names()[0], self._state.stacks
            self.optimizer.state.clear()
            fresh = {name: to_jax(tensor) for name, tensor in given.items()}
            self._state = State({**values, **fresh}, self._first_moments())
            self._state.arrange(stacks)
            self._live, self._stepped, self._rewritten, self._told_values = False, False, False, True
            self._guard.behind = True
            self.count = 0
            self.sharing.loaded()
            self._show_loaded()

    def eager(self, batch: Any) -> Any:
        """The same step in torch eager, on the live module, with the compiled step's random numbers: a
        breakpoint works anywhere. The state moves to the module, steps there, and is read back."""
        from detente.bridge.random import twin

        with self._away():
            return self._eager(batch.as_placed() if isinstance(batch, Placed) else batch, twin)

    def _eager(self, batch: Any, twin: Any) -> Any:
        self.sync_to_torch()
        parts = self.options.accumulate
        done = eager_step(
            self.model,
            self.loss,
            self.optimizer,
            batch,
            lambda part: twin(self.options.seed, self.count * parts + part),
            parts,
            self._rule.clip_live,
        )
        self.load_from_torch()
        self._state.optimizer = self._rule.advanced(self._state.optimizer, self._state.values)
        self.count += 1
        return done.loss if done.aux is None else (done.loss, done.aux)

    def gradients(self, batch: Any) -> dict[str, torch.Tensor | None]:
        """The gradient of the loss at the current weights by parameter name, with the random numbers of the
        next step, and without an update; None where torch would leave ``.grad`` None. Compiles once per
        program. Raises what PyTorch would have raised on this batch (IndexError)."""
        placed = self._placed(batch)
        with self._away():
            self._take_over()
            self._catch_up()
            variant, placed = self._variant_of(placed, self._hyper())
            self._state.arrange(variant.stacks)
            word, found = self._derived(variant, self._state.values, placed.arrays, self.count)
            error = variant.compiled.program.sites.error(int(word))
            if error is not None:
                raise error
            return found

    def profile(self, batch: Any, steps: int = 5) -> Profile:
        """Where the seconds of a step on ``batch`` go: by kind of work, by direction and by part of the module.

        Some steps run on copies of the state, plainly and under JAX's profiler; the training stays where it is. Printed
        it is a table; ``.of`` has the figures (``programs/step_profile.py``), ``step_s`` and ``watched_s`` among them,
        whose difference is what looking costs. ``detente bridge profile`` has eager PyTorch's beside it. Raises Refused
        (``profile``) where the runtime tells of no operation, and ValueError for less than one step.

        >>> import detente
        >>> layer = nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> batch = torch.ones(1, 2)
        >>> step = detente.compile(layer, lambda m, b: m(b).sum(), sgd, example_batch=batch, cache=False)
        >>> found = step.profile(batch, steps=2)
        >>> found.of.step_s > 0 and math.isclose(sum(found.of.by_work().values()), found.of.computed)
        True
        """
        if steps < 1:
            raise ValueError(f"a profile takes one step or more, and not {steps}")
        placed = self._placed(batch)
        with self._away():
            self._take_over()
            self._settle()
            self._catch_up()
            hyper = self._hyper()
            variant, placed = self._variant_of(placed, hyper)
            self._state.arrange(variant.stacks)
            seed = self.options.seed
            return profile_step(variant.compiled, self._state, placed.arrays, hyper, seed, self.count, steps)

    def _gradients(self, variant: Variant, values: Any, arrays: list[Any], count: int) -> Any:
        return self._derived(variant, values, arrays, count)[1]

    def _derived(self, variant: Variant, values: Any, arrays: list[Any], count: int) -> tuple[Any, Any]:
        """The fault word, and the gradients by torch's names."""
        word, found = variant.compiled.gradients(
            values, arrays, np.uint32(self.options.seed), np.uint32(count)
        )
        none: dict[str, torch.Tensor | None] = dict.fromkeys(sorted(self.weights.trainable))
        return word, none | {n: from_jax(g) for n, g in variant.stacks.split(found).items()}

    def measured_beside(self, sides: Mapping[str, Callable[[], Any]], batch: Any, rounds: int = 3) -> None:
        """Time a step of each of ``sides`` and one of this on ``batch``, in turns, and remember the fastest of each
        beside the choice: ``step.choice.advice`` says where something else was faster. This step trains meanwhile."""
        turns: dict[str, Callable[[], Any]] = {**sides, "detente": lambda: float(self(batch).detach())}
        best = dict.fromkeys(turns, math.inf)
        for count in range(rounds + 1):
            # The first of each compiles, and is no step; then some of one side, as a loop has them.
            for name, run in turns.items():
                for _ in range(TIMED if count else 1):
                    begun = perf_counter()
                    run()
                    best[name] = min(best[name], perf_counter() - begun) if count else math.inf
        self._variants.beside(self.programs[0], best, self._rule)

    def __repr__(self) -> str:
        return shown.line(self)

    def _repr_html_(self) -> str:
        return shown.html(self)

    def _variant_of(self, placed: Placed, hyper: Any) -> tuple[Variant, Placed]:
        """The program for this batch, and the batch as that takes it."""
        if self.options.accumulate > 1:
            return self._variant(placed, hyper), placed
        return self._plain_values.found(
            placed,
            self._mode,
            lambda: (layout for layout, _ in self._variants.made),
            lambda placed: self._variant(placed, hyper),
        )

    def _variant(self, placed: Placed, hyper: Any) -> Variant:
        """The program for this batch, compiled now if it is a new one."""
        self._moving.before_step(placed)
        if self._told_values:
            self._told_values = False
            if self._variants.outlived(self._host_value):
                self._live_values()  # a mask is recognised in the module
                self._variants.forget()
        if self._moving.counted and not self._variants.is_made(placed, self._mode):
            self._moving.before_capture(placed)
        mode, known = self._mode, self._variants.number
        try:
            found = self._variants.find(placed, mode, self._rule, hyper, self.weights, self._state)
        except Exception:
            numbers = list(self._variants.numbers)
            fresh = [name for name in numbers if name not in self._held] or numbers
            if not fresh:
                raise
            for name in fresh:
                self._moving.no_input(name)
            self._moving.warn(f"{', '.join(fresh)} changes between steps and decides more than a product")
            return self._variant(placed, hyper)
        if self._variants.number != known:
            self._around.captured(found.captured.ran)
        return found

    @property
    def _mode(self) -> tuple[Any, ...]:
        """What a program depends on besides the batch."""
        numbers = tuple(sorted(self._variants.numbers))
        return (self._watch.mode, self._around.token, ambient(self._modes), numbers)

    def _loss_aval(self, variant: Variant) -> Aval:
        graph = variant.compiled.program.graph
        value = next(o.value for o in graph.outputs if o.kind == "loss")
        assert isinstance(value, Ref)
        for item in (*graph.nodes, *graph.inputs):
            if item.id == value.id:
                out: Any = getattr(item, "aval", None) or getattr(item, "out", None)
                return out if isinstance(out, Aval) else out[value.index]
        raise AssertionError("the loss is not a value of the graph")
