"""``capture(module, loss, batch)``: torch.export under patches, then the neutral graph and everything around
it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.capture import batch as batches
from detente.bridge.capture.causal import without_mask_hints
from detente.bridge.capture.ctc import keep_ctc
from detente.bridge.capture.functions import keep_functions, unkept
from detente.bridge.capture.hooks import keep_hooks, rewire
from detente.bridge.capture.neutral import convert
from detente.bridge.capture.provenance import tag
from detente.bridge.capture.quiet import without_torchs_log
from detente.bridge.capture.regions import keep_checkpoints, keep_metadata
from detente.bridge.capture.settled import Answers, Given, answers, unsettled
from detente.bridge.capture.statistics import keep_statistics
from detente.bridge.capture.weights import Weights, weights
from detente.bridge.capture.where import passed, raised_at, where
from detente.bridge.graph import Graph
from detente.bridge.refusal import Reason, Refused, refuse

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Captured:
    """A captured step. ``graph`` maps parameters, buffers, constants and batch leaves to loss, aux leaves
    and mutated buffers; ``batch`` and ``aux`` say how the pytrees come apart; ``weights`` names the live
    tensors; ``draws`` is how many random calls the program makes in eager order, dead ones included."""

    graph: Graph
    batch: batches.Layout
    aux: batches.Layout | None
    weights: Weights
    draws: int


class _Told:
    """The aux layout of the last trace."""

    aux: batches.Layout | None = None


class _Program(nn.Module):
    """What is exported: loss of the model on a batch that arrives as flat tensors."""

    def __init__(self, model: nn.Module, loss: Loss, layout: batches.Layout, answers: Answers | None) -> None:
        super().__init__()
        self.model = model
        self.__dict__["loss"] = loss  # not a submodule, even when it is a Module: its tensors are constants
        self.layout = layout
        self.__dict__["answers"] = answers
        # what forward found out; not an attribute, because export takes attribute writes back
        self.__dict__["told"] = _Told()

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        given = self.__dict__["answers"]
        with nullcontext() if given is None else Given(given):
            value = self.__dict__["loss"](self.model, self.layout.build(tensors))
        extra: list[torch.Tensor] = []
        if isinstance(value, tuple):
            if len(value) != 2:
                raise refuse("loss", f"the loss function returned a tuple of {len(value)}; (loss, aux) has 2")
            value, aux = value
            extra, self.__dict__["told"].aux = batches.flatten(aux, "aux")
        if not isinstance(value, torch.Tensor):
            raise refuse("loss", f"the loss function returned a {type(value).__name__}, not a tensor")
        if value.ndim != 0 or not value.is_floating_point():
            raise refuse(
                "loss", f"the loss is {value.dtype} of shape {list(value.shape)}; it must be a 0-d float"
            )
        return [value, *extra]


def capture(model: nn.Module, loss: Loss, batch: Any) -> Captured:
    """The step's forward and loss as a neutral graph. ``model`` is read, never changed.

    Raises Refused with every reason that could be found in one pass.
    """
    with _same_parts(model):
        return _capture(model, loss, batch)


@contextmanager
def _same_parts(model: nn.Module) -> Iterator[None]:
    """A forward may put another part in place (BigBird's attention for short sequences does). torch.export takes back
    what it writes to attributes, and not this: half of a change would stay."""
    before = [(part._modules, dict(part._modules)) for part in model.modules()]
    try:
        yield
    finally:
        for table, parts in before:
            if table != parts:
                table.clear()
                table.update(parts)


def _capture(model: nn.Module, loss: Loss, batch: Any) -> Captured:
    reasons: list[Reason] = list(unkept(model))
    held = weights(model)
    tensors, layout = batches.flatten(batch)
    if any(t.device.type == "meta" for t in held.tensors.values()):
        name = next(n for n, t in held.tensors.items() if t.device.type == "meta")
        reasons.append(Reason("meta", f"the parameters have no values ({name} is on the meta device)"))
    devices = {t.device.type for t in held.tensors.values()} - {"cpu", "meta"}
    if devices:
        reasons.append(Reason("device", f"the module is on {', '.join(sorted(devices))}"))
    try:
        captured = _export(model, loss, layout, tensors, held)
    except Refused as refused:
        second = None if reasons else _settled(model, loss, batch, layout, tensors, held, refused)
        if second is None:
            raise Refused([*reasons, *refused.reasons]) from refused.__cause__
        captured = second
    if reasons:
        raise Refused(reasons)
    return captured


_ASKED = {"control-flow", "dynamic-shape"}  # codes of what a question about values is refused with


def _settled(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    layout: batches.Layout,
    tensors: list[torch.Tensor],
    held: Weights,
    refused: Refused,
) -> Captured | None:
    """The program for the answers that this batch gives to what Python asks of values, where nothing but the batch
    decides them; else None, and the refusal stands. Raises Refused for what is wrong besides the questions."""
    if not {reason.code for reason in refused.reasons} <= _ASKED:
        return None
    try:
        found = answers(model, loss, batch)
        captured = _export(model, loss, layout, tensors, held, found)
    except Refused as second:
        if _ASKED.isdisjoint(reason.code for reason in second.reasons):
            raise  # with the answers given, something else stands in the way: that is what there is to mend
        return None
    except Exception:
        return None  # the first refusal says it
    return None if unsettled(captured.graph) else captured


def _export(
    model: nn.Module,
    loss: Loss,
    layout: batches.Layout,
    tensors: list[torch.Tensor],
    held: Weights,
    given: Answers | None = None,
) -> Captured:
    program = _Program(model, loss, layout, given)
    flat = tuple(t.detach() for t in tensors)
    if not flat:
        raise refuse("batch", "the batch holds no tensor")
    with torch.enable_grad(), keep_metadata(), keep_checkpoints() as regions, keep_functions(regions) as kept:
        with (
            keep_hooks(kept) as hooks,
            keep_ctc(),
            keep_statistics(),
            without_mask_hints(),
            without_torchs_log(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            try:
                exported = torch.export.export(program, flat, strict=False)
            except Exception as error:
                raise _refusal(error) from error
            rewire(exported.graph_module, hooks)
            tags = tag(exported, held)
            try:
                functional = exported.run_decompositions({})
            except Exception as error:
                raise _refusal(error) from error
        graph = convert(functional, tags, held, layout, kept)
    return Captured(graph, layout, program.__dict__["told"].aux, held, tags.draws)


# what torch says -> our code, and a hint where the code's own is not enough; the first row whose words occur wins
_MESSAGES: tuple[tuple[str, str, str], ...] = (
    ("data-dependent expression", "control-flow", ""),
    ("GuardOnDataDependent", "control-flow", ""),
    ("DataDependentOutput", "control-flow", ""),
    ("leaf Variable that requires grad", "leaf-inplace", ""),
    ("leaf variable", "leaf-inplace", ""),
    ("DynamicOutputShape", "dynamic-shape", ""),
    ("a fake tensor in the exported program", "export", "does forward use x.data? write x.detach()"),
)


# torch.func's grad, vmap and jacrev
_TRANSFORMS = ("/_functorch/eager_transforms.py", "/_functorch/apis.py", "/_functorch/vmap.py")


def _refusal(error: Exception) -> Refused:
    """The refusal hidden in an exception's chain, or torch's message with the user's line."""
    for link in _chain(error):
        if isinstance(link, Refused):
            return link
    text = f"{type(error).__name__}: {error}"
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    place = raised_at(error)
    if any(passed(link, part) for link in _chain(error) for part in _TRANSFORMS):
        return refuse("transform", f"torch.func inside the loss ({first.strip()[:200]})", place)
    code, hint = next(((code, hint) for words, code, hint in _MESSAGES if words in text), ("export", ""))
    if place.file == "?":
        # a node of the exported program was run again: torch quotes where the node came from
        quoted = (where(str(link)) for link in _chain(error))
        place = next((found for found in quoted if found.file != "?"), place)
    return refuse(code, f"{type(error).__name__}: {first.strip()[:400]}", place, hint)


def _chain(error: BaseException | None) -> Any:
    return itertools.takewhile(lambda e: e is not None, _links(error))


def _links(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
