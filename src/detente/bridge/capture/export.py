"""One trace of a module and its loss by torch.export, under patches, as the neutral graph and everything around it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from detente.bridge.capture import batch as batches
from detente.bridge.capture.cached import Caches
from detente.bridge.capture.captured import Captured
from detente.bridge.capture.causal import without_mask_hints
from detente.bridge.capture.ctc import keep_ctc
from detente.bridge.capture.data import keep_data
from detente.bridge.capture.derivative import Derivatives, keep_derivatives
from detente.bridge.capture.functional import functional
from detente.bridge.capture.functions import keep_functions
from detente.bridge.capture.generators import Counted, Drawn
from detente.bridge.capture.held import Held, Left, left_in_python, noting_reads
from detente.bridge.capture.hooks import keep_hooks, rewire
from detente.bridge.capture.kept import Leaving, apart, offered
from detente.bridge.capture.lasting import Lasting, lasting
from detente.bridge.capture.mapped import keep_maps
from detente.bridge.capture.markers import capturing, leaf
from detente.bridge.capture.memory import Memory, from_0
from detente.bridge.capture.nameless import keep_nameless
from detente.bridge.capture.neutral import convert
from detente.bridge.capture.packed import keep_packed
from detente.bridge.capture.provenance import tag
from detente.bridge.capture.quiet import without_torchs_log
from detente.bridge.capture.read_values import ReadValues
from detente.bridge.capture.regions import keep_checkpoints, keep_metadata
from detente.bridge.capture.seeds import keep_seeds
from detente.bridge.capture.settled import Given
from detente.bridge.capture.statistics import keep_statistics
from detente.bridge.capture.torchs_code import without_torchs_code
from detente.bridge.capture.torchs_words import refusal_of
from detente.bridge.capture.transforms import keep_transforms
from detente.bridge.capture.weights import Weights
from detente.bridge.graph import Where
from detente.bridge.live.moving_number import no_questions, stands
from detente.bridge.live.ran import Ran
from detente.bridge.live.sources import Sources
from detente.bridge.live.trains import without_state
from detente.bridge.live.unasked import unasked
from detente.bridge.live.writes import Write
from detente.bridge.private import left_of_export
from detente.bridge.refusal import refuse


@dataclass(frozen=True)
class Subject:
    """What is captured: a module and its loss. ``before`` is what Python holds around them, ``ran`` notes the code that
    runs, ``caches`` stand in for what forward looks up, and ``outside`` has (identity of a tensor -> its name) those
    held by the loss that are inputs of the program; the others are constants. ``tried``: places of what forward makes
    once (made_once.py) that hold it by now; None where none are filled. ``values`` notes which of the tensors that are
    held Python reads."""

    model: nn.Module
    loss: Callable[[Any, Any], Any]
    before: Sources
    ran: Ran
    caches: Caches
    outside: Mapping[tuple[object, ...], str] = field(default_factory=dict)
    tried: Collection[Any] | None = None
    values: ReadValues = field(default_factory=lambda: ReadValues({}))


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
    into_batch: tuple[str, ...] = ()
    begins: Where | None = None


class _Program(nn.Module):
    """What is exported: loss of the model on a batch that arrives as flat tensors."""

    def __init__(self, subject: Subject, layout: batches.Layout, given: Given | None) -> None:
        super().__init__()
        self.model = subject.model
        self.layout = layout
        # not submodules, even where the loss is a Module: its tensors are constants
        self.__dict__["subject"], self.__dict__["given"] = subject, given
        self.__dict__["own"] = {id(tensor): place for tensor, *place in _places(self.model)}
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
        told, subject = self.__dict__["told"], self.__dict__["subject"]
        before, ran = subject.before, subject.ran
        same = _same_tensors(before, self.__dict__["own"])
        # Before the loss, which may bind another tensor to a name: what it gives back of that is of this step.
        own = (*self.model.named_parameters(), *self.model.named_buffers())
        counted = Counted(before)
        batch = self.layout.build(tensors)
        stood = batches.leaves(batch)
        try:
            with (
                nullcontext() if given is None else given,
                same,
                held.noting_lines(),
                subject.caches.standing_in(),
                without_state(before.optimizers),
                keep_seeds(),
                ran.noting(True),
                ran.outside.listening(),
                without_torchs_code(ran),
                noting_reads() as read,
                subject.values.noting(),
                Memory(tensors) as memory,
                no_questions([one for one in stood.values() if stands(one) or unasked(one)]),
            ):
                value = subject.loss(self.model, batch)
            own_places = self.__dict__["own"]
            left = (*held.written_in_place(), *_but_what_was(left_in_python(before), before, own_places))
            told.left, told.read = offered(left, own), frozenset(read)
        except BaseException:
            held.put_back()
            raise
        told.drawn, told.begins = counted.words(), memory.begins
        told.into_batch = tuple(n for n, one in batches.leaves(batch).items() if stood.get(n) is not one)
        told.writes, changed = before.written()
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
            extra, told.aux = batches.flatten(aux, "aux", given=False)
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


def _but_what_was(left: Iterable[Left], before: Sources, own: Mapping[int, Any]) -> list[Left]:
    """Without the places that held tensors of the module's own, and hold those that stand for the same ones in the
    trace: torch's recurrent layers make their list of weights anew where a weight is another object. In eager nothing
    is left there."""
    found = list(left)
    held = {(id(table), key): then for table, key, then, _ in before.slots} if found else {}
    return [one for one in found if not _is_what_was(held.get((id(one.table), one.key)), one.held, own)]


def _is_what_was(then: Any, now: Any, own: Mapping[int, Any]) -> bool:
    if then is now:
        return True
    if isinstance(then, torch.Tensor):
        table, name = own.get(id(then), ({}, ""))
        return table.get(name) is now
    if type(then) is not type(now) or not isinstance(then, list | tuple):
        return False
    return len(then) == len(now) and all(_is_what_was(a, b, own) for a, b in zip(then, now, strict=True))


def export(
    subject: Subject,
    layout: batches.Layout,
    tensors: list[torch.Tensor],
    held: Weights,
    given: Given | None = None,
) -> tuple[Captured, Leaving]:
    """One trace. ``tensors`` are the batch's, ``held`` the module's; ``given``: the answers that the user's code gets
    where it asks for values. Raises Refused, in the user's words, for whatever torch.export raises."""
    ran = subject.ran
    ran.outside.anew()
    program = _Program(subject, layout, given)
    flat = tuple(t.detach() for t in tensors)
    program.__dict__["leaves"] = [t.requires_grad for t in tensors]
    if not flat:
        hint = "put what the loss reads into it (features, labels, edges): example_batch=(x, y), and step((x, y))"
        raise refuse("batch", "the batch holds no tensor", hint=hint)
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
        # Before what reads memory that this tensor does not have is refused by itself, in other words.
        begins = program.__dict__["told"].begins
        from_0(begins, layout.paths, [t.storage_offset() for t in tensors])
        graph = convert(program_of, tags, held, layout, kept, subject.outside)
    told = program.__dict__["told"]
    graph, leaving = apart(graph, told.left)
    leaving = replace(leaving, read=told.read)
    if told.unreached:
        graph = replace(graph, unreached=told.unreached)
        leaving = replace(leaving, graph=replace(leaving.graph, unreached=told.unreached))
    ours = tuple(replace(one, name=held.canonical(one.name)) for one in told.lasting)
    found = Captured(
        graph,
        layout,
        told.aux,
        held,
        tags.draws,
        writes=tuple(told.writes),
        lasting=ours,
        drawn=told.drawn,
        into_batch=told.into_batch,
        begins=told.begins,
    )
    return found, leaving
