"""``capture(module, loss, batch)``: traces until the program is that of every step, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from detente.bridge.capture import batch as batches
from detente.bridge.capture.ahead import Ahead
from detente.bridge.capture.cached import Caches
from detente.bridge.capture.captured import Captured, alike
from detente.bridge.capture.export import Subject, export
from detente.bridge.capture.functions import unkept
from detente.bridge.capture.generators import Generators, common, of_the_system
from detente.bridge.capture.held import Left, read_of, standing_in
from detente.bridge.capture.kept import ROOM, Leaving, computed_by, keeping
from detente.bridge.capture.made_once import MOST, Filling, Made, made_once
from detente.bridge.capture.own_class import refuse_classes
from detente.bridge.capture.read_values import ReadValues
from detente.bridge.capture.same_parts import same_parts
from detente.bridge.capture.settled import (
    Answers,
    Given,
    OfTheLoss,
    answers,
    eagers_own,
    is_check,
    may_be_eagers,
    settled,
    tried,
    unsettled,
)
from detente.bridge.capture.weights import identity, weights, whole
from detente.bridge.dense import dense
from detente.bridge.graph import Graph, without_dead
from detente.bridge.live.guard import plain, tensors_of
from detente.bridge.live.inside import one_at_a_time
from detente.bridge.live.moving_number import all_among
from detente.bridge.live.places import place, put
from detente.bridge.live.ran import Ran
from detente.bridge.live.sources import Sources
from detente.bridge.live.walk import sources
from detente.bridge.live.writes import Write, same
from detente.bridge.refusal import Reason, Refused, refuse

TURNS = 2  # captures that show whether what changes by itself matters
_ASKED = {"control-flow", "dynamic-shape"}  # codes of what a question about values is refused with
Again = Callable[[], None] | None


@one_at_a_time
def capture(
    model: nn.Module,
    loss: Callable[[Any, Any], Any],
    batch: Any,
    *,
    settle: bool = True,
    inputs: bool = False,
    again: Again = None,
    keep: bool = False,
    own: bool = False,
) -> Captured:
    """The step's forward and loss as a neutral graph. ``model`` is read, never changed. ``settle``: what Python asks of
    values is answered by this batch, and checked in every step; else it is refused. ``inputs``: tensors that the loss
    holds are inputs of the program (``outside``), where they are constants else. ``again``: for a caller that captures
    again when a buffer gives another answer; called before the module is asked, so that it holds the values of now.
    ``keep``: what forward leaves in Python's places is among the results (``kept``). ``own``: where eager torch itself
    raises in this loss (ValueError of a batch norm that is given one row), so does this.

    Raises Refused with every reason that could be found in one pass.
    """
    whole(model)
    made = Filling()
    try:
        for turn in range(MOST + 1):
            tried = None if turn == MOST else made.places
            try:
                found = _capture_once(model, loss, batch, settle, inputs, again, keep, own, tried)
                return replace(found, made=bool(made.places))
            except Made as more:
                made.fill(more.values)
        raise AssertionError("the last turn fills nothing")
    except BaseException:
        made.empty()
        raise
    finally:
        if not keep:
            made.empty()


def _capture_once(
    model: nn.Module,
    loss: Callable[[Any, Any], Any],
    batch: Any,
    settle: bool,
    inputs: bool,
    again: Again,
    keep: bool,
    own: bool,
    tried: Collection[Any] | None,
) -> Captured:
    """The same with what forward has made so far in its place. Raises Made where there is more of it, that is not among
    the ``tried`` places; None: none is looked for."""
    before = sources(model, loss)
    all_among(before.tensors.values())
    caches = Caches(before)
    held = before.tensors.items() if inputs else ()
    outside = {identity(tensor): name for name, tensor in held if _plain(tensor)}
    try:
        with same_parts(model) as parts, plain([*tensors_of(model), *before.tensors.values()]), Ran() as ran:
            subject = Subject(model, loss, before, ran, caches, outside, tried, ReadValues(before.tensors))
            captured = _settled_draws(lambda: _twice(subject, batch, settle, again), before, ran)
    except OfTheLoss as raised:
        assert raised.refused is not None
        error = raised.error if own else raised.refused
        raise error from error.__cause__
    finally:
        before.put_back()
    if not keep and (captured.kept or captured.unkept):
        captured = _without_kept(captured)
    names = {i.name for i in captured.graph.inputs if i.kind == "buffer"}
    used = tuple(sorted(names & set(outside.values())))
    _none_that_moves(model, captured.graph, {name: before.tensors[name] for name in used})
    writes = (*captured.writes, *parts)
    codes = ran.users()
    refuse_classes(codes)
    names_read = replace(ran.names(), values=frozenset(subject.values.names))
    return replace(captured, ran=names_read, codes=codes, outside=used, writes=writes)


def _without_kept(captured: Captured) -> Captured:
    own = tuple(output for output in captured.graph.outputs if output.kind != "kept")
    return replace(captured, graph=without_dead(replace(captured.graph, outputs=own)), kept=(), unkept=())


def _none_that_moves(model: nn.Module, graph: Graph, used: Mapping[str, torch.Tensor]) -> None:
    """Raises Refused where a tensor that is read from a closure or an attribute shows the memory of one that the step
    writes (``flat = weight.detach().view(-1)``): it would stay what it was, and in eager it moves along."""
    written = {output.name for output in graph.outputs if output.kind == "buffer"}
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    moving = {_memory(t): n for n, t in named if _plain(t) and (t.requires_grad or n in written)}
    reasons = [
        Reason(
            "held-tensor",
            f"{name} is an alias of {moving[_memory(tensor)]}, which every step writes",
            hint="take it inside of forward or the loss (weight.detach(), weight.view(-1)), where it is of that step",
        )
        for name, tensor in used.items()
        if _memory(tensor) in moving
    ]
    if reasons:
        raise Refused(reasons)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _plain(tensor: torch.Tensor) -> bool:
    return dense(tensor) and not tensor.is_meta and tensor.numel() > 0


def _settled_draws(run: Callable[[], Captured], before: Sources, ran: Ran) -> Captured:
    """The program, and again where Python's or numpy's generators moved, where there is an iterator, or where code asks
    the clock or chance: a number that was drawn in the capture would be the same one in every step."""
    generators = Generators(before)

    def once_more() -> Captured:
        try:
            return run()
        except OfTheLoss as raised:  # where other numbers are drawn than eager would
            raise raised.refused or raised.error from None

    try:
        captured = run()
    finally:
        moved = generators.moved()
    for turn in range(generators.places(moved) if moved else 0):
        before.put_back()
        with generators.elsewhere(turn):
            other = once_more()
        if not alike(captured, other, values=True):
            raise refuse("generator", f"the step draws from {' and '.join(moved)}")
        captured = replace(captured, drawn=common(captured.drawn, other.drawn))
    for given in of_the_system() if ran.of_the_system(before.systems) else ():
        before.put_back()
        with given:
            other = once_more()
        if not alike(captured, other, values=True):
            raise refuse("generator", "the step draws from random.SystemRandom")
    changing, outside = [*ran.changing(), *before.iterators], ran.outside
    asked = (*outside.asked,)
    for _ in range(TURNS if changing else bool(asked)):
        before.put_back()
        if not alike(captured, once_more(), values=True):
            raise refuse(
                "generator" if changing else "repeat",
                "what the step computes with is another number whenever it is asked "
                f"({', '.join([*changing, *asked])})",
            )
    # What the second capture did not ask for is kept from the first on: a table that is read once.
    return replace(captured, asked=asked, again=tuple(said for said in asked if said in outside.last))


def _twice(subject: Subject, batch: Any, settle: bool, again: Again) -> Captured:
    """The program, once more where a trace left tensors behind: the next step would find them there, and must be the
    same program."""
    captured, leaving = _capture(subject, batch, settle, again)
    left = leaving.places
    if not left:
        return captured
    subject.before.put_back()
    later: Leaving | None = None
    second, anew, read = None, {place(one.table, one.key) for one in left}, set[Any]()
    with standing_in(left) as standing:
        try:
            found, other = _capture(subject, batch, settle, again)
            anew = _anew(other, standing)
            pairs = zip(left, standing, strict=True)
            read = {place(one.table, one.key) for one, value in pairs if read_of(value, other.read)}
            second, later = found, other
        except (Refused, OfTheLoss):
            pass
    once = [one for one in left if second is None or place(one.table, one.key) not in anew]
    values = [] if subject.tried is None else _made(subject, once, leaving.graph, captured, again)
    caches = [one for one in left if one.fresh and second is not None and place(one.table, one.key) in anew]
    beside = [w for w in captured.writes if any(w.table is one.table for one in caches)]
    if (
        subject.tried is not None
        and beside
        and _known_by(subject, left, beside, caches, batch, settle, again)
    ):
        cached = _made(subject, caches, leaving.graph, captured, again)
        if len(cached) == len(caches):  # or what is noted would say of one that it is there
            values += [*((w.table, w.key, w.value) for w in beside), *cached]
    if fresh := [row for row in values if place(*row[:2]) not in (subject.tried or ())]:
        raise Made(fresh)
    # What was put where nothing was, and is found there the next time, is a cache.
    moving = [one for one in left if not one.fresh or place(one.table, one.key) in anew]
    if moving and (second is None or not alike(captured, second)):
        raise Refused([one.reason for one in moving])
    if itself := [one for one in moving if later and one.number and _of_itself(one, leaving, later)]:
        raise Refused([one.reason for one in itself])
    every = [one for one in moving if not one.registered and place(one.table, one.key) in anew]
    own = {id(vars(part)): path for path, part in subject.model.named_modules()}
    room = max(ROOM, sum(t.nbytes for t in captured.weights.tensors.values()))
    graph, kept, unkept = keeping(captured.graph, leaving.graph, every, own, read, room)
    return replace(captured, graph=graph, kept=kept, unkept=unkept)


def _anew(leaving: Leaving, standing: Iterable[Any]) -> set[Any]:
    """The places where a trace has left something else than what stood in."""
    stood = set(map(id, standing))
    return {place(one.table, one.key) for one in leaving.places if one.mark not in stood}


def _known_by(
    subject: Subject,
    left: Sequence[Left],
    beside: Sequence[Write],
    caches: Sequence[Left],
    batch: Any,
    settle: bool,
    again: Again,
) -> bool:
    """Whether these caches are found, and not made anew, where what the code has noted ``beside`` them stands, too
    (``self.cached_length = n``), as it does in the next step; and that stays as it is, as no counter does."""
    subject.before.put_back()
    for write in beside:
        put(write.table, write.key, write.value)
    try:
        with standing_in(left) as standing:
            found, other = _capture(subject, batch, settle, again)
            anew = _anew(other, standing)
            now = {place(w.table, w.key): w.value for w in found.writes}
            stays = all(same(now.get(place(w.table, w.key)), w.value) for w in beside)
            return stays and anew.isdisjoint(place(one.table, one.key) for one in caches)
    except (Refused, OfTheLoss):
        return False
    finally:
        subject.before.put_back()


def _of_itself(one: Left, leaving: Leaving, later: Leaving) -> bool:
    """Whether a number follows from what stood there before (``self.total += loss.item()``): with another one there, it
    is computed otherwise."""
    at = place(one.table, one.key)
    known = computed_by(leaving.graph, one.results)
    others = [other for other in later.places if place(other.table, other.key) == at]
    return any(computed_by(later.graph, other.results) != known for other in others)


def _made(
    subject: Subject, left: Sequence[Left], graph: Graph, captured: Captured, again: Again
) -> list[tuple[Any, Any, Any]]:
    if not left:
        return []
    subject.before.put_back()
    if again is not None:
        again()
    return made_once(left, graph, {**subject.before.tensors, **captured.weights.tensors})


def _capture(subject: Subject, batch: Any, settle: bool, again: Again) -> tuple[Captured, Leaving]:
    model, before = subject.model, subject.before
    reasons: list[Reason] = list(unkept(model, before.modules))
    held = weights(model)
    tensors, layout = batches.flatten(batch)
    batches.same_when_built(tensors, layout)
    if any(t.device.type == "meta" for t in held.tensors.values()):
        name = next(n for n, t in held.tensors.items() if t.device.type == "meta")
        reasons.append(Reason("meta", f"the parameters have no values ({name} is on the meta device)"))
    devices = {t.device.type for t in held.tensors.values()} - {"cpu", "meta"}
    if devices:
        reasons.append(Reason("device", f"the module is on {', '.join(sorted(devices))}"))

    def ask() -> Answers:
        before.put_back()  # a capture that failed leaves its tensors behind
        if again is not None:
            again()
        return answers(model, subject.loss, batch)

    def made(given: Given | None) -> tuple[Captured, Leaving]:
        if given is not None:
            before.put_back()
        try:
            return export(subject, layout, tensors, held, given)
        finally:
            subject.caches.forget()

    def lasting(found: tuple[Captured, Leaving]) -> list[Reason]:
        graph = found[0].graph
        if again is None:
            return unsettled(graph)
        own = {**before.tensors, **held.tensors}
        known = Ahead.of(graph, is_check).answers(tensors, lambda name: own[name].detach())
        return unsettled(graph, lambda check: known.get(check.id) is True)

    found, refused = tried(made, None)
    if refused is not None and (reasons or not settle or not {r.code for r in refused.reasons} <= _ASKED):
        if not reasons and may_be_eagers(refused):
            eagers_own(refused, ask)
        raise Refused([*reasons, *refused.reasons]) from refused.__cause__
    if refused is not None:
        found = settled(ask, made, lasting, refused)
    if reasons:
        raise Refused(reasons)
    assert found is not None
    return found
