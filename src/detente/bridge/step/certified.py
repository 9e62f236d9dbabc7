"""A step's state, and what certifies it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.weights import Weights
from detente.bridge.certify.certificate import Certificate, refusal
from detente.bridge.choose.choice import Choice
from detente.bridge.live.around import Surroundings, undisturbed
from detente.bridge.live.guard import Guard, watch
from detente.bridge.live.inside import Away
from detente.bridge.live.modes import Modes
from detente.bridge.live.optimizer_reads import Reads
from detente.bridge.live.shared import Meeting
from detente.bridge.live.watch import Watch
from detente.bridge.live.writes import put
from detente.bridge.lower.faults import NO_FAULT
from detente.bridge.optim.update import Update
from detente.bridge.refusal import refuse
from detente.bridge.state.birth import Births
from detente.bridge.state.emptied import Emptied
from detente.bridge.state.meta import Source
from detente.bridge.state.place import from_jax
from detente.bridge.state.state import State
from detente.bridge.step.certifier import Before, Certifier, Open
from detente.bridge.step.keeping import Keeping
from detente.bridge.step.moving import Moving
from detente.bridge.step.options import Options
from detente.bridge.step.sharing import Sharing
from detente.bridge.step.variants import Variant, Variants
from detente.bridge.telling import phase, telling


class Certified:
    """The fields of a step; results of a step that ran, and the certificate of one that waits for it."""

    model: nn.Module
    loss: Callable[[Any, Any], Any]
    optimizer: torch.optim.Optimizer
    options: Options
    weights: Weights
    count: int
    sharing: Sharing
    _held_state: State
    _rule: Update
    _births: Births
    _variants: Variants
    _certifier: Certifier
    _around: Surroundings
    _modes: Modes  # of the user's, that programs have in them
    _moving: Moving
    _keeping: Keeping  # places in Python that steps fill
    _watch: Watch
    _memory: list[int]  # where the values of what is watched lie
    _guard: Guard  # of the module's tensors
    _attended: list[torch.Tensor]  # which these are
    _emptied: Emptied  # and of which of them the memory was given up meanwhile
    _meeting: Meeting  # with other processes, in memory that is shared
    _moments_at: list[int]  # where the optimizer's state lay when it was last asked whether that is shared
    _outside: Guard  # of what the loss holds
    _moments: Guard  # of the optimizer's state
    _reads: Reads  # of the optimizer's step, in Python
    _grouped: list[list[torch.Tensor]]  # what stands in the optimizer's groups
    _held: dict[str, torch.Tensor]  # what the loss holds, by name
    _held_moments: list[tuple[torch.Tensor, int]]  # handed out, with their versions
    _live: bool  # the live module and optimizer hold the state themselves
    _stepped: bool  # the optimizer's state is not its first
    _begins: bool  # nothing was stepped yet, and gradients may be there from before
    _rewritten: bool  # the live optimizer was given another state
    _source: Source | None  # of values for a module on the meta device
    _ran: tuple[Variant, int, list[Any], Any] | None  # a step whose results are not in their place yet
    _open: Open | None  # a step that waits for its certificate
    _told: bool  # of a failed certificate
    _told_values: bool  # the state was given values that a program may have in it
    _kept_nothing: bool  # a short certificate failed: the state is that of a step that is not trusted

    @property
    def _state(self) -> State:
        return self._held_state

    @_state.setter
    def _state(self, state: State) -> None:
        self._held_state = self._emptied.state = state

    def _away(self) -> Away:
        """The step's own code runs: nobody else reads or writes."""
        return Away(self._guard, self._outside, self._moments)

    def _book(self) -> tuple[Any, Any, Any]:
        """The results of the step that ran are the state. Every part of it may be done twice."""
        if self._ran is None:
            return None, None, None
        variant, number, writes, (changed, optimizer, loss, aux, word) = self._ran
        self._state.values.update(changed)
        self._state.optimizer = optimizer
        if self._open is not None:
            self._open.loss, self._open.word = loss, word
        self._live, self._guard.behind, self._moments.behind = False, True, True
        self._outside.behind = self._open is not None
        if self._guard.bare is False:
            self._guard.bare = True
        self.count = number + 1
        for due in writes:
            put(due)
        self._keeping.fill(variant.captured, aux, self.weights.tensors)
        self._rule.follow(self.optimizer, optimizer)
        if self._rule.once:
            watch(self._rule.elsewhere(), self._moments)
        self.sharing.ran()
        self._ran = None
        return loss, aux, word

    def settled(self) -> Certificate:
        """The certificate of the program that ran last, made now if it is still open; a failed one is not raised.

        Raises Refused (``certificate``) where there is none yet: of a model that a first step changed in Python
        (transformers installs hooks then), the next step is certified.
        """
        self._make_certificate()
        for certificate in reversed(self._variants.certificates.values()):
            return certificate
        what = "no program of this step has a certificate yet"
        raise refuse("certificate", what, hint="take another step, or compile with certificate='full'")

    def _settle(self) -> None:
        """Run the certificate of the last step, if it is still open. A failed one goes on raising."""
        self._make_certificate()
        for certificate in self._variants.certificates.values():
            if not certificate.ok:
                self._told = True
                raise refusal(certificate)

    def _tell(self) -> bool:
        """Makes the certificate that is open. Of one that failed whoever comes first is told, by a Refused; later the
        state is that of before its step. False: there is no such state, because a short certificate keeps no copy."""
        self._make_certificate()
        failed = [c for c in self._variants.certificates.values() if not c.ok]
        if failed and not self._told:
            self._told = True
            raise refusal(failed[0])
        return not (failed and self._kept_nothing)

    def _trusted(self) -> None:
        if not self._tell():
            self._settle()

    def _make_certificate(self) -> None:
        self._book()
        first, self._open = self._open, None
        if first is None or first.loss is None or int(first.word) != NO_FAULT:
            return  # eager raises in that step: the next one is certified
        changes = self._watch.look()
        if changes is not None and (changes.other or (first.before is None and first.cut is None)):
            # The live module is another one, or no longer holds the state before that step: the next one is certified.
            return
        told = f"certificate of the step of {type(self.model).__name__}"
        with (
            self._away(),
            undisturbed(self._modes, first.default),
            self._around.as_it_was() as whole,
            self._reads.as_it_was() as alike,
        ):
            if not (whole and alike):
                return  # Python is not as that step found it: the next one is certified
            with telling(told, self.options.quiet), phase("certify"):
                held = self._held if self._outside.in_c else None
                certificate = self._certifier.settle(first, self._state, self._rule, held)
            if not certificate.ok:
                self._roll_back(first)
        self._variants.certify(first.variant, certificate)

    def _roll_back(self, first: Open) -> None:
        """The state is that of before a step that is not trusted."""
        self._told, self._kept_nothing = False, first.cut is not None
        if self._kept_nothing:
            return
        self._state = self._certifier.state_before(first, self._state, self._rule)
        self._rule.numbers_into(self.optimizer, self._state.optimizer)
        self.count = first.count
        self._live = first.before is None
        self._guard.behind = self._moments.behind = not self._live
        self.sharing.loaded()

    def _host_value(self, name: str) -> torch.Tensor:
        return from_jax(self._state.value(name))

    def _before(self) -> Before | None:
        """The state on the host; None while the live module and optimizer hold it themselves."""
        together = self._rule.together  # numbers of the live optimizer move on with the step
        if self._live and not together and not self._meeting:  # another process may write there meanwhile
            return None
        return Before.of(self._state, self._rule, self.count > 0 or self._stepped or together)

    @property
    def certificate(self) -> Certificate | None:
        """The first program's certificate; None before its second step, and without one."""
        return self.certificates[0] if self.programs else None

    @property
    def certificates(self) -> tuple[Certificate | None, ...]:
        """One for each of ``programs``; None where it was not made (yet)."""
        return tuple(self._variants.certificates.get(key) for key in self._variants.made)

    @property
    def programs(self) -> tuple[Variant, ...]:
        """Every program compiled so far, of the last 256; one per batch layout and train/eval mode."""
        return tuple(self._variants.made.values())

    @property
    def choice(self) -> Choice:
        """Which form the first program runs in, and why; ``print`` shows what was considered."""
        return self.programs[0].choice
