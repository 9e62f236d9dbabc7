"""The programs of one step: captured, cached, chosen and compiled, one per batch layout and train/eval
mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import jax
import torch
from torch import nn

from detente.bridge.cache import entry as cached
from detente.bridge.cache.beside import Beside
from detente.bridge.cache.describe import Unknown, content
from detente.bridge.cache.entry import Stored
from detente.bridge.capture.batch import none_trained
from detente.bridge.capture.captured import Captured, one_program
from detente.bridge.capture.memory import from_0
from detente.bridge.capture.weights import Weights
from detente.bridge.certify.certificate import Certificate
from detente.bridge.choose.choice import Choice
from detente.bridge.choose.choose import Chosen, unseen
from detente.bridge.choose.choose import name as choice_name
from detente.bridge.choose.later import Later
from detente.bridge.choose.memory import limit_bytes
from detente.bridge.choose.remember import recall, remember
from detente.bridge.folder import folder
from detente.bridge.live.interrupts import safe
from detente.bridge.private import users_modes
from detente.bridge.program.captured import assumed, graph_of, lowerable
from detente.bridge.program.program import Compiled, shape_of
from detente.bridge.refusal import refuse
from detente.bridge.roll.stacks import Stacks
from detente.bridge.state.place import Placed
from detente.bridge.state.state import State
from detente.bridge.step.captures import Captures
from detente.bridge.step.making import maker, measure
from detente.bridge.step.options import BACKGROUND, Options
from detente.bridge.telling import telling
from detente.collector import asked_seldom

ANSWERS = 64  # programs of one batch layout that differ in what the batch answers
SOON = 3  # the answer at which it is said what a new one costs
TURNS = 4  # branches of an optimizer whose programs are kept
MOST = 256  # programs of a step that are kept: an executable is a megabyte or more
# Written-out layers take about so many times as long to compile as their loop (docs/design/rolling.md).
TIMES_A_LOOP = 3


@dataclass(frozen=True)
class Variant:
    """A program of a step. ``cached``: it came from the persistent cache, nothing was exported or compiled
    for it. ``uncached``: why no later process will find it there; empty when it will.
    ``seconds`` by phase: ``export`` beside those of ``compiled``; all of an earlier process when
    ``cached``. ``stored``: its file, with its executable's ``digest``. ``later``: another form of it, which is made
    while training goes on."""

    captured: Captured
    compiled: Compiled
    choice: Choice
    stacks: Stacks
    cached: bool = False
    export_seconds: float = 0.0
    name: str | None = None  # of its file in the persistent cache
    beside: Beside | None = None  # what it depends on beside that name
    stored: Stored = field(default_factory=Stored)
    later: Later[Chosen[Compiled]] | None = None

    def __repr__(self) -> str:
        took = "cached" if self.cached else f"made in {sum(self.seconds.values()):.1f} s"
        return f"<Program {self.choice.form}, {took}>"

    @property
    def uncached(self) -> str:
        return self.stored.uncached

    @property
    def seconds(self) -> dict[str, float]:
        return {"export": self.export_seconds, **self.compiled.seconds}


def _undescribed(reason: Unknown) -> str:
    return f"it holds {reason}, which has no description that is the same in every process"


class Variants(Captures):
    """Finds the program for a batch, or makes it."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Any],
        optimizer: torch.optim.Optimizer,
        options: Options,
    ) -> None:
        super().__init__(model, loss, options)
        self.optimizer = optimizer
        self.adopt: Callable[[tuple[str, ...]], None] = lambda names: None  # tensors that the loss holds
        self.settle: Callable[[], None] = lambda: None  # a certificate that is open is made
        self.waiting: Callable[[], Variant | None] = lambda: None  # whose certificate is still to be made
        self.folder = folder() if options.cache else None
        self.choices = self.folder / "choices" if self.folder is not None else None  # what tuning measured
        self.made: dict[Any, Variant] = {}
        self.number = 0  # of programs that were made so far
        self._uses, self._used = 0, dict[int, int]()  # and which was used when, by its id
        self.certificates: dict[Any, Certificate] = {}  # by the key of ``made``
        self.parked: list[tuple[Any, dict[Any, Variant], dict[Any, Certificate]]] = []  # of other branches
        self.assumed: dict[str, str] = {}  # buffers whose values are in the programs, by hash
        self._told_room = False
        # What a batch of other traits runs: its key, and the key of a program that does not ask for them.
        self.same: dict[Any, Any] = {}
        self._ready: dict[Any, tuple[Captured, float]] = {}  # captured, and not compiled yet
        self._lies = 0  # captures that other traits were the reason for

    def find(self, placed: Placed, mode: Any, rule: Any, hyper: Any, held: Weights, state: State) -> Variant:
        """The program for this batch, compiled now if it is a new one. Raises Refused."""
        if placed.layout.odd and placed.original is not None:
            none_trained(placed.original, {name: held.tensors[name] for name in held.trainable})
        key = self._key(placed, mode, state)
        if key not in self.made and key not in self.captured:
            key = self._known(key, mode, placed, held) or key
        if key not in self.made:
            self._warn_of_values(placed, key)
            self._make_room(key)
            name = type(self.model).__name__
            with telling(f"a program of the step of {name}", self.options.quiet), asked_seldom():
                found = self._stored(key, placed, rule, hyper, held, state)
                self.assumed |= {n: content(t) for n, t in assumed(found.captured).items()}
                self.made[key] = self._with_later(found, placed.arrays, rule, hyper, state)
                self.number += 1
            self._ready.clear()
        found = self.made[key]
        from_0(found.captured.begins, placed.layout.paths, placed.begins, self.options.accumulate)
        self._uses += 1
        self._used[id(found)] = self._uses
        return found

    def _make_room(self, fresh: Any) -> None:
        """Of very many programs (a number that counts in the batch, lengths without end) the one that was used longest
        ago goes, and is made again where it comes back. The first stays: it is what ``step.choice`` tells of."""
        if len(self.captured) < MOST or fresh in self.captured:
            return
        kept = {id(self.waiting()), id(next(iter(self.made.values()), None))}
        used = {key: self._used.get(id(self.made.get(key)), 0) for key in self.captured}
        others = [key for key in used if key not in self.made or id(self.made[key]) not in kept]
        if not others:
            return
        key = min(others, key=used.__getitem__)
        self.asks.pop(id(self.captured.pop(key)[0].graph), None)
        for table in (self.made, self.certificates):
            table.pop(key, None)
        self._used = {id(one): self._used.get(id(one), 0) for one in self.made.values()}
        if not self._told_room:
            self._told_room = True
            warnings.warn(
                f"the step of {type(self.model).__name__} has {MOST} programs, and a new one takes the place of the "
                "one that was used longest ago, which is compiled again where it comes back: pad batches to fewer "
                "shapes, and hand over what counts as a tensor",
                stacklevel=7,
            )

    def _key(self, placed: Placed, mode: Any, state: State) -> Any:
        """Of the program that was made for the answers that this batch gives, or of a new one. Raises Refused where
        there are too many answers already."""
        key, other = (placed.layout.key, mode), None
        for number in range(1, ANSWERS + 1):
            key = self._run_by(key)
            known = self.captured.get(key)
            other = None if known is None else self._other(known[0], placed, state)
            if other is None:
                if number == SOON and known is None:
                    self._warn_of_answers()
                return key
            key = (placed.layout.key, (*mode, ("answers", number)))
        raise refuse(
            "control-flow", f"what is asked here has more than {ANSWERS} answers, a program for each", other
        )

    def is_made(self, placed: Placed, mode: Any) -> bool:
        """Whether there is a program for such a batch, whatever it answers."""
        return self._run_by((placed.layout.key, mode)) in self.made

    def _run_by(self, key: Any) -> Any:
        """The key of the program that runs such a batch; that of one that went says nothing any more."""
        known = (
            self.same.get(key) if self.same else None
        )  # a key takes as long to hash as a tensor to look at
        return known if known is not None and known in self.captured else key

    def _known(self, key: Any, mode: Any, placed: Placed, held: Weights) -> Any:
        """The key of the program that a batch of other traits runs, too (``Layout.traits``: a transposed tensor, one
        that stands twice in the batch); None where there is none. Only a capture knows whether a program depends on
        them: in Python, or by an operator (``x.view``, a write to ``x.reshape(-1)``)."""
        others = [k for k in self.captured if k[0][:-1] == key[0][:-1] and k[1][: len(mode)] == mode]
        if not others or all(k[0] == key[0] for k in others):
            return None
        name = type(self.model).__name__
        with telling(f"a capture of the step of {name}, of a batch that lies otherwise", self.options.quiet):
            start = perf_counter()
            captured = lowerable(replace(self.capture(placed), weights=held))
            took = perf_counter() - start
        self._lies += 1
        if self._lies == SOON:
            warnings.warn(
                "the batch's tensors have other strides or attributes, or are one tensor, for the third time: for each "
                f"new way the step is captured again, {took:.1f} s; x.contiguous() lies the same way each time",
                stacklevel=7,
            )
        found = next((k for k in others if one_program(self.captured[k][0], captured)), None)
        if found is None:
            self._ready[key] = (captured, took)
            return None
        if len(self.same) >= MOST:
            self.same.clear()
        self.same[key] = found
        return found

    def _warn_of_values(self, placed: Placed, key: Any) -> None:
        """Where a plain value of the batch makes its third program."""
        values = {k[0][2] for k in self.made if k[1] == key[1] and k[0][:2] == key[0][:2]}
        if len(values) != SOON or key[0][2] in values:
            return
        took = sum([*self.made.values()][-1].seconds.values())
        values = ", ".join(repr(value) for _, value in placed.layout.static)[:100]
        warnings.warn(
            f"the plain values of the batch ({values}) are others for the third time: every new one is captured and "
            f"compiled again, about {took:.1f} s each; a tensor, or a float that decides nothing, is an input instead",
            stacklevel=7,
        )

    def _warn_of_answers(self) -> None:
        took = sum([*self.made.values()][-1].seconds.values()) if self.made else 0.0
        warnings.warn(
            "what Python asks of the values of a batch or a buffer (if mask.any(), x[mask]) has its third answer: "
            f"every new answer is captured and compiled again, about {took:.1f} s each; torch.where asks nothing",
            stacklevel=7,
        )

    def forget(self) -> None:
        """The optimizer has another rule: what was captured stays, what was compiled goes."""
        self.made, self.certificates, self.assumed = {}, {}, {}
        self.parked.clear()

    def turn(self, rule: Any) -> None:
        """The optimizer takes another branch. Programs of one that updates all parameters at once are kept for when it
        comes back to it (every tenth step): finding the branch again costs less than compiling it."""
        if rule.together and not rule.once:
            self.parked = [*self.parked, (rule, self.made, self.certificates)][-TURNS:]
        self.made, self.certificates = {}, {}

    def rules(self, fits: Callable[[Any], bool]) -> Any:
        """The rule of before that fits again, or None."""
        return next((rule for rule, *_ in self.parked if fits(rule)), None)

    def turned(self, rule: Any) -> None:
        """The programs of the rule that is followed now, where it is one of before."""
        for known, made, certificates in self.parked:
            if known is rule:
                self.made, self.certificates = made, certificates
        self.parked = [entry for entry in self.parked if entry[0] is not rule]

    def outlived(self, value: Callable[[str], torch.Tensor]) -> bool:
        """Whether a buffer whose value went into the programs has another one."""
        return any(content(value(name)) != known for name, known in self.assumed.items())

    def start_anew(self) -> None:
        """The module is another one: what was captured goes, too."""
        self.forget()
        self.keeping.let_go()
        self.captured.clear()
        self.asks.clear()
        self.same.clear()

    def key_of(self, variant: Variant) -> Any:
        """The key of ``made``."""
        return next(key for key, known in self.made.items() if known is variant)

    def certificate(self, variant: Variant) -> Certificate | None:
        """The program's certificate, when it was made here or is stored beside the program."""
        key = self.key_of(variant)
        if key not in self.certificates and self.folder is not None and variant.name is not None:
            stored = cached.load_certificate(
                self.folder, variant.name, variant.stored, self.options.certificate
            )
            if stored is not None:
                self.certificates[key] = stored
        return self.certificates.get(key)

    def certify(self, variant: Variant, certificate: Certificate) -> None:
        """Keep a certificate, in the persistent cache too when it passed."""
        self.certificates[self.key_of(variant)] = certificate
        if certificate.ok and self.folder is not None and variant.name is not None and variant.stored.digest:
            cached.store_certificate(self.folder, variant.name, variant.stored.digest, certificate)

    def _stored(
        self, key: Any, placed: Placed, rule: Any, hyper: Any, held: Weights, state: State
    ) -> Variant:
        """From the persistent cache, or made and put there."""
        name, told, beside, uncached = None, None, None, "the cache is off"
        if self.numbers:
            uncached = "numbers of Python's are inputs of it"
        elif rule.together:
            uncached = "its optimizer's parameters see each other"
        elif users_modes():
            uncached = "a mode of the user's is on around it"
        elif self.folder is not None:
            shapes = (state.shapes()[1], jax.tree.map(shape_of, hyper))
            try:
                parts = (
                    self.model,
                    self.loss,
                    self.optimizer,
                    rule,
                    placed.layout,
                    key[1],
                    self.options,
                    shapes,
                )
                with self.keeping.at_first():
                    told = cached.key(*parts)
                name, uncached = told.text, ""
            except Unknown as reason:
                uncached = _undescribed(reason)
        if told is not None and self.folder is not None:
            entry = cached.load(self.folder, told, held, rule)
            if entry is not None and not self.keeping.fills_all(entry.captured):
                entry = None  # it may read one of the places
            if entry is not None and not self._outdated(entry, rule):
                self.adopt(entry.captured.outside)
                if self._misfits(entry.captured, placed, state) is not None:
                    entry, name, uncached = None, None, "another batch's answers are there"
            else:
                entry = None
            if entry is not None:
                self._fills(entry.captured)
                self.warn_of_batch(entry.captured)
                self.captured[key] = (entry.captured, 0.0)
                parts = (entry.captured, entry.compiled, entry.choice, entry.stacks)
                return Variant(*parts, True, name=name, beside=entry.beside, stored=Stored(entry.digest))
        captured, seconds = self._captured(key, placed, held)
        self.adopt(captured.outside)
        made = self._compile(captured, seconds, placed.arrays, rule, hyper, state)
        if captured.made or captured.ran.values:
            name, uncached = None, "it has in it what forward made, or read of a tensor, in this process"
        if captured.writes:
            name, uncached = None, f"forward writes {captured.writes[0].name}"
        if strays := [kept.name for kept in captured.kept if kept.path is None]:
            name, uncached = None, f"forward keeps a tensor in {strays[0]}"
        if name is not None and told is not None:
            try:
                beside = Beside.of(captured.ran, told.writer)
                uncached = cached.untold(captured, beside)
            except Unknown as reason:
                uncached = _undescribed(reason)
        if uncached or name is None or beside is None or self.folder is None:
            return replace(made, stored=Stored(uncached=uncached))
        entry = cached.Entry(captured, made.compiled, made.choice, made.stacks, beside)
        stored = Stored.of(self.folder, name, entry)
        return replace(made, name=name, beside=beside, stored=stored)

    def beside(self, variant: Variant, seconds: Mapping[str, float], rule: Any) -> None:
        """What PyTorch's own step takes beside this program becomes part of its choice, here and where it is
        remembered."""
        choice = replace(variant.choice, beside=tuple(seconds.items()))
        self.chosen(variant, replace(variant, choice=choice), rule)

    def chosen(self, variant: Variant, made: Variant, rule: Any) -> Variant:
        """``made`` takes the place of ``variant``, here and where programs and choices are remembered; as it stands
        there. The certificate stays where it is the same program."""
        key = self.key_of(variant)
        if made.choice.measured or made.choice.beside:
            graph, around = graph_of(made.captured), self.options.surroundings(rule)
            remember(
                self.choices, choice_name(graph, self.options.waits(rule), limit_bytes(), around), made.choice
            )
        another = made.compiled is not variant.compiled
        settled = made.choice.measured or made.choice.beside or not unseen(made.choice)
        if settled and made.name is not None and made.beside is not None and self.folder is not None:
            kept = "" if another else made.stored.digest
            parts = (made.captured, made.compiled, made.choice, made.stacks, made.beside)
            entry = cached.Entry(*parts, kept)
            stored = Stored.of(self.folder, made.name, entry)
            made = replace(made, stored=stored) if another else made
        self.made[key] = made
        if another:
            self.certificates.pop(key, None)
        return made

    def without(self, variant: Variant, error: Exception) -> Variant:
        """The program without the form that was to come, and why it does not."""
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        choice = replace(variant.choice, why=f"{variant.choice.form} stays: its other form failed ({said})")
        made = self.made[self.key_of(variant)] = replace(variant, later=None, choice=choice)
        return made

    def _outdated(self, entry: cached.Entry, rule: Any) -> bool:
        """Whether a stored program runs in the rule's form, and is to be tuned or has been tuned meanwhile."""
        if self.options.form is not None or entry.choice.measured:
            return False
        if unseen(entry.choice) and self.options.tune != BACKGROUND:
            return True  # a process that meant to go on in another form ended before
        tuned = self.options.tune is True
        if tuned or self.choices is None or not self.choices.is_dir():
            return tuned
        name = choice_name(
            graph_of(entry.captured), self.options.waits(rule), limit_bytes(), self.options.surroundings(rule)
        )
        return recall(self.choices, name) is not None

    def _captured(self, key: Any, placed: Placed, held: Weights) -> tuple[Captured, float]:
        if key not in self.captured:
            start = perf_counter()
            ready = self._ready.pop(key, None)
            captured = lowerable(replace(self.capture(placed), weights=held)) if ready is None else ready[0]
            self._fills(captured)
            self.captured[key] = (captured, perf_counter() - start if ready is None else ready[1])
            safe()
        return self.captured[key]

    def _fills(self, newest: Captured) -> None:
        """This program fills places. Where they were none before, programs that were made earlier and do not fill them
        are captured again before they run, as they may read them."""
        if not self.keeping.knows(newest):
            return
        self.settle()
        for key in [key for key, (known, _) in self.captured.items() if not self.keeping.fills_all(known)]:
            for table in (self.captured, self.made, self.certificates):
                table.pop(key, None)

    def _compile(
        self, captured: Captured, seconds: float, arrays: list[Any], rule: Any, hyper: Any, state: State
    ) -> Variant:
        def timed(compiled: Compiled) -> float:
            return measure(compiled, arrays, hyper, state)

        tune = timed if self.options.tune is True else None
        make = maker(self.options, self.choices, captured, arrays, rule, hyper, state)
        chosen = make(form=self.options.form, tune=tune, quick=self.options.tune == BACKGROUND)
        return Variant(captured, chosen.compiled, chosen.choice, chosen.shaped.stacks, False, seconds)

    def _with_later(
        self, variant: Variant, arrays: list[Any], rule: Any, hyper: Any, state: State
    ) -> Variant:
        """The program, and with it the form that the rule would have begun with, to come."""
        if self.options.tune != BACKGROUND or self.options.form is not None or not unseen(variant.choice):
            return variant
        after = TIMES_A_LOOP * variant.seconds.get("compile", 0.0)
        make = maker(self.options, self.choices, variant.captured, arrays, rule, hyper, state, later=True)
        return replace(variant, later=Later(make, after))
