"""``capture(module, loss, batch)``: torch.export under patches, then the neutral graph and everything around
it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch
from torch import nn

from detente.bridge.capture import batch as batches
from detente.bridge.capture.ahead import Ahead
from detente.bridge.capture.cached import Caches
from detente.bridge.capture.causal import without_mask_hints
from detente.bridge.capture.ctc import keep_ctc
from detente.bridge.capture.data import keep_data
from detente.bridge.capture.derivative import Derivatives, keep_derivatives
from detente.bridge.capture.functional import functional
from detente.bridge.capture.functions import keep_functions, unkept
from detente.bridge.capture.generators import Counted, Drawn, Generators, common, of_the_system
from detente.bridge.capture.held import Held, Left, left_in_python, noting_reads, read_of, standing_in
from detente.bridge.capture.hooks import keep_hooks, rewire
from detente.bridge.capture.kept import ROOM, Kept, Leaving, apart, keeping, offered
from detente.bridge.capture.lasting import Lasting, lasting
from detente.bridge.capture.mapped import keep_maps
from detente.bridge.capture.markers import capturing, leaf
from detente.bridge.capture.nameless import keep_nameless
from detente.bridge.capture.neutral import convert
from detente.bridge.capture.packed import keep_packed
from detente.bridge.capture.provenance import tag
from detente.bridge.capture.quiet import without_torchs_log
from detente.bridge.capture.regions import keep_checkpoints, keep_metadata
from detente.bridge.capture.seeds import keep_seeds
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
from detente.bridge.capture.statistics import keep_statistics
from detente.bridge.capture.torchs_code import without_torchs_code
from detente.bridge.capture.torchs_words import refusal_of
from detente.bridge.capture.transforms import keep_transforms
from detente.bridge.capture.weights import Weights, identity, weights, whole
from detente.bridge.graph import Graph, without_dead
from detente.bridge.live.guard import plain, tensors_of
from detente.bridge.live.inside import one_at_a_time
from detente.bridge.live.places import place
from detente.bridge.live.ran import Names, Ran
from detente.bridge.live.sources import Sources
from detente.bridge.live.trains import without_state
from detente.bridge.live.walk import sources
from detente.bridge.live.writes import Write
from detente.bridge.private import left_of_export
from detente.bridge.refusal import Reason, Refused, refuse

TURNS = 2  # captures that show whether what changes by itself matters
Loss = Callable[[Any, Any], Any]
Again = Callable[[], None] | None
Outside = Mapping[tuple[object, ...], str]  # identity of a tensor -> its name


@dataclass(frozen=True)
class Captured:
    """A captured step. ``graph`` maps parameters, buffers, constants and batch leaves to loss, aux leaves
    and mutated buffers; ``batch`` and ``aux`` say how the pytrees come apart; ``weights`` names the live
    tensors; ``draws`` is how many random calls the program makes in eager order, dead ones included. ``ran`` is the
    code that ran in the capture, and ``writes`` what it wrote to Python's values, as a step of eager would have, too.
    ``outside`` are tensors that the loss holds (a teacher's, class weights): inputs like the module's buffers.
    ``lasting`` are results beside the loss that are the module's own tensors. ``asked`` is what the user's code asked
    for outside of Python (a file), and ``again`` what it asks for whenever it runs. ``codes`` are those of the user's
    functions that ran. ``kept`` are tensors that forward leaves in Python, for who looks at them behind the step, and
    ``unkept`` the names of those places that no step fills. ``drawn`` is how far forward moves generators of Python's
    and numpy's whose numbers decide nothing."""

    graph: Graph
    batch: batches.Layout
    aux: batches.Layout | None
    weights: Weights
    draws: int
    ran: Names = Names()
    writes: tuple[Write, ...] = ()
    outside: tuple[str, ...] = ()
    lasting: tuple[Lasting, ...] = ()
    asked: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    codes: frozenset[CodeType] = field(default=frozenset(), compare=False)
    kept: tuple[Kept, ...] = ()
    unkept: tuple[str, ...] = ()
    drawn: Drawn = ()


class _Told:
    """The aux layout of the last trace, the tensors that it left in attributes, and which of those that stood in for
    such ones were read."""

    aux: batches.Layout | None = None
    lasting: Sequence[Lasting] = ()
    left: tuple[Left, ...] = ()
    read: frozenset[int] = frozenset()
    writes: Sequence[Write] = ()
    unreached: frozenset[str] = frozenset()
    drawn: Drawn = ()


class _Program(nn.Module):
    """What is exported: loss of the model on a batch that arrives as flat tensors."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        layout: batches.Layout,
        given: Given | None,
        before: Sources,
        ran: Ran,
        caches: Caches,
    ) -> None:
        super().__init__()
        self.model = model
        self.__dict__["loss"] = loss  # not a submodule, even when it is a Module: its tensors are constants
        self.layout = layout
        self.__dict__["given"], self.__dict__["before"], self.__dict__["ran"] = given, before, ran
        self.__dict__["caches"] = caches
        self.__dict__["own"] = before, {id(tensor): place for tensor, *place in _places(model)}
        # what forward found out; not an attribute, because export takes attribute writes back
        self.__dict__["told"] = _Told()
        self.__dict__["derivatives"] = Derivatives()
        self.__dict__["leaves"] = []  # which tensors of the batch require a gradient

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        # collocation points come with requires_grad=True; what is captured are detached copies
        asked = zip(tensors, self.__dict__["leaves"], strict=True)
        tensors = tuple(leaf(t) if wanted and capturing() else t for t, wanted in asked)
        given = self.__dict__["given"]
        held = Held(self.model)
        same = _same_tensors(*self.__dict__["own"])
        told, ran = self.__dict__["told"], self.__dict__["ran"]
        # Before the loss, which may bind another tensor to a name: what it gives back of that is of this step.
        own = (*self.model.named_parameters(), *self.model.named_buffers())
        counted = Counted(self.__dict__["before"])
        try:
            with (
                nullcontext() if given is None else given,
                same,
                held.noting_lines(),
                self.__dict__["caches"].standing_in(),
                without_state(self.__dict__["before"].optimizers),
                keep_seeds(),
                ran.noting(True),
                ran.outside.listening(),
                without_torchs_code(ran),
                noting_reads() as read,
            ):
                value = self.__dict__["loss"](self.model, self.layout.build(tensors))
            left = (*held.written_in_place(), *left_in_python(self.__dict__["before"]))
            told.left, told.read = offered(left, own), frozenset(read)
        except BaseException:
            held.put_back()
            raise
        told.drawn = counted.words()
        told.writes, changed = self.__dict__["before"].written()
        if changed:
            raise refuse(
                "held-tensor",
                f"forward writes {', '.join(changed)} in every step, which a program does not repeat",
            )
        extra: list[torch.Tensor] = []
        if isinstance(value, tuple):
            if len(value) != 2:
                raise refuse("loss", f"the loss function returned a tuple of {len(value)}; (loss, aux) has 2")
            value, aux = value
            extra, told.aux = batches.flatten(aux, "aux")
            told.lasting = lasting(extra, own)
        if not isinstance(value, torch.Tensor):
            raise refuse("loss", f"the loss function returned a {type(value).__name__}, not a tensor")
        if value.ndim != 0 or not value.is_floating_point():
            raise refuse(
                "loss", f"the loss is {value.dtype} of shape {list(value.shape)}; it must be a 0-d float"
            )
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        told.unreached = self.__dict__["derivatives"].unreached(value, trained)
        return [value, *extra, *(t for one in told.left for t in one.values)]


@one_at_a_time
def capture(
    model: nn.Module,
    loss: Loss,
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
    before = sources(model, loss)
    caches = Caches(before)
    held = before.tensors.items() if inputs else ()
    outside = {identity(tensor): name for name, tensor in held if _plain(tensor)}
    try:
        with _same_parts(model) as parts, plain([*tensors_of(model), *before.tensors.values()]), Ran() as ran:
            captured = _settled_draws(
                lambda: _twice(model, loss, batch, outside, before, ran, caches, settle, again),
                before,
                ran,
            )
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
    return replace(captured, ran=ran.names(), codes=ran.users(), outside=used, writes=writes)


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


def _places(model: nn.Module) -> Iterator[tuple[torch.Tensor, dict[str, Any], str]]:
    """Every parameter and buffer with its table and its name there."""
    for part in model.modules():
        for table in (part._parameters, part._buffers):
            yield from ((tensor, table, name) for name, tensor in table.items() if tensor is not None)


@contextmanager
def _same_tensors(before: Sources, own: Mapping[int, Any]) -> Iterator[None]:
    """A closure or an attribute that holds a parameter itself holds, while torch.export has its own tensors in the
    module's tables, those: else the parameter would be a constant there, and take no gradient from that place."""
    slots = [(t, k, v) for t, k, v, _ in before.slots if id(v) in own and isinstance(t, dict | list)]
    cells = [(c, v) for c, v, _ in before.cells if id(v) in own]
    try:
        for table, key, tensor in slots:
            place, name = own[id(tensor)]
            table[key] = place[name]
        for cell, tensor in cells:
            place, name = own[id(tensor)]
            cell.cell_contents = place[name]
        yield
    finally:
        for table, key, tensor in slots:
            table[key] = tensor
        for cell, tensor in cells:
            cell.cell_contents = tensor


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and tensor.numel() > 0


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


def _twice(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    outside: Outside,
    before: Sources,
    ran: Ran,
    caches: Caches,
    settle: bool,
    again: Again,
) -> Captured:
    """The program, once more where a trace left tensors behind: the next step would find them there, and must be the
    same program."""
    captured, leaving = _capture(model, loss, batch, outside, before, ran, caches, settle, again)
    left = leaving.places
    if not left:
        return captured
    before.put_back()
    second, anew, read = None, {place(one.table, one.key) for one in left}, set[Any]()
    with standing_in(left) as standing:
        try:
            found, other = _capture(model, loss, batch, outside, before, ran, caches, settle, again)
            stood = set(map(id, standing))
            anew = {place(one.table, one.key) for one in other.places if one.mark not in stood}
            pairs = zip(left, standing, strict=True)
            read = {place(one.table, one.key) for one, value in pairs if read_of(value, other.read)}
            second = found
        except (Refused, OfTheLoss):
            pass
    # What was put where nothing was, and is found there the next time, is a cache.
    moving = [one for one in left if not one.fresh or place(one.table, one.key) in anew]
    if moving and (second is None or not alike(captured, second)):
        raise Refused([one.reason for one in moving])
    every = [one for one in moving if not one.registered and place(one.table, one.key) in anew]
    own = {id(vars(part)): path for path, part in model.named_modules()}
    room = max(ROOM, sum(t.nbytes for t in captured.weights.tensors.values()))
    graph, kept, unkept = keeping(captured.graph, leaving.graph, every, own, read, room)
    return replace(captured, graph=graph, kept=kept, unkept=unkept)


def alike(one: Captured, other: Captured, *, values: bool = False) -> bool:
    """Whether two captures are one program, give back the same plain values beside the loss, and read the same
    constants; ``values``: that hold the same."""
    if one.graph != other.graph or _given_back(one) != _given_back(other):
        return False
    held, others = one.graph.constants, other.graph.constants
    if held.keys() != others.keys():
        return False
    return not values or all(a.tobytes() == others[n].tobytes() for n, a in held.items())


def _given_back(captured: Captured) -> Any:
    kept = [(one.name, one.said) for one in captured.kept]
    return captured.lasting, None if captured.aux is None else captured.aux.key, kept


def _has_tensors(part: Any, known: set[int]) -> bool:
    """Whether modules of it that are not ``known`` (by id) hold tensors."""
    fresh = [inner for inner in part.modules() if id(inner) not in known]
    return any(t is not None for p in fresh for table in (p._parameters, p._buffers) for t in table.values())


@contextmanager
def _same_parts(model: nn.Module) -> Iterator[list[Write]]:
    """A forward may put another part in place (BigBird's attention for short sequences does). torch.export takes back
    what it writes to attributes, and not this. It is taken back here, and what was put there is among what a step
    writes: half of a change would stay else. Raises Refused for parts with tensors of their own, and for removals."""
    before = [(path, part._modules, dict(part._modules)) for path, part in model.named_modules()]
    own = {id(part) for part in model.modules()}
    put: list[Write] = []
    try:
        yield put
        for path, table, parts in before:
            where = f"model.{path}" if path else "model"
            for name in (n for n, part in parts.items() if part is not None and table.get(n) is None):
                raise refuse("module-changed", f"forward removes {where}.{name}")
            anew = [(name, part) for name, part in table.items() if part is not parts.get(name)]
            for name, part in anew:
                if _has_tensors(part, own):
                    what = f"forward replaces {where}.{name} by a part with tensors of its own"
                    raise refuse("module-changed", what)
                put.append(Write(table, name, part, f"{where}.{name}"))
    finally:
        for _, table, parts in before:
            if table != parts:
                table.clear()
                table.update(parts)


def _capture(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    outside: Outside,
    before: Sources,
    ran: Ran,
    caches: Caches,
    settle: bool,
    again: Again,
) -> tuple[Captured, Leaving]:
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
        return answers(model, loss, batch)

    def made(given: Given | None) -> tuple[Captured, Leaving]:
        if given is not None:
            before.put_back()
        try:
            return _export(model, loss, layout, tensors, held, outside, before, ran, caches, given)
        finally:
            caches.forget()

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


_ASKED = {"control-flow", "dynamic-shape"}  # codes of what a question about values is refused with


def _export(
    model: nn.Module,
    loss: Loss,
    layout: batches.Layout,
    tensors: list[torch.Tensor],
    held: Weights,
    outside: Outside,
    before: Sources,
    ran: Ran,
    caches: Caches,
    given: Given | None = None,
) -> tuple[Captured, Leaving]:
    ran.outside.anew()
    program = _Program(model, loss, layout, given, before, ran, caches)
    flat = tuple(t.detach() for t in tensors)
    program.__dict__["leaves"] = [t.requires_grad for t in tensors]
    if not flat:
        raise refuse("batch", "the batch holds no tensor")
    with torch.enable_grad(), keep_metadata(), keep_checkpoints() as regions, keep_functions(regions) as kept:
        with (
            keep_hooks(kept) as hooks,
            keep_ctc(),
            keep_packed(),
            keep_statistics(),
            keep_derivatives() as derivatives,
            keep_transforms(derivatives),
            keep_maps(),
            without_mask_hints(),
            keep_data(),
            keep_nameless(),
            without_torchs_log(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            program.__dict__["derivatives"] = derivatives
            try:
                with ran.noting(False):  # but for the program's forward
                    exported = torch.export.export(program, flat, strict=False)
            except Exception as error:
                raise refusal_of(error) from error
            rewire(exported.graph_module, hooks)
            tags = tag(exported, held)
            try:
                with ran.noting(False):
                    program_of = functional(exported)
            except Exception as error:
                raise refusal_of(error) from error
            finally:
                left_of_export.clear()
        graph = convert(program_of, tags, held, layout, kept, outside)
    told = program.__dict__["told"]
    graph, leaving = apart(graph, told.left)
    leaving = replace(leaving, read=told.read)
    if told.unreached:
        graph = replace(graph, unreached=told.unreached)
        leaving = replace(leaving, graph=replace(leaving.graph, unreached=told.unreached))
    ours = tuple(replace(one, name=held.canonical(one.name)) for one in told.lasting)
    found = Captured(
        graph, layout, told.aux, held, tags.draws, writes=tuple(told.writes), lasting=ours, drawn=told.drawn
    )
    return found, leaving
