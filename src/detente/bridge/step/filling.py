"""From the state to the live module and optimizer: they are filled where somebody looks, and the state is not lost."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import torch

from detente.bridge.capture.markers import capturing
from detente.bridge.live.forks import in_child
from detente.bridge.live.guard import askable, watch
from detente.bridge.live.inside import INSIDE, leave, runs_here
from detente.bridge.live.optimizer_state import see
from detente.bridge.private import (
    in_transform,
    outside_of_traces,
    outside_of_transforms,
    plainly,
    set_versions,
    without_functions,
    without_modes,
)
from detente.bridge.refusal import Refused, refuse
from detente.bridge.state.emptied import Emptied
from detente.bridge.state.meta import fill
from detente.bridge.state.place import from_jax
from detente.bridge.step.ruled import Ruled
from detente.bridge.step.sharing import same_tensors


class Filling(Ruled):
    """The live objects are filled where they are behind."""

    def sync_to_torch(self) -> None:
        """Write weights, buffers and optimizer state into the live module and optimizer, in place. Parameters that
        were on the meta device get memory on the CPU, and stay the same objects. After a failed certificate (which is
        raised once) they are those of before its step."""
        with self._away():
            self._trusted()
            self._write_back(optimizer=True)

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
            with torch.no_grad(), self._emptied.filling():
                for name, live in mine.items():
                    fill(live, plainly(self._meeting.merged, live, from_jax(self._state.value(name))))
            self._emptied.filled()
            self._attend(born)
        # What was loaded into the optimizer since, or may have been written to it, is newer than what was trained.
        if optimizer and not self._rewritten and (self._moments.behind or not self._live):
            state = self._state.by_torch_names()[1]
            # The tensors that were trained, also where the module has others by now: a new one has no moments.
            self._rule.write_state(self.optimizer, state, self.weights.tensors)  # type: ignore[arg-type]
            # A wrapper's table is that of the optimizer inside: it stands where ours was now, and nobody wrote to it.
            see(self.optimizer, self._read_moments)
            watch(self._rule.elsewhere(), self._moments)  # no table tells of who reads these
            self._moments.behind = False
            self._moments.exposed.clear()
            for step in (self, *self.sharing.others):
                # What this step wrote there is nobody's write for the others.
                if step.optimizer is self.optimizer:
                    step._held_moments = [(t, t._version) for t, _ in step._held_moments]
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

    def _let_go(self) -> None:
        """Asked before every step: the module's memory, which nobody needs while the step is ahead of it, goes where it
        has been behind for some steps. Not while a certificate, or another step, takes what lies there for a value."""
        if not self._guard.behind:
            self._emptied.filled()
        elif (
            self._open is None and not self.sharing.others and not self.sharing.apart and self._emptied.due()
        ):
            changed = self._changes()
            mine = {name: live for name, live in self.weights.tensors.items() if name in changed}
            if not any(live.is_meta for live in mine.values()):
                plainly(self._emptied.empty, askable(mine, self._guard))

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
        with self._away(), _by_itself():
            try:
                self._none_hidden()
                self._write_back(optimizer=True)
            except Exception as error:  # of a refusal, or of a device that failed: nobody else can be told
                warnings.warn(
                    f"a step that nobody holds any more could not write back what it trained: {error}",
                    stacklevel=2,
                )
            finally:
                self._emptied.refill()

    def _before_fork(self) -> None:
        """A process is about to be forked: its copy of the live objects has the values of now. What is refused here is
        said by the next call, and the child is told that its values are older."""
        meta = any(t.is_meta for t in self.weights.tensors.values())
        behind = self._guard.behind or self._moments.behind
        if not behind or meta or self.sharing.overtaken() or runs_here(INSIDE) or capturing() is not None:
            return
        with self._away(), contextlib.suppress(Refused):
            try:
                self._make_certificate()
                if not self._kept_nothing:
                    self._none_hidden()
                    self._write_back(optimizer=True)
            finally:
                self._emptied.refill()

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
            # A certificate of this step's first begins with the moments that the other left there, not with none.
            self._stepped = self._stepped or (theirs and (other.count > 0 or other._stepped))
        self._live = False
        self._guard.behind = self._guard.behind or any(member._guard.behind for member in newer)
        self.sharing.looked()

    def _changes(self) -> set[str]:
        """torch's names of what the programs of this step change: the parameters that they train, and buffers."""
        programs = [variant.compiled.program for variant in self.programs]
        return {m for p in programs for n in (*p.connected, *p.written) for m in p.members(n)}

    def _wrote(self, tensors: Iterable[torch.Tensor]) -> None:
        """What these hold now is known to every step of the group; a write to another one, a layer that was frozen or
        replaced is not, whoever reads the module meanwhile."""
        tensors = list(tensors)
        for step in (self, *self.sharing.others):
            step._watch.wrote(tensors)

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
            fresh = [t for t in self._moments_of_now() if id(t) not in known]
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


@contextmanager
def _by_itself() -> Iterator[None]:
    """Outside of whatever torch and JAX are in the middle of, where the collector or a signal has come."""
    untraced = outside_of_transforms() if in_transform() else nullcontext()
    with (
        jax.ensure_compile_time_eval(),
        untraced,
        outside_of_traces(),
        without_modes(),
        without_functions(),
    ):
        yield


def refill(emptied: Emptied) -> None:
    """What was given up, of its step's state: the step may be gone, or in the middle of a call. Of what there is
    nothing (the device failed, a program has the values in its hands) no number: zeros would pass for weights.

    Anybody may read anywhere, also the collector in somebody's trace: this copies, and computes nothing."""
    lost, tensors = [], list(emptied.tensors.values())
    with _by_itself(), torch.no_grad():
        versions = [tensor._version for tensor in tensors]
        for name, live in emptied.tensors.items():
            try:
                live.copy_(from_jax(emptied.state.value(name)))
            except Exception:
                live.fill_(math.nan)
                lost.append(name)
        # They hold what they are worth, which nobody has written: the step is as far ahead of them as before.
        set_versions(tensors, versions)
    emptied.filled()
    if lost:
        warnings.warn(
            f"{min(lost)} is read where its values cannot be had (a signal came while a program was being started, or "
            "its device failed): it is NaN here, until it is read behind this call of the step",
            stacklevel=2,
        )
