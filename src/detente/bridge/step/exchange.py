"""From the live module and optimizer to the state: what somebody changed there is taken over before the next step."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch.utils.hooks import RemovableHandle

from detente.bridge.capture.functions import unkept
from detente.bridge.capture.weights import weights
from detente.bridge.live.guard import follow_strangers, tensors_of, watch
from detente.bridge.live.optimizer_state import see, unheld, unseen
from detente.bridge.live.walk import sources
from detente.bridge.live.watch import Changes, Watch
from detente.bridge.optim import accept
from detente.bridge.optim.accept import own_step
from detente.bridge.optim.hyper import Stale
from detente.bridge.private import plainly
from detente.bridge.refusal import Refused, refuse
from detente.bridge.roll.stacks import Stacks
from detente.bridge.state.meta import source
from detente.bridge.state.place import to_jax
from detente.bridge.state.state import State
from detente.bridge.step.filling import Filling
from detente.bridge.step.sharing import Sharing


class Exchange(Filling):
    """What was written, loaded, frozen or replaced between two steps is the state that the next one begins with."""

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
        self._memory = plainly(self._watch.memory)
        Sharing.held_anew()

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
        if changes is not None and changes.written and not changes.other:
            changes = Changes(changes.written, tuple(self._watch.resized()))
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
        found = weights(self.model)
        self._ask_nobody(tensors_of(self.model))
        if found.aliases != self.weights.aliases:  # of one memory now, or no more: two values are one
            return Changes(changes.written if changes is not None else (), ("tensors share other memory",))
        return changes

    def _take_moments(self) -> None:
        """The optimizer's state, where somebody wrote it or may have written it."""
        self._catch_up()  # before it: what others trained since is newer than what was read earlier
        if unseen(self.optimizer):
            see(self.optimizer, self._read_moments)
            self._held_moments, self._rewritten = [], True
        if not self._rewritten and self._rule.replaced(self.optimizer):
            if self._moments.behind:
                self._make_certificate()
                self._write_back(optimizer=True)  # all but what stands there now
            self._rewritten = True
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

    def _rebuild(self) -> None:
        """The module is another one (a layer was frozen, a part replaced): the trained values go into it, and the
        step starts from it anew. Programs are captured again; nothing of the training is lost."""
        self._catch_up()
        if self._guard.behind or not self._live:
            self._write_back(optimizer=True)
        # Everything that may be refused comes before anything is given up: the next call then says it again.
        found, rule = weights(self.model), self._traced()
        averages, count = self._state.by_torch_names()[1], self.count
        self._none_left_behind(rule, averages, found.tensors)
        self.weights, self._held = found, {}
        Sharing.held_anew()
        self._follow(rule)
        self._see()
        self._load()
        self._state.optimizer = self._rule.kept(averages, self._state.optimizer)
        self.count = count
        self._variants.start_anew()
        self.sharing.loaded()

    def _load(self) -> None:
        """State from the live module and optimizer."""
        meta = any(t.is_meta for t in self.weights.tensors.values())
        weights: Any = self._source
        if meta and weights is None:  # used up: an initialisation keeps nothing
            weights = source(self.model, self.optimizer, self.options.weights, self.options.seed)
        self._source = None
        values = {
            name: to_jax(weights(name) if live.is_meta else live)
            for name, live in self.weights.tensors.items()
        }
        self._live, self._stepped = not meta, bool(self.optimizer.state)
        self._state, self._told_values = State(values, self._first_moments()), True

    def _first_moments(self) -> Any:
        """The optimizer's state from the live one, which may have none yet."""
        if self.optimizer.state or self._rule.together:
            return self._torchs_state()
        return self._births.at(self._hyper())

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
