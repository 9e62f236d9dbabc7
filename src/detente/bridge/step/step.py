"""``Step``: the compiled training step with its state on the device."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from detente.bridge.capture.weights import weights
from detente.bridge.certify.certificate import Certificate, refusal
from detente.bridge.certify.eager import eager_step
from detente.bridge.choose.choice import Choice
from detente.bridge.graph import Aval, Ref
from detente.bridge.live.guard import Away, Guard, plain, release, tensors_of, watch
from detente.bridge.live.optimizer_state import see, tensors_in, unseen
from detente.bridge.live.sources import put, sources
from detente.bridge.live.watch import Surroundings, Watch, ambient
from detente.bridge.optim.hyper import Stale
from detente.bridge.optim.rule import trace
from detente.bridge.optim.update import Update
from detente.bridge.program.program import exported
from detente.bridge.refusal import Refused, refuse
from detente.bridge.roll.stacks import Stacks
from detente.bridge.state import checkpoint
from detente.bridge.state.birth import Births
from detente.bridge.state.meta import Source, fill, on_meta, source, stand_ins
from detente.bridge.state.pending import Pending
from detente.bridge.state.place import Placed, but_floats, from_jax, place, to_jax, with_numbers
from detente.bridge.state.state import State
from detente.bridge.step import shown
from detente.bridge.step.certifier import Before, Certifier, Open
from detente.bridge.step.examine import check
from detente.bridge.step.moving import Moving
from detente.bridge.step.sharing import Sharing, same_tensors
from detente.bridge.step.variants import Options, Variant, Variants
from detente.bridge.telling import phase, telling

Loss = Callable[[Any, Any], Any]


class Step:
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
        self.model, self.loss, self.optimizer, self.options = model, loss, optimizer, options
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
            self._follow(self._traced())
            self.weights = self._variants.weights(placed)
        except Refused as refused:
            with stand_ins(model) if self._source is not None else nullcontext():
                found = check(model, loss, self._variants.example(placed), optimizer)
            known = {reason.what for reason in found}
            raise Refused([*found, *(r for r in refused.reasons if r.what not in known)]) from None
        self._guard, self._outside = Guard(self._read_live), Guard(self._read_outside)
        self._moments = Guard(self._read_moments)
        self._held_moments: list[tuple[torch.Tensor, int]] = []  # handed out, with their versions
        self._around = Surroundings(model, loss)
        self._moving = Moving(self._variants, self._around)
        self._float_inputs: bool | None = None  # whether floats of a batch are inputs; None: not asked yet
        self._caller: int | None = None  # the thread that is inside of a call
        self._told = False  # of a failed certificate
        # a short certificate failed: the state is that of a step that is not trusted
        self._kept_nothing = False
        self._rewritten = False  # the live optimizer was given another state
        self._held: dict[str, torch.Tensor] = {}  # what the loss holds, by name
        self._variants.adopt = self._adopt
        self._see()
        self._hook()
        with self._away():
            self._load()
        if share is not None and not same_tensors(self, share):
            raise ValueError(
                "share= is a step of another module: the two have no parameter or buffer in common"
            )
        with self._away():
            self._variant(placed, self._hyper())
            self.sharing = Sharing(self, share)
            self._catch_up()

    # -- running
    # ----------------------------------------------------------------------------------------------

    def __call__(self, batch: Any) -> Any:
        """One step on ``batch``: the loss, a 0-d tensor that is ready when read, or ``(loss, aux)``.

        Raises Refused for a batch of another structure, a module that was changed behind the step's back, a
        failed certificate (before the second step returns, with the module as it was). Reading the loss
        raises what torch would have raised inside the step (IndexError), or FloatingPointError when it is
        not finite.
        """
        mine = threading.get_ident()
        if self._caller not in (None, mine) and self._guard.off:
            raise refuse("threads", "another thread is inside of a call of this step")
        with self._away():
            try:
                self._caller = mine
                return self._step(batch)
            finally:
                self._caller = None

    def _step(self, batch: Any) -> Any:
        ambient()
        self._take_over()
        self._settle()
        self._catch_up()
        hyper = self._hyper()
        variant, placed = self._variant_of(batch if isinstance(batch, Placed) else self.place(batch), hyper)
        if self.options.certificate != "none" and self._variants.certificate(variant) is None:
            mode, value = self._watch.mode, None if self._live else self._host_value
            self._open = self._certifier.open(
                variant, placed.original, placed.arrays, self.count, hyper, mode, self._before, value
            )
        return self._run(variant, placed.arrays, hyper)

    def _run(self, variant: Variant, arrays: list[Any], hyper: Any) -> Any:
        seed, number = np.uint32(self.options.seed), self.count
        state, run = self._state, variant.compiled.executable
        state.arrange(variant.stacks)
        own, fixed = variant.compiled.parts(state.values)
        # What goes in is used up. What comes out is bound in the same statement, and put in its place by whoever comes
        # next, should anything come between.
        writes = [write.due(self._moving.counted) for write in variant.captured.writes]
        writes += self._rule.due(self.optimizer)
        self._ran = (
            variant,
            number,
            writes,
            run(own, state.optimizer, fixed, arrays, hyper, seed, np.uint32(number)),
        )
        loss, aux, word = self._book()
        value = Pending.of(self._loss_aval(variant), lambda: self._read(variant, number, loss, word), loss)
        layout = variant.captured.aux
        if layout is None:
            return value
        lead = () if self.options.accumulate == 1 else (self.options.accumulate,)
        avals = [replace(a, shape=(*lead, *a.shape)) for a in layout.avals]
        leaves = [Pending.of(a, lambda x=x: x, x) for a, x in zip(avals, aux, strict=True)]
        return value, layout.build(leaves)

    def _book(self) -> tuple[Any, Any, Any]:
        """The results of the step that ran are the state. Every part of it may be done twice."""
        if self._ran is None:
            return None, None, None
        _, number, writes, (changed, optimizer, loss, aux, word) = self._ran
        self._state.values.update(changed)
        self._state.optimizer = optimizer
        if self._open is not None:
            self._open.loss = loss
        self._live, self._guard.behind, self._moments.behind = False, True, True
        self._outside.behind = self._open is not None
        self.count = number + 1
        for due in writes:
            put(due)
        self.sharing.ran()
        self._ran = None
        return loss, aux, word

    def _read(self, variant: Variant, number: int, loss: Any, word: Any) -> Any:
        error = variant.compiled.program.sites.error(int(word))
        if error is not None:
            raise error
        value = np.asarray(loss)
        if self.options.nonfinite == "raise" and not np.isfinite(value.astype(np.float64)):
            raise FloatingPointError(
                f"the loss of step {number} is {float(value)}\n    hint: look for the first bad value with "
                "step.eager(batch) under torch.autograd.detect_anomaly(), or compile with nonfinite='return'"
            )
        return value

    def place(self, batch: Any) -> Placed:
        """Copy a batch to the device ahead of its step; ``step(step.place(batch))`` is ``step(batch)``."""
        return place(batch)

    def wait(self) -> None:
        """Wait until every step that was started is done."""
        jax.block_until_ready(self.arrays())

    def restart(self, tensors: Mapping[str, Any] | None = None) -> None:
        """Set weights and buffers (torch or numpy arrays by name) and forget the optimizer's state, without compiling
        anything. By default they are what the live module holds: the values of the last ``sync_to_torch()``, or of the
        last time that anybody read it. The count of steps, and so the random numbers, start anew."""
        with self._away():
            self._settle()
            if tensors is None:
                self._watch.renew()
            stacks = self._state.stacks
            self.optimizer.state.clear()
            self._load(tensors or {})
            self._live = self._live and not tensors
            self._guard.behind = not self._live
            self._state.arrange(stacks)
            self.count = 0
            self.sharing.loaded()

    def eager(self, batch: Any) -> Any:
        """The same step in torch eager, on the live module, with the compiled step's random numbers: a
        breakpoint works anywhere. The state moves to the module, steps there, and is read back."""
        from detente.bridge.random import twin

        with self._away():
            return self._eager(batch, twin)

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
        averages = self._state.by_torch_names()[1]
        self.load_from_torch()
        kept = self._rule.kept(averages, self._state.optimizer)
        self._state.optimizer = self._rule.advanced(kept, self._state.values)
        self.count += 1
        return done.loss if done.aux is None else (done.loss, done.aux)

    def gradients(self, batch: Any) -> dict[str, torch.Tensor | None]:
        """The gradient of the loss at the current weights by parameter name, with the random numbers of the
        next step, and without an update; None where torch would leave ``.grad`` None. Compiles once per
        program."""
        with self._away():
            self._take_over()
            self._catch_up()
            placed = batch if isinstance(batch, Placed) else self.place(batch)
            variant, placed = self._variant_of(placed, self._hyper())
            self._state.arrange(variant.stacks)
            return self._gradients(variant, self._state.values, placed.arrays, self.count)

    def _gradients(self, variant: Variant, values: Any, arrays: list[Any], count: int) -> Any:
        _, found = variant.compiled.gradients(values, arrays, np.uint32(self.options.seed), np.uint32(count))
        none: dict[str, torch.Tensor | None] = dict.fromkeys(sorted(self.weights.trainable))
        return none | {n: from_jax(g) for n, g in variant.stacks.split(found).items()}

    # -- state ------------------------------------------------------------------------------------------------

    def evaluate(self, batch: Any) -> Any:
        """The loss function's value on ``batch`` in eager PyTorch, with the weights as they are now, without gradients
        and in eval mode; the module is in its own mode again afterwards."""
        with self._away():
            self._trusted()
            self._catch_up()
            if self._guard.behind:
                self._write_back(optimizer=False)
            modes = [(part, part.training) for part in self.model.modules()]
            try:
                self.model.eval()
                with torch.no_grad():
                    return self.loss(self.model, batch)
            finally:
                for part, training in modes:
                    part.training = training

    @contextmanager
    def synced(self) -> Iterator[nn.Module]:
        """The live module with the weights, buffers and optimizer state as they are now, for as long as the block
        takes: read it, save it, write to it by any means. The next step starts from what it holds at the end.

        >>> import detente
        >>> layer = nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> batch = torch.ones(1, 2)
        >>> step = detente.compile(layer, lambda m, b: m(b).sum(), sgd, example_batch=batch, cache=False)
        >>> with step.synced() as model:
        ...     _ = model.bias.data.fill_(3.0)
        >>> float(step.state_dict()["bias"])
        3.0
        """
        self.sync_to_torch()
        held = tensors_of(self.model)
        try:
            with plain(held):
                yield self.model
        finally:
            self._guard.exposed |= {id(t) for t in self.weights.tensors.values()}
            self._rewritten = True

    def sync_to_torch(self) -> None:
        """Write weights, buffers and optimizer state into the live module and optimizer, in place. Parameters that
        were on the meta device get memory on the CPU, and stay the same objects. After a failed certificate (which is
        raised once) they are those of before its step."""
        with self._away():
            self._trusted()
            self._write_back(optimizer=True)

    def _trusted(self) -> None:
        if not self._tell():
            self._settle()

    def _write_back(self, *, optimizer: bool) -> None:
        """The state into the live module; ``optimizer``: and into the live optimizer. Works after every refusal."""
        self._catch_up()
        for other in self.sharing.others:  # before the live module moves on under them
            other._make_certificate()
        # Where the live objects are not behind they hold what somebody may have written since: nothing is put there.
        filled = self._guard.behind or (optimizer and any(t.is_meta for t in self.weights.tensors.values()))
        if filled:
            with torch.no_grad():
                for name, live in self.weights.tensors.items():
                    if name not in self._held:
                        fill(live, from_jax(self._state.value(name)))
        if optimizer and (self._moments.behind or not self._live):
            state = self._state.by_torch_names()[1]
            # The tensors that were trained, also where the module has others by now: a new one has no moments.
            self._rule.write_state(self.optimizer, state, self.weights.tensors)  # type: ignore[arg-type]
            self._moments.behind = False
            self._moments.exposed.clear()
            self._held_moments = [(t, t._version) for t, _ in self._held_moments]
        if optimizer:
            self._live = True
        if not filled:
            return
        for step in (self, *self.sharing.others):
            step._guard.behind = False
            step._guard.exposed.clear()
        self._renew()
        for stranger in self.sharing.apart:
            stranger._watch.renew()

    def _read_live(self) -> None:
        """Somebody reads the live module, and it holds older values than this step. Of steps that share nothing the one
        that ran last answers."""
        if any(s._guard.behind and s.sharing.moved > self.sharing.moved for s in self.sharing.apart):
            return
        with self._away():
            changes = self._watch.look()
            if changes is not None:
                self._refuse_hidden({self.weights.canonical(n) for n in changes.written})
            self._answer(optimizer=False)

    def _answer(self, *, optimizer: bool) -> None:
        """The trained values for somebody who reads; not those of a step that is not trusted."""
        if self._tell():
            self._write_back(optimizer=optimizer)

    def _tell(self) -> bool:
        """Makes the certificate that is open. Of one that failed whoever comes first is told, by a Refused; later the
        state is that of before its step. False: there is no such state, because a short certificate keeps no copy."""
        self._make_certificate()
        failed = [c for c in self._variants.certificates.values() if not c.ok]
        if failed and not self._told:
            self._told = True
            raise refusal(failed[0])
        return not (failed and self._kept_nothing)

    def load_from_torch(self) -> None:
        """Take the live module's and optimizer's values as the state, after an edit that the step could not see (an
        alias, C). Edits that it sees are taken over by themselves, and nothing that was trained is dropped."""
        with self._away():
            self._trusted()
            if self._guard.behind:
                self._write_back(optimizer=True)
            for other in self.sharing.others:
                other._make_certificate()
            self._renew()
            self._load()
            self._guard.behind = False
            self._guard.exposed.clear()
            self.sharing.loaded()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The weights and persistent buffers now, under torch's ``state_dict`` names, tied names included."""
        self._now()
        names = self.model.state_dict(keep_vars=True)
        canonical = {name: self.weights.canonical(name) for name in names}
        host = {name: from_jax(self._state.value(name)) for name in set(canonical.values())}
        return {name: host[canonical[name]] for name in names}

    def averages(self) -> dict[str, torch.Tensor]:
        """As ``state_dict``, with the moving average of every parameter that the optimizer holds in its place; other
        parameters and buffers as they are now. A copy of the module takes it by ``load_state_dict``.

        Raises ValueError where the step was compiled without ``ema``.
        """
        found = self._rule.averages(self._state.by_torch_names()[1])
        means = {name: from_jax(average) for name, average in found.items()}
        return {n: means.get(self.weights.canonical(n), t) for n, t in self.state_dict().items()}

    def save(self, path: str | Path) -> None:
        """Write weights, buffers, optimizer state and the position of the random numbers to one safetensors file."""
        self._trusted()
        self._now()
        checkpoint.save(path, self._state, dict(self.weights.aliases), self.count, self.options.seed)

    def load(self, path: str | Path) -> None:
        """Go on exactly where ``save`` was called: the next steps are bitwise those of the uninterrupted run (the
        numbers of ``param_groups`` are the live optimizer's). Raises Refused for a file that does not fit."""
        self._settle()
        self._state, self.count, seed = checkpoint.load(path, self._state)
        self._live, self._stepped = False, True
        self._guard.behind = self._moments.behind = True
        self.sharing.loaded()
        self.options = replace(self.options, seed=seed)
        self._certifier = replace(self._certifier, options=self.options)

    def stablehlo(self, platforms: Sequence[str] | None = None) -> str:
        """The whole training step as StableHLO text: forward, backward and update of the first program.

        ``platforms`` (``cpu``, ``cuda``, ``rocm``, ``tpu``) need not be here; default: the one that is.
        """
        return exported(self.programs[0].compiled, platforms).mlir_module()

    def values(self) -> dict[str, Any]:
        """The weights and buffers now, as JAX arrays by canonical torch name."""
        self._now()
        return self._state.by_torch_names()[0]

    def moments(self) -> dict[str, dict[str, Any]]:
        """The optimizer's state now, as JAX arrays by canonical torch name and torch's key (``exp_avg``)."""
        self._now()
        held = self._state.by_torch_names()[1]
        return {n: _without_own(leaves) for n, leaves in held.items()}

    def on_host(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """``values()`` and ``moments()`` as numpy. On the CPU they may share the step's memory: copy what is kept, and
        let go of the rest before the next step, which would have to copy instead of writing in place."""
        self._now()
        values, held = self._state.on_host()
        return values, {n: _without_own(leaves) for n, leaves in held.items()}

    def arrays(self) -> Any:
        """Everything the next step would donate or read, as a pytree of JAX arrays (to wait for, to measure)."""
        self._book()
        return self._state.values, self._state.optimizer

    @property
    def certificate(self) -> Certificate | None:
        """The first program's certificate; None before its second step, and without one."""
        return self.certificates[0] if self.programs else None

    def __repr__(self) -> str:
        return shown.line(self)

    def _repr_html_(self) -> str:
        return shown.html(self)

    @property
    def certificates(self) -> tuple[Certificate | None, ...]:
        """One for each of ``programs``; None where it was not made (yet)."""
        return tuple(self._variants.certificates.get(key) for key in self._variants.made)

    @property
    def choice(self) -> Choice:
        """Which form the first program runs in, and why; ``print`` shows what was considered."""
        return self.programs[0].choice

    @property
    def programs(self) -> tuple[Variant, ...]:
        """Every program compiled so far; one per batch layout and train/eval mode."""
        return tuple(self._variants.made.values())

    def _catch_up(self) -> None:
        """Take over what the steps of the group have changed since this one looked."""
        self._book()
        newer = self.sharing.newer()
        if not newer:
            return
        self._make_certificate()  # it compares with the state as its step left it
        for other in newer:
            changed = set(other.weights.tensors) if other.sharing.whole else other._changes()
            names = {theirs: mine for theirs, mine in same_tensors(other, self).items() if theirs in changed}
            self._state.take(other._state, names, optimizer=other.optimizer is self.optimizer)
        self._live = False
        self._guard.behind = self._guard.behind or any(member._guard.behind for member in newer)
        self.sharing.looked()

    def _see(self) -> None:
        """Watch what the module holds now."""
        self._watch = Watch(self.model, self._held)
        seen = [*self.weights.tensors.values(), *tensors_of(self.model)]
        watch(seen, self._guard)
        weakref.finalize(self, release, seen, self._guard).atexit = False

    def _adopt(self, names: Sequence[str]) -> None:
        """Tensors that the loss holds become part of the state, as buffers are."""
        if not names:
            return
        found = {**sources(self.model, self.loss).tensors, **self._variants.numbers}
        # Another tensor may stand where the one of an earlier program stood.
        fresh = [name for name in names if self._held.get(name) is not found[name]]
        if not fresh:
            return
        stacks = self._state.stacks
        self._state.arrange(Stacks())
        for name in fresh:
            self._held[name] = self.weights.tensors[name] = found[name]
            self._state.values[name] = to_jax(found[name])
        self._state.arrange(stacks)
        watch(self._held.values(), self._outside)
        self._watch = Watch(self.model, self._held)

    def _read_outside(self) -> None:
        """Somebody touches what the loss holds while a step of it waits for its certificate."""
        with self._away():
            self._outside.behind = False
            self._make_certificate()

    def _away(self) -> Away:
        """The step's own code runs: nobody else reads or writes."""
        return Away(self._guard, self._outside, self._moments)

    def _read_moments(self) -> None:
        """Somebody reads or writes the live optimizer's state, or a tensor of it that was handed out."""
        if self._moments.off:
            return
        with self._away():
            if self._moments.behind:
                self._answer(optimizer=True)
            known = {id(t) for t, _ in self._held_moments}
            fresh = [t for t in tensors_in(self.optimizer) if id(t) not in known]
            self._held_moments += [(t, t._version) for t in fresh]
            watch(fresh, self._moments)
        self._rewritten = True  # until the next step it may be written, by any means

    def _hook(self) -> None:
        """The optimizer's ``state_dict`` is the step's, and what is loaded into it is taken over."""
        see(self.optimizer, self._read_moments)
        mine = weakref.ref(self)

        def asked(optimizer: Any) -> None:
            step = mine()
            if step is None or step.optimizer is not optimizer or step._guard.off:
                return
            if step._guard.behind or not step._live:
                with step._away():
                    step._answer(optimizer=True)

        def loaded(optimizer: Any) -> None:
            step = mine()
            if step is not None and step.optimizer is optimizer and not step._guard.off:
                step._rewritten = True

        for name, hook in (
            ("register_state_dict_pre_hook", asked),
            ("register_load_state_dict_post_hook", loaded),
        ):
            register = getattr(self.optimizer, name, None)
            if register is not None:
                register(hook)

    def _take_over(self) -> None:
        """What was changed since the last step, outside of it: taken over, as eager would find it."""
        self._take_writes()
        self._take_moments()
        for name, (then, now) in self._around.look().items():
            number = self._moving.moved(name, then, now)
            if number is not None and name in self._held:
                self._state.values[name] = to_jax(number)
                self._watch.renew()

    def _take_writes(self) -> None:
        """Weights that somebody wrote, and what became another module."""
        changes = self._watch.look()
        exposed: set[str] = set()
        if self._guard.exposed or self._outside.exposed:
            names = {id(t): n for n, t in self.weights.tensors.items()}
            exposed = {names[i] for i in (*self._guard.exposed, *self._outside.exposed) if i in names}
        other = changes is not None and bool(changes.other)
        if self._open is not None and not other and self._around.moved:
            self._make_certificate()  # before what moved is what is known
        if changes is not None or exposed:
            written = {self.weights.canonical(n) for n in changes.written} if changes is not None else set()
            if other:
                # it is no longer the module that the step ran on: the next step is certified
                self._open = None
            if written or exposed:
                self._reload(written, exposed, known=not other)
            if other:
                self._rebuild()
        self._guard.exposed.clear()
        self._outside.exposed.clear()

    def _take_moments(self) -> None:
        """The optimizer's state, where somebody wrote it or may have written it."""
        if unseen(self.optimizer):
            see(self.optimizer, self._read_moments)
            self._held_moments, self._rewritten = [], True
        if any(tensor._version != version for tensor, version in self._held_moments):
            if self._moments.behind and not self._rewritten:
                raise refuse(
                    "module-changed",
                    "the optimizer's state was written through something that the step cannot see (an alias that was "
                    f"taken earlier), {self.count} steps behind the step's own",
                    hint="step.sync_to_torch() brings the trained state back and drops that write; write again then",
                )
            self._rewritten = True
        if self._rewritten or self._moments.exposed:
            self._make_certificate()
            averages = self._state.by_torch_names()[1]
            fresh = self._rule.read_state(self.optimizer, dict(self.model.named_parameters()))
            stacks = self._state.stacks
            self._state.arrange(Stacks())
            self._state.optimizer = self._rule.kept(averages, fresh)
            self._state.arrange(stacks)
            self._stepped = bool(self.optimizer.state)
            self._rewritten = False
            self._moments.exposed.clear()
            self._held_moments = [(t, t._version) for t, _ in self._held_moments]

    def _now(self) -> None:
        """The state with everything that was written to the live objects since the last step."""
        with self._away():
            self._take_writes()
            self._take_moments()
            self._catch_up()

    def _reload(self, written: set[str], exposed: set[str], *, known: bool) -> None:
        """Tensors that somebody wrote, or may have written. ``known``: what the module holds now is what the step
        knows; not where it has become another one, which may be refused, and then again by the next call."""
        self._catch_up()
        self._refuse_hidden(written)
        self._make_certificate()
        stacks = self._state.stacks
        self._state.arrange(Stacks())
        for name in sorted(written | exposed):
            self._state.values[name] = to_jax(self.weights.tensors[name])
        self._state.arrange(stacks)
        if known:
            self._watch.renew()
        if (written | exposed) - self._held.keys():
            self.sharing.loaded()

    def _refuse_hidden(self, written: set[str]) -> None:
        """What was written while the live values are older than the step's: nothing saw it, and it fits no value."""
        hidden = written - self._held.keys()
        if self._guard.behind and hidden:
            raise refuse(
                "module-changed",
                f"{min(hidden)} was written after compile through something that the step cannot see (an alias or a "
                f"numpy view that was taken earlier), {self.count} steps behind the step's own values",
                hint="step.sync_to_torch() brings the trained values back and drops that write; write again after it",
            )

    def _rebuild(self) -> None:
        """The module is another one (a layer was frozen, a part replaced): the trained values go into it, and the
        step starts from it anew. Programs are captured again; nothing of the training is lost."""
        self._catch_up()
        if self._guard.behind or not self._live:
            self._write_back(optimizer=True)
        # Everything that may be refused comes before anything is given up: the next call then says it again.
        found, rule = weights(self.model), self._traced()
        averages, count = self._state.by_torch_names()[1], self.count
        self.weights, self._held = found, {}
        self._follow(rule)
        self._see()
        self._load()
        self._state.optimizer = self._rule.kept(averages, self._state.optimizer)
        self.count = count
        self._variants.start_anew()
        self.sharing.loaded()

    def _renew(self) -> None:
        """What the live module holds now is known to every step of the group."""
        for step in (self, *self.sharing.others):
            step._watch.renew()

    def _changes(self) -> set[str]:
        """torch's names of what the programs of this step change: the parameters that they train, and buffers."""
        programs = [variant.compiled.program for variant in self.programs]
        return {m for p in programs for n in (*p.connected, *p.written) for m in p.members(n)}

    def _load(self, given: Mapping[str, Any] | None = None) -> None:
        """State from the live module and optimizer; ``given`` (by name) comes before the module's own values."""
        given = given or {}
        values = {}
        meta = any(t.is_meta for t in self.weights.tensors.values())
        weights: Any = self._source
        if meta and weights is None:  # used up: an initialisation keeps nothing
            weights = source(self.model, self.optimizer, self.options.weights, self.options.seed)
        self._source = None
        for name, live in self.weights.tensors.items():
            if name in given:
                values[name] = to_jax(torch.as_tensor(given[name]).to(live.dtype))
            else:
                values[name] = to_jax(live if not live.is_meta else weights(name))
        self._live, self._stepped = not meta, bool(self.optimizer.state)
        if self.optimizer.state:
            optimizer = self._rule.read_state(self.optimizer, dict(self.model.named_parameters()))
        else:
            optimizer = self._births.at(self._hyper())
        self._state = State(values, optimizer)

    def _follow(self, rule: Update) -> None:
        """The optimizer as a rule, and the program that makes its first state."""
        self._rule, self._births = rule, Births(rule.init, frozenset(rule.programs))

    def _traced(self) -> Update:
        options = self.options
        return Update(
            trace(self.optimizer, self.model.named_parameters()),
            clip_norm=options.clip_norm,
            clip_value=options.clip_value,
            ema=options.ema,
        )

    def _hyper(self) -> Any:
        try:
            return self._rule.hyper(self.optimizer)
        except Stale:
            # a group changed more than its numbers: another rule, so every program is compiled anew
            self.sync_to_torch()
            averages = self._state.by_torch_names()[1]
            self._follow(self._traced())
            self._load()
            self._state.optimizer = self._rule.kept(averages, self._state.optimizer)
            self._variants.forget()
            return self._rule.hyper(self.optimizer)

    # -- programs ---------------------------------------------------------------------------------------------

    def _variant_of(self, placed: Placed, hyper: Any) -> tuple[Variant, Placed]:
        """The program for this batch, and the batch as that takes it: a Python float that comes with a second value is
        an input from then on."""
        floats = any(type(value) is float for _, value in placed.layout.static)
        if not floats or self.options.accumulate > 1 or self._float_inputs is False:
            return self._variant(placed, hyper), placed
        if not self._float_inputs:
            mine = placed.layout.key
            others = [key for key, _ in self._variants.made if key != mine]
            if not any(but_floats(key) == but_floats(mine) for key in others):
                return self._variant(placed, hyper), placed
        try:
            numbered = with_numbers(placed)
            found = self._variant(numbered, hyper), numbered
        except Exception:
            if self._float_inputs:
                raise
            self._float_inputs = False
            self._moving.warn("a number in the batch changes between steps and decides more than a product")
            return self._variant(placed, hyper), placed
        self._float_inputs = True
        return found

    def _variant(self, placed: Placed, hyper: Any) -> Variant:
        """The program for this batch, compiled now if it is a new one."""
        self._moving.before_step(placed)
        if self._moving.counted and (placed.layout.key, self._mode) not in self._variants.made:
            self._moving.before_capture(placed)
        mode, known = self._mode, len(self._variants.made)
        try:
            found = self._variants.find(placed, mode, self._rule, hyper, self.weights, self._state)
        except Exception:
            fresh = [name for name in self._variants.numbers if name not in self._held]
            if not fresh:
                raise
            for name in fresh:
                self._moving.no_input(name)
            self._moving.warn(f"{', '.join(fresh)} changes between steps and decides more than a product")
            return self._variant(placed, hyper)
        if len(self._variants.made) != known:
            self._around.captured(found.captured.ran)
        return found

    @property
    def _mode(self) -> tuple[Any, ...]:
        """What a program depends on besides the batch."""
        numbers = tuple(sorted(self._variants.numbers))
        return (self._watch.mode, self._around.token, ambient(), numbers)

    def _loss_aval(self, variant: Variant) -> Aval:
        graph = variant.compiled.program.graph
        value = next(o.value for o in graph.outputs if o.kind == "loss")
        assert isinstance(value, Ref)
        for item in (*graph.nodes, *graph.inputs):
            if item.id == value.id:
                out: Any = getattr(item, "aval", None) or getattr(item, "out", None)
                return out if isinstance(out, Aval) else out[value.index]
        raise AssertionError("the loss is not a value of the graph")

    # -- certificates -----------------------------------------------------------------------------------------

    def settled(self) -> Certificate:
        """The certificate of the program that ran last, made now if it is still open; raises nothing."""
        self._make_certificate()
        return next(reversed(self._variants.certificates.values()))

    def _settle(self) -> None:
        """Run the certificate of the last step, if it is still open. A failed one goes on raising."""
        self._make_certificate()
        for certificate in self._variants.certificates.values():
            if not certificate.ok:
                self._told = True
                raise refusal(certificate)

    def _make_certificate(self) -> None:
        self._book()
        first, self._open = self._open, None
        if first is None or first.loss is None:
            return
        if first.before is None and first.cut is None and self._watch.changed:
            return  # the live module no longer holds the state before that step: the next one is certified
        told = f"certificate of the step of {type(self.model).__name__}"
        with self._away(), self._around.as_it_was() as whole:
            if not whole:
                return  # Python is not as that step found it: the next one is certified
            with telling(told, self.options.quiet), phase("certify"):
                certificate = self._certifier.settle(first, self._state, self._rule)
            if not certificate.ok:
                self._roll_back(first)
        self._variants.certify(first.variant, certificate)

    def _roll_back(self, first: Open) -> None:
        """The state is that of before a step that is not trusted."""
        self._told, self._kept_nothing = False, first.cut is not None
        if self._kept_nothing:
            return
        self._state = self._certifier.state_before(first, self._state, self._rule)
        self.count = first.count
        self._live = first.before is None
        self._guard.behind = self._moments.behind = not self._live
        self.sharing.loaded()

    def _host_value(self, name: str) -> torch.Tensor:
        return from_jax(self._state.value(name))

    def _before(self) -> Before | None:
        """The state on the host; None while the live module and optimizer hold it themselves."""
        return None if self._live else Before.of(self._state, self._rule, self.count > 0 or self._stepped)


def _without_own(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the step keeps beside an optimizer's state for itself (whether the first step was taken, an
    average)."""
    return {k: v for k, v in leaves.items() if not k.startswith("#")}
