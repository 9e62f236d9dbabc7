"""``Step``: the compiled training step with its state on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from detente.bridge import checkpoint
from detente.bridge.birth import Births
from detente.bridge.certificate import Certificate, refusal
from detente.bridge.certifier import Before, Certifier, Open
from detente.bridge.choose.choice import Choice
from detente.bridge.eager import eager_step
from detente.bridge.examine import check
from detente.bridge.graph import Aval, Ref
from detente.bridge.meta import Source, fill, on_meta, source, stand_ins
from detente.bridge.optim.hyper import Stale
from detente.bridge.optim.rule import trace
from detente.bridge.optim.update import Update
from detente.bridge.pending import Pending
from detente.bridge.place import Placed, from_jax, place, to_jax
from detente.bridge.program import exported
from detente.bridge.refusal import Refused, refuse
from detente.bridge.sharing import Sharing, same_tensors
from detente.bridge.state import State
from detente.bridge.telling import telling
from detente.bridge.variants import Options, Variant, Variants
from detente.bridge.watch import Watch

Loss = Callable[[Any, Any], Any]


class Step:
    """A training step that runs as one XLA executable. Made by ``detente.compile``.

    The state (weights, buffers, optimizer) lives on JAX's device; the live module and optimizer keep their
    values of the last ``sync_to_torch``. Not thread-safe.
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
        self._certifier = Certifier(model, loss, optimizer, options, self._gradients)
        placed = example_batch if isinstance(example_batch, Placed) else place(example_batch)
        self._variants = Variants(model, loss, optimizer, options)
        self._source: Source | None = None
        if on_meta(model):
            self._source = source(model, optimizer, options.weights, options.seed)
        elif options.weights is not None:
            raise refuse("meta", "weights= is for a module on the meta device, and this one has values")
        try:
            self._trace()
            self.weights = self._variants.weights(placed)
        except Refused as refused:
            with stand_ins(model) if self._source is not None else nullcontext():
                found = check(model, loss, self._variants.example(placed), optimizer)
            known = {reason.what for reason in found}
            raise Refused([*found, *(r for r in refused.reasons if r.what not in known)]) from None
        self._watch = Watch(model)
        self._load()
        if share is not None and not same_tensors(self, share):
            raise ValueError(
                "share= is a step of another module: the two have no parameter or buffer in common"
            )
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
        self._watch.check()
        self._settle()
        self._catch_up()
        placed = batch if isinstance(batch, Placed) else self.place(batch)
        hyper = self._hyper()
        variant = self._variant(placed, hyper)
        if self.options.certificate != "none" and self._variants.certificate(variant) is None:
            mode, value = self._watch.mode, None if self._live else self._host_value
            self._open = self._certifier.open(
                variant, placed.original, placed.arrays, self.count, hyper, mode, self._before, value
            )
        return self._run(variant, placed.arrays, hyper)

    def _run(self, variant: Variant, arrays: list[Any], hyper: Any) -> Any:
        seed, count = np.uint32(self.options.seed), np.uint32(self.count)
        state = self._state
        state.arrange(variant.stacks)
        changed, state.optimizer, loss, aux, word = variant.compiled(
            state.values, state.optimizer, arrays, hyper, seed, count
        )
        state.values.update(changed)
        if self._open is not None:
            self._open.loss = loss
        self._live = False
        self.sharing.ran()
        number, self.count = self.count, self.count + 1
        value = Pending.of(self._loss_aval(variant), lambda: self._read(variant, number, loss, word), loss)
        layout = variant.captured.aux
        if layout is None:
            return value
        lead = () if self.options.accumulate == 1 else (self.options.accumulate,)
        avals = [replace(a, shape=(*lead, *a.shape)) for a in layout.avals]
        leaves = [Pending.of(a, lambda x=x: x, x) for a, x in zip(avals, aux, strict=True)]
        return value, layout.build(leaves)

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
        """Set weights and buffers (torch or numpy arrays by name; default: the live module's) and forget the
        optimizer's state, without compiling anything. The count of steps, and so the random numbers, start
        anew."""
        self._settle()
        if tensors is None:
            self._watch.renew()
        stacks = self._state.stacks
        self._load(tensors or {})
        self._live = self._live and not tensors
        self._state.arrange(stacks)
        self.count = 0
        self.sharing.loaded()

    def eager(self, batch: Any) -> Any:
        """The same step in torch eager, on the live module, with the compiled step's random numbers: a
        breakpoint works anywhere. The state moves to the module, steps there, and is read back."""
        from detente.bridge.random import twin

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
        self._watch.check()
        self._catch_up()
        placed = batch if isinstance(batch, Placed) else self.place(batch)
        variant = self._variant(placed, self._hyper())
        self._state.arrange(variant.stacks)
        return self._gradients(variant, self._state.values, placed.arrays, self.count)

    def _gradients(self, variant: Variant, values: Any, arrays: list[Any], count: int) -> Any:
        _, found = variant.compiled.gradients(values, arrays, np.uint32(self.options.seed), np.uint32(count))
        none: dict[str, torch.Tensor | None] = dict.fromkeys(sorted(self.weights.trainable))
        return none | {n: from_jax(g) for n, g in variant.stacks.split(found).items()}

    # -- state ------------------------------------------------------------------------------------------------

    def sync_to_torch(self) -> None:
        """Write weights, buffers and optimizer state into the live module and optimizer, in place. Parameters that
        were on the meta device get memory on the CPU, and stay the same objects."""
        self._watch.check()
        self._settle()
        self._catch_up()
        for other in self.sharing.others:  # before the live module moves on under them
            other._watch.check()
            other._make_certificate()
        with torch.no_grad():
            values, optimizer = self._state.by_torch_names()
            for name, array in values.items():
                fill(self.weights.tensors[name], from_jax(array))
        self._live = True
        self._rule.write_state(self.optimizer, optimizer, dict(self.model.named_parameters()))
        self._renew()

    def load_from_torch(self) -> None:
        """Take the live module's and optimizer's values as the state (after ``load_state_dict``, or an edit)."""
        self._settle()
        for other in self.sharing.others:
            other._make_certificate()
        self._renew()
        self._load()
        self.sharing.loaded()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The weights and persistent buffers now, under torch's ``state_dict`` names, tied names included."""
        self._catch_up()
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
        self._settle()
        self._catch_up()
        checkpoint.save(path, self._state, dict(self.weights.aliases), self.count, self.options.seed)

    def load(self, path: str | Path) -> None:
        """Go on exactly where ``save`` was called: the next steps are bitwise those of the uninterrupted run (the
        numbers of ``param_groups`` are the live optimizer's). Raises Refused for a file that does not fit."""
        self._settle()
        self._state, self.count, seed = checkpoint.load(path, self._state)
        self._live, self._stepped = False, True
        self.sharing.loaded()
        self.options = replace(self.options, seed=seed)

    def stablehlo(self, platforms: Sequence[str] | None = None) -> str:
        """The whole training step as StableHLO text: forward, backward and update of the first program.

        ``platforms`` (``cpu``, ``cuda``, ``rocm``, ``tpu``) need not be here; default: the one that is.
        """
        return exported(self.programs[0].compiled, platforms).mlir_module()

    def values(self) -> dict[str, Any]:
        """The weights and buffers now, as JAX arrays by canonical torch name."""
        self._catch_up()
        return self._state.by_torch_names()[0]

    def moments(self) -> dict[str, dict[str, Any]]:
        """The optimizer's state now, as JAX arrays by canonical torch name and torch's key (``exp_avg``)."""
        self._catch_up()
        held = self._state.by_torch_names()[1]
        return {n: _without_own(leaves) for n, leaves in held.items()}

    def on_host(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """``values()`` and ``moments()`` as numpy. On the CPU they may share the step's memory: copy what is kept, and
        let go of the rest before the next step, which would have to copy instead of writing in place."""
        self._catch_up()
        values, held = self._state.on_host()
        return values, {n: _without_own(leaves) for n, leaves in held.items()}

    def arrays(self) -> Any:
        """Everything the next step would donate or read, as a pytree of JAX arrays (to wait for, to measure)."""
        return self._state.values, self._state.optimizer

    @property
    def certificate(self) -> Certificate | None:
        """The first program's certificate; None before its second step, and without one."""
        return self.certificates[0] if self.programs else None

    def __repr__(self) -> str:
        proved = "no certificate yet" if self.certificate is None else repr(self.certificate)
        return f"<Step of {type(self.model).__name__}: {self.count} taken, {list(self.programs)}, {proved}>"

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
        newer = self.sharing.newer()
        if not newer:
            return
        self._make_certificate()  # it compares with the state as its step left it
        for other in newer:
            changed = set(other.weights.tensors) if other.sharing.whole else other._changes()
            names = {theirs: mine for theirs, mine in same_tensors(other, self).items() if theirs in changed}
            self._state.take(other._state, names, optimizer=other.optimizer is self.optimizer)
        self._live = False
        self.sharing.looked()

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

    def _trace(self) -> None:
        """The optimizer as a rule, and the program that makes its first state."""
        options = self.options
        rule = Update(
            trace(self.optimizer, self.model.named_parameters()),
            clip_norm=options.clip_norm,
            clip_value=options.clip_value,
            ema=options.ema,
        )
        self._rule, self._births = rule, Births(rule.init, frozenset(rule.programs))

    def _hyper(self) -> Any:
        try:
            return self._rule.hyper(self.optimizer)
        except Stale:
            # a group changed more than its numbers: another rule, so every program is compiled anew
            self.sync_to_torch()
            averages = self._state.by_torch_names()[1]
            self._trace()
            self._load()
            self._state.optimizer = self._rule.kept(averages, self._state.optimizer)
            self._variants.forget()
            return self._rule.hyper(self.optimizer)

    # -- programs ---------------------------------------------------------------------------------------------

    def _variant(self, placed: Placed, hyper: Any) -> Variant:
        """The program for this batch, compiled now if it is a new one."""
        return self._variants.find(placed, self._watch.mode, self._rule, hyper, self.weights, self._state)

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
                raise refusal(certificate)

    def _make_certificate(self) -> None:
        first, self._open = self._open, None
        if first is None or first.loss is None:
            return
        if first.before is None and first.cut is None and self._watch.changed:
            return  # the live module no longer holds the state before that step: the next one is certified
        with telling("certificate: the first step again in eager PyTorch", self.options.progress):
            certificate = self._certifier.settle(first, self._state, self._rule)
        self._variants.certify(first.variant, certificate)

    def _host_value(self, name: str) -> torch.Tensor:
        return from_jax(self._state.value(name))

    def _before(self) -> Before | None:
        """The state on the host; None while the live module and optimizer hold it themselves."""
        return None if self._live else Before.of(self._state, self._rule, self.count > 0 or self._stepped)


def _without_own(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the step keeps beside an optimizer's state for itself (whether the first step was taken, an
    average)."""
    return {k: v for k, v in leaves.items() if not k.startswith("#")}
