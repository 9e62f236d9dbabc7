"""Between the state and the live module and optimizer: what was written to one goes to the other."""

from __future__ import annotations

import contextlib
import operator
import sys
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import jax
import torch
from torch.utils.hooks import RemovableHandle

from detente.bridge.capture.functions import unkept
from detente.bridge.capture.markers import capturing
from detente.bridge.capture.weights import weights
from detente.bridge.live.forks import in_child
from detente.bridge.live.guard import follow_strangers, tensors_of, watch
from detente.bridge.live.inside import INSIDE, leave, runs_here
from detente.bridge.live.optimizer_reads import noting, reads
from detente.bridge.live.optimizer_state import see, tensors_in, unheld, unseen
from detente.bridge.live.ran import Names
from detente.bridge.live.walk import sources
from detente.bridge.live.watch import Changes, Watch
from detente.bridge.optim import accept
from detente.bridge.optim.accept import own_step
from detente.bridge.optim.first import TorchsStep
from detente.bridge.optim.hyper import Stale
from detente.bridge.optim.rule import trace
from detente.bridge.optim.update import Update
from detente.bridge.private import (
    in_transform,
    outside_of_traces,
    outside_of_transforms,
    plainly,
    without_functions,
    without_modes,
)
from detente.bridge.refusal import Refused, refuse
from detente.bridge.roll.stacks import Stacks
from detente.bridge.state.birth import Births
from detente.bridge.state.meta import fill, source
from detente.bridge.state.place import Placed, from_jax, to_jax
from detente.bridge.state.state import State
from detente.bridge.step.attending import Attending
from detente.bridge.step.rehearse import rehearsed
from detente.bridge.step.sharing import Sharing, same_tensors


class Exchange(Attending):
    """The live objects are filled where they are behind, and what somebody changed there is taken over."""

    def sync_to_torch(self) -> None:
        """Write weights, buffers and optimizer state into the live module and optimizer, in place. Parameters that
        were on the meta device get memory on the CPU, and stay the same objects. After a failed certificate (which is
        raised once) they are those of before its step."""
        with self._away():
            self._trusted()
            self._write_back(optimizer=True)

    def load_from_torch(self) -> None:
        """Take the live module's and optimizer's values as the state, after an edit that the step could not see (an
        alias, C). Edits that it sees are taken over by themselves, and nothing that was trained is dropped."""
        with self._away():
            self._trusted()
            self._none_hidden()
            self._write_back(optimizer=True)
            for other in self.sharing.others:
                other._make_certificate()
            changes = self._watch.look()
            if changes is not None and changes.other:
                self._open = None
                self._rebuild()
            else:
                averages = self._state.by_torch_names()[1]
                self._wrote(self.weights.tensors.values())
                self._load()
                self._state.optimizer = self._rule.kept(averages, self._state.optimizer)
            self._guard.behind = False
            self._guard.exposed.clear()
            self.sharing.loaded()

    def _write_back(self, *, optimizer: bool) -> None:
        """The state into the live module; ``optimizer``: and into the live optimizer. Works after every refusal."""
        self._catch_up()
        for other in self.sharing.others:  # before the live module moves on under them
            other._make_certificate()
        # Where the live objects are not behind they hold what somebody may have written since: nothing is put there.
        filled = self._guard.behind or (optimizer and any(t.is_meta for t in self.weights.tensors.values()))
        mine = {name: live for name, live in self.weights.tensors.items() if name not in self._held}
        if filled:
            born = [live for live in mine.values() if live.is_meta]
            with torch.no_grad():
                for name, live in mine.items():
                    fill(live, plainly(self._meeting.merged, live, from_jax(self._state.value(name))))
            self._attend(born)
        # What was loaded into the optimizer since, or may have been written to it, is newer than what was trained.
        if optimizer and not self._rewritten and (self._moments.behind or not self._live):
            state = self._state.by_torch_names()[1]
            # The tensors that were trained, also where the module has others by now: a new one has no moments.
            self._rule.write_state(self.optimizer, state, self.weights.tensors)  # type: ignore[arg-type]
            # A wrapper's table is that of the optimizer inside: it stands where ours was now, and nobody wrote to it.
            see(self.optimizer, self._read_moments)
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
        self._wrote(mine.values())
        for stranger in self.sharing.apart:
            stranger._hear(mine.values())

    def _hear(self, tensors: Iterable[torch.Tensor]) -> None:
        """A step that this one shares nothing with has written its values to these: no news for the weights, of which
        each has its own, and news for what the loss holds."""
        held = {id(tensor) for tensor in self._held.values()}
        self._watch.wrote(tensor for tensor in tensors if id(tensor) not in held)

    def __del__(self) -> None:
        """The step goes, and what it trained stays, as eager leaves it: a function that trains and returns its model
        has let the step go before anybody reads the weights. Weights on the meta device stay without memory.

        How it can fail: the collector runs anywhere, also while somebody traces; so this copies, and computes nothing.
        A certificate that waited is not made any more."""
        if not sys.is_finalizing() and not in_child() and "sharing" in vars(self):
            leave(self._leave)

    def _leave(self) -> None:
        meta = any(t.is_meta for t in self.weights.tensors.values())
        if meta or self.sharing.overtaken() or self._kept_nothing or (self._live and self._ran is None):
            return
        for step in (self, *self.sharing.others):
            step._open = None
        untraced = outside_of_transforms() if in_transform() else nullcontext()
        torch_alone = (untraced, outside_of_traces(), without_modes(), without_functions())
        with self._away(), jax.ensure_compile_time_eval(), ExitStack() as aside:
            for one in torch_alone:
                aside.enter_context(one)
            try:
                self._none_hidden()
                self._write_back(optimizer=True)
            except Refused as refused:
                warnings.warn(
                    f"a step that nobody holds any more could not write back what it trained: {refused}",
                    stacklevel=2,
                )

    def _before_fork(self) -> None:
        """A process is about to be forked: its copy of the live objects has the values of now. What is refused here is
        said by the next call, and the child is told that its values are older."""
        meta = any(t.is_meta for t in self.weights.tensors.values())
        behind = self._guard.behind or self._moments.behind
        if not behind or meta or self.sharing.overtaken() or runs_here(INSIDE) or capturing() is not None:
            return
        with self._away(), contextlib.suppress(Refused):
            self._make_certificate()
            if not self._kept_nothing:
                self._none_hidden()
                self._write_back(optimizer=True)

    def _live_values(self) -> None:
        """A capture asks the live module: it must answer with the values of now. One on the meta device has none."""
        if self._guard.behind and not any(t.is_meta for t in self.weights.tensors.values()):
            self._write_back(optimizer=False)

    def _read_live(self) -> None:
        """Somebody reads the live module, and it holds older values than this step. Of steps that share nothing the one
        that ran last answers, and has answered."""
        if self.sharing.overtaken():
            return
        with self._away():
            self._answer(optimizer=False)

    def _answer(self, *, optimizer: bool) -> None:
        """The trained values for somebody who reads; not those of a step that is not trusted."""
        self._none_hidden()
        if self._tell():
            self._write_back(optimizer=optimizer)

    def _show_unasked(self) -> None:
        """Somebody reads the live tensors without a question, and may write them (TorchScript in C, an array of numpy):
        they are filled behind every step, and what stands there before the next one is taken."""
        moments = self._moments.unasked
        self._answer(optimizer=moments)
        self._guard.exposed |= {id(tensor) for tensor in self.weights.tensors.values()}
        self._rewritten = self._rewritten or moments

    def _show_loaded(self) -> None:
        """The state is another one at once: who reads without a question is shown it, as by eager's own loading."""
        self._meeting.forget()
        if self._guard.unasked or self._moments.unasked:
            with self._away():
                self._show_unasked()

    def _none_hidden(self) -> None:
        """Before the live values are filled: nothing was written there that this would drop."""
        changes = self._watch.look() if self._guard.behind else None
        if changes is not None:
            self._refuse_hidden({self.weights.canonical(n) for n in changes.written})

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
            theirs = other.optimizer is self.optimizer
            self._state.take(other._state, names, optimizer=theirs)
            self._told_values = True
            self._rewritten = self._rewritten and not theirs
        self._live = False
        self._guard.behind = self._guard.behind or any(member._guard.behind for member in newer)
        self.sharing.looked()

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
        self._ask_of_held()
        self._watch = Watch(self.model, self._held)
        Sharing.held_anew()

    def _fill_held(self) -> None:
        """A certificate computes in eager with what the loss holds, as it stands there: the values of now of those that
        another step of the group trains (the other network of a GAN)."""
        held = {id(tensor) for tensor in self._held.values()}
        for other in self.sharing.others:
            if other._guard.behind and any(id(tensor) in held for tensor in other.weights.tensors.values()):
                other._write_back(optimizer=False)

    def _read_outside(self) -> None:
        """Somebody touches what the loss holds while a step of it waits for its certificate."""
        with self._away():
            self._outside.behind = False
            self._make_certificate()

    def _read_moments(self) -> None:
        """Somebody reads or writes the live optimizer's state, or a tensor of it that was handed out."""
        if self._moments.off:
            return
        with self._away():
            if self._moments.behind:
                self._answer(optimizer=True)
            self._catch_up()
            known = {id(t) for t, _ in self._held_moments}
            fresh = [t for t in tensors_in(self.optimizer) if id(t) not in known]
            self._held_moments += [(t, t._version) for t in fresh]
            watch(fresh, self._moments)
            # Until the next step it may be written, by any means. Said in here: said behind a step of another thread's,
            # it would bring back what the state was before that.
            self._rewritten = True

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
                with step._away():
                    step._catch_up()
                step._rewritten = True

        for name, hook in (
            ("register_state_dict_pre_hook", asked),
            ("register_load_state_dict_post_hook", loaded),
        ):
            register = getattr(self.optimizer, name, None)
            if register is not None and "_optimizer_state_dict_pre_hooks" in vars(self.optimizer):
                register(hook)

    def _take_over(self) -> None:
        """What was changed since the last step, outside of it: taken over, as eager would find it."""
        self._refuse_hooks()
        self._take_writes()
        self._take_moments()
        for name, (then, now) in self._around.look().items():
            number = self._moving.moved(name, then, now)
            if number is not None and name in self._held:
                self._state.values[name] = to_jax(number)
                self._watch.wrote((number,))

    def _zero_grad(self) -> None:
        """A step begins as a loop does, without what somebody's ``backward()`` has left: it leaves no gradients, and
        who calls ``optimizer.step()`` behind it finds none. Asked only where somebody may have made some."""
        if self._guard.graphs or self._guard.in_c or self._begins:
            self._begins = False
            plainly(self._clear)

    def _clear(self) -> None:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = None

    def _refuse_hooks(self) -> None:
        """What was registered since the last step and no program calls: on a parameter, or around the optimizer's step.
        Torch counts every hook that is registered anywhere."""
        registered, step = RemovableHandle.next_id, own_step(self.optimizer)
        if registered != self._registered:
            reasons = unkept(self.model)
            if reasons:
                raise Refused(reasons)
            accept.check(self.optimizer)
            self._registered = registered
        if step is not self._steps_by:
            raise refuse(
                "optimizer",
                f"{type(self.optimizer).__name__}.step was replaced, and programs update by the one before",
                hint="compile anew with the optimizer as it is now, or do what is new before and after step(batch)",
            )

    def _borrow(self) -> None:
        """What the loss holds, and another step trains, is written back by that: a write like any other."""
        for lender in self.sharing.lenders():
            step = lender()
            if step is not None and (step._guard.behind or step._ran is not None):
                self._make_certificate()  # of a step that ran with the values of before
                with step._away():
                    step._answer(optimizer=False)

    def _take_writes(self) -> None:
        """Weights that somebody wrote, and what became another module."""
        self._borrow()
        changes = self._watch.look()
        if self._guard.swapped:
            changes = Changes(changes.written if changes is not None else (), ("a tensor was swapped",))
            self._guard.swapped = False
        exposed: set[str] = set()
        if self._guard.exposed or self._outside.exposed:
            exposed = self._exposed()
            plainly(follow_strangers, [self.weights.tensors[name] for name in exposed])
            changes = self._rebound(changes)
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

    def _exposed(self) -> set[str]:
        """Names of what may have been written without a version; an object of a tied weight is that weight."""
        named = dict(zip(self._watch.names, plainly(self._watch.ids), strict=True))
        names = {i: self.weights.canonical(n) for n, i in named.items()}
        names |= {id(t): n for n, t in self.weights.tensors.items()}
        return {names[i] for i in (*self._guard.exposed, *self._outside.exposed) if i in names}

    def _rebound(self, changes: Changes | None) -> Changes | None:
        """With what was given other memory through ``.data``: of another size it is another program's, two that share
        it are refused as they are before training, and what binds several is asked about no more."""
        where = plainly(self._watch.memory)
        if where == self._memory or (changes is not None and changes.other):
            return changes
        self._memory = where
        if sizes := self._watch.resized():
            return Changes(changes.written if changes is not None else (), tuple(sizes))
        weights(self.model)
        self._ask_nobody(tensors_of(self.model))
        return changes

    def _take_moments(self) -> None:
        """The optimizer's state, where somebody wrote it or may have written it."""
        self._catch_up()  # before it: what others trained since is newer than what was read earlier
        if unseen(self.optimizer):
            see(self.optimizer, self._read_moments)
            self._held_moments, self._rewritten = [], True
        if self._held_moments and plainly(self._moments_written):
            if self._moments.behind and not self._rewritten:
                raise refuse(
                    "module-changed",
                    "the optimizer's state was written through something that the step cannot see (an alias that was "
                    f"taken earlier), {self.count} steps behind the step's own",
                    hint="step.sync_to_torch() brings the trained state back and drops that write; write again then",
                )
            self._rewritten = True
        if self._rewritten or self._moments.exposed:
            exposed = self._moments.exposed
            plainly(follow_strangers, [t for t, _ in self._held_moments if id(t) in exposed])
            self._make_certificate()
            averages = self._state.by_torch_names()[1]
            fresh = self._torchs_state()
            stacks = self._state.stacks
            self._state.arrange(Stacks())
            self._state.optimizer = self._rule.kept(averages, fresh)
            self._state.arrange(stacks)
            self._stepped = bool(self.optimizer.state)
            self._rewritten = False
            self._moments.exposed.clear()
            nobodys = plainly(unheld, self.optimizer, self._held_moments)
            self._held_moments = [(t, t._version) for t, _ in self._held_moments if id(t) not in nobodys]

    def _moments_written(self) -> bool:
        return any([tensor._version != version for tensor, version in self._held_moments])

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
            self._state.values[name] = to_jax(plainly(self._meeting.begun, self.weights.tensors[name]))
        self._state.arrange(stacks)
        self._told_values = self._told_values or bool((written | exposed) & self._variants.assumed.keys())
        if known:
            self._watch.wrote(self.weights.tensors[name] for name in written)
            # The group has it from this step, and by then the live module may be behind it.
            self._wrote(self.weights.tensors[name] for name in written - self._held.keys())
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
        still = rule.left_behind(averages, found.tensors)
        if still:
            raise refuse(
                "module-changed",
                f"{still[0]} was frozen, or left the optimizer, while ema= keeps its average, which AveragedModel "
                "would go on moving towards the weight",
                hint="a group of its own with lr=0 and weight_decay=0 holds it still instead",
            )
        self.weights, self._held = found, {}
        Sharing.held_anew()
        self._follow(rule)
        self._see()
        self._load()
        self._state.optimizer = self._rule.kept(averages, self._state.optimizer)
        self.count = count
        self._variants.start_anew()
        self.sharing.loaded()

    def _wrote(self, tensors: Iterable[torch.Tensor]) -> None:
        """What these hold now is known to every step of the group; a write to another one, a layer that was frozen or
        replaced is not, whoever reads the module meanwhile."""
        tensors = list(tensors)
        for step in (self, *self.sharing.others):
            step._watch.wrote(tensors)

    def _changes(self) -> set[str]:
        """torch's names of what the programs of this step change: the parameters that they train, and buffers."""
        programs = [variant.compiled.program for variant in self.programs]
        return {m for p in programs for n in (*p.connected, *p.written) for m in p.members(n)}

    def _load(self, given: Mapping[str, torch.Tensor] | None = None) -> None:
        """State from the live module and optimizer; ``given`` (by ``given.named``) comes before the module's."""
        given = given or {}
        values = {}
        meta = any(t.is_meta for t in self.weights.tensors.values())
        weights: Any = self._source
        if meta and weights is None:  # used up: an initialisation keeps nothing
            weights = source(self.model, self.optimizer, self.options.weights, self.options.seed)
        self._source = None
        for name, live in self.weights.tensors.items():
            if name in given:
                values[name] = to_jax(given[name])
            else:
                values[name] = to_jax(live if not live.is_meta else weights(name))
        self._live, self._stepped = not meta, bool(self.optimizer.state)
        if self.optimizer.state or self._rule.together:
            optimizer = self._torchs_state()
        else:
            optimizer = self._births.at(self._hyper())
        self._state, self._told_values = State(values, optimizer), True

    def _torchs_state(self) -> Any:
        """What the live optimizer holds, as another rule's where it holds other things than this one's. A dictionary
        that was loaded into it shares these tensors: who reads them there gets what was trained, as in eager."""
        held = list(tensors_in(self.optimizer))
        watch(held, self._moments)
        self._ask_of_moments(held)
        try:
            return self._rule.read_state(self.optimizer, dict(self.model.named_parameters()))
        except Stale:
            self._turn()
            return self._rule.read_state(self.optimizer, dict(self.model.named_parameters()))

    def _turn(self) -> None:
        """The rule of what the live optimizer does next: one of before, or traced. A step that no graph can make, of an
        optimizer that is traced as a whole, is torch's."""
        moved = self._reads.moved
        known = None if moved else self._variants.rules(self._fits)
        if known is None:
            try:
                known = self._traced()
            except Refused as why:
                if not self._rule.together or self._rule.once:
                    raise
                self._moving.warn(f"torch takes step {self.count} itself: {why.reasons[0].what}")
                known = self._around_rule(TorchsStep(type(self.optimizer).__name__))
        if moved:
            self._told_reads += 1
            if self._told_reads == 2:
                self._moving.warn(f"what the step of {self._rule.name} reads in Python changes between steps")
        self._variants.turn(self._rule)
        if moved:
            self._variants.parked.clear()  # those are of what it said before
        self._follow(known)
        self._variants.turned(known)

    def _follow(self, rule: Update) -> None:
        """The optimizer as a rule, and the program that makes its first state."""
        self._registered, self._steps_by = RemovableHandle.next_id, own_step(self.optimizer)
        self._reads = reads(self.model, self.optimizer, self._rule_ran, attributes=not rule.together)
        self._rule, self._births = rule, Births(rule.init, frozenset(rule.programs))
        self._grouped = [list(group["params"]) for group in self.optimizer.param_groups]

    def _begun(self, placed: Placed) -> Update:
        """The rule that a step begins with: that of a first step that torch takes, where no other can be made."""
        try:
            return self._traced()
        except Refused as why:
            parts = self.options.accumulate
            return self._around_rule(
                rehearsed(self.model, self.loss, self.optimizer, placed.to_capture, parts, why)
            )

    def _traced(self) -> Update:
        self._rule_ran = Names()
        with noting(self.model, self.optimizer) as ran:
            rule = trace(self.optimizer, self.model.named_parameters())
        self._rule_ran = ran.names()
        return self._around_rule(rule)

    def _around_rule(self, rule: Any) -> Update:
        options = self.options
        return Update(
            rule,
            clip_norm=options.clip_norm,
            clip_value=options.clip_value,
            ema=options.ema,
        )

    def _hyper(self) -> Any:
        try:
            for group, mine in zip(self.optimizer.param_groups, self._grouped, strict=False):
                # As many as before is not enough: another one may stand in the place of one of them.
                if not all(map(operator.is_, group["params"], mine)):
                    raise Stale(f"other parameters stand in a group of {self._rule.name}")
            if self._reads.moved:
                raise Stale(f"what the step of {self._rule.name} reads in Python is not what it was")
            return self._rule.hyper(self.optimizer)
        except Stale:
            # a group changed more than its numbers: another rule, so every program is compiled anew
            self.sync_to_torch()
            averages = self._state.by_torch_names()[1]
            self._turn()
            self._load()
            self._state.optimizer = self._rule.kept(averages, self._state.optimizer)
            return self._rule.hyper(self.optimizer)

    def _fits(self, rule: Update) -> bool:
        """Whether a rule of before is that of the live optimizer again."""
        try:
            rule.read_state(self.optimizer, dict(self.model.named_parameters()))
            rule.hyper(self.optimizer)
        except Stale:
            return False
        return True
