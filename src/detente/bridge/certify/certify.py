"""The certificate: one step of the compiled program against torch eager, tensor by tensor.

Both are judged against the same step in float64 in torch eager: a tensor passes when the bridge's error is
at most four times torch's own error at this precision, plus a floor (64 eps of the tensor's rms for
gradients and buffers, 2e-5 of rms(update) for updates in float32, scaled by eps for other dtypes). Tensors
whose float64 rms is under 1e-6 of the largest of their kind are listed, not judged: their gradient is
rounding alone (key biases in attention); not so where the program's own is more than rounding.
torch's own error of a gradient of a few elements is luck (two rms errors of four elements each differ by more than the
margin once in a hundred times): under 64 elements it counts as at least the median of its own relative errors over all
gradients, of which there must be twenty.
Where a tensor fails, the whole comparison is made again, up to eight times, from parameters that are off by one
rounding each: a ReLU whose input is within rounding of zero takes the other branch, and every gradient behind it
differs, on a fair side as often as on the other. A program that is wrong is wrong at every such point. torch's own
error of a tensor is then the largest seen so far, over the ways in which its kernels may sum (ways.py).
Updates are compared on the elements whose gradient is not rounding (see ``_well_conditioned``), and torch's own error
of one is at least the 95th percentile of its own relative errors over all updates, of which there must be twenty: the
referee's rule (judge/parity.py), because an update has heavy tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from detente.bridge.capture.batch import Layout, flatten
from detente.bridge.capture.traits import laid
from detente.bridge.certify import narrowed
from detente.bridge.certify.apart import Apart, apart, apart_moved, double, pooled, rms
from detente.bridge.certify.certificate import Certificate, Row
from detente.bridge.certify.eager import EagerStep, eager_step
from detente.bridge.certify.lent import Lender
from detente.bridge.certify.room import Room, too_little
from detente.bridge.certify.ways import PLAIN, WAYS, Way
from detente.bridge.certify.widened import widened
from detente.bridge.copies import copied
from detente.bridge.live.guard import tensors_of
from detente.bridge.live.interrupts import safe
from detente.bridge.private import pytree
from detente.bridge.refusal import Refused
from detente.bridge.threads import only_here

Numbers = Callable[[], Callable[[int], AbstractContextManager[Any] | None] | None]

MARGIN = 4.0
# Two runs of eager in float64 may differ by so much, relative: sums in another order.
REPEATS = 1e-9
NEGLIGIBLE = 1e-6
FEW = 64
NUDGES = range(1, 9)
FINEST = range(101, 104)  # seeds of roundings, where nothing finer than torch's own arithmetic is there


@dataclass(frozen=True)
class Measured:
    """What the compiled program computed in the step that is certified, as torch tensors by canonical
    name."""

    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor | None]
    values: Mapping[str, torch.Tensor]
    buffers: frozenset[str]
    coarsest: float  # the largest machine epsilon of the program's floating dtypes


Again = Callable[[Mapping[str, torch.Tensor]], Measured]


@dataclass(frozen=True)
class Then:
    """What belongs to the certified step and may have changed since: ``param_groups`` (their numbers, and which of the
    live parameters stood in which), the training flags in module order, the batch, and the random twin's context;
    besides, the micro-batches of a batch and the clipping."""

    groups: Sequence[Mapping[str, Any]]
    mode: Sequence[bool]
    batch: Any
    numbers: Numbers
    parts: int = 1
    clip: Callable[[Iterable[torch.Tensor]], None] | None = None
    # whether the program multiplies in TF32: torch's own error is then that of such products
    tf32: bool = False
    # puts the state before the step into copies of module and optimizer; None: the live ones hold it
    restore: Callable[[nn.Module, torch.optim.Optimizer], None] | None = None
    room: Room = Room()


def certify(
    measured: Measured,
    model: nn.Module,
    loss: Callable[[Any, Any], Any],
    optimizer: torch.optim.Optimizer,
    then: Then,
    again: Again | None = None,
) -> Certificate:
    """Run the eager step (and its float64 form) on copies, from the state that ``model`` and ``optimizer`` hold
    or ``then.restore`` gives them. ``again`` runs the compiled step from other values.

    Raises nothing on a difference: see ``Certificate.ok``.
    """
    lender = Lender(model, loss, optimizer)
    rows, reference = _compared(measured, lender, then, None, {})
    own = _errors(rows)
    if measured.loss.dtype == torch.float64 and not all(row.ok for row in rows):
        # Nothing is finer than this torch: its error is what it makes of roundings, and not the nothing between itself
        # and itself.
        for seed in FINEST:
            for key, moved in _moved_by_rounding(lender, then, seed).items():
                own[key] = max(own.get(key, 0.0), moved)
        rows, reference = _compared(measured, lender, then, None, own)
        reference += ", its own error from parameters off by one rounding"
    for count, (seed, way) in enumerate(zip(NUDGES, WAYS, strict=True), 1):
        if again is None or all(row.ok for row in rows) or any(row.kind == "repeat" for row in rows):
            break
        safe()
        values = _state_before(lender, then, seed)
        rows, kind = _compared(again(values), lender, then, seed, own, way)
        own |= _errors(rows)
        reference = f"{kind}, from parameters off by one rounding ({count} tr{'y' if count == 1 else 'ies'})"
    if then.tf32:
        reference += ", torch's own error with products of TF32"
    return Certificate("full", reference, tuple(rows), {"torch": torch.__version__, "jax": _jax_version()})


def _moved_by_rounding(lender: Lender, then: Then, seed: int) -> dict[tuple[str, str], float]:
    """How far apart two eager steps are that begin one rounding apart."""
    steps = [_eager_step(lender, then, None, nudge=nudge) for nudge in (None, seed)]
    begun = [_state_before(lender, then, nudge) for nudge in (None, seed)]
    begun[0] = {n: t.clone() for n, t in begun[0].items()}
    found = {("loss", "loss"): rms(steps[0].loss.double() - steps[1].loss.double())}
    for name, gradient in steps[0].gradients.items():
        other = steps[1].gradients[name]
        if gradient is not None and other is not None:
            found["gradient", name] = rms(gradient.double() - other.double())
    for name, value in steps[0].values.items():
        if _floating(value):
            one, two = (s.values[name].double() - b[name].double() for s, b in zip(steps, begun, strict=True))
            found["update", name] = rms(one - two)
            found["buffer", name] = rms(value.double() - steps[1].values[name].double())
    return found


def _errors(rows: Iterable[Row]) -> dict[tuple[str, str], float]:
    """torch's own errors, the largest so far: a row's is never less than what its round was given."""
    return {(row.kind, row.name): row.reference_error for row in rows if math.isfinite(row.reference_error)}


def _compared(
    measured: Measured,
    lender: Lender,
    then: Then,
    nudge: int | None,
    own: Mapping[tuple[str, str], float],
    way: Way = PLAIN,
) -> tuple[list[Row], str]:
    """All rows, and what they were measured against. ``way``: how torch rounds in the step whose error counts."""
    before = _state_before(lender, then, nudge)
    plain = _eager_step(lender, then, None, nudge=nudge, way=replace(way, tf32=then.tf32))
    exact, reference = _exact_step(lender, then, nudge)
    if exact is None:
        exact = plain
    if plain.loss.isfinite() and not exact.loss.isfinite():
        # float32's lowest number as a mask: twice it is -inf in float32 and finite in float64, or the reverse.
        # Against NaN nothing could be judged.
        exact, reference = plain, "torch eager at the same precision (the loss is not finite in float64)"
    # without a float64 reference torch's own error is unknown, and the roundings of the coarsest dtype count
    coarsest = max(measured.coarsest, narrowed.EPS) if then.tf32 else measured.coarsest
    slack = 4 * coarsest if exact is plain else 0.0
    rows = list(_rows(measured, before, plain, exact, slack, own))
    # asked once, from where the step began: a point one rounding away repeats as this one does
    return rows if nudge is not None else [*rows, *_unrepeated(lender, then, exact, reference)], reference


def _unrepeated(lender: Lender, then: Then, exact: EagerStep, reference: str) -> list[Row]:
    """Eager's loss a second time: a row where it is another one. What does not repeat (a loss that reads the clock) is
    an error of torch's own beside which anything would pass, and the program holds one value of it for ever."""
    inside = dict(_REFERENCES)
    dtype = torch.float64 if reference in inside else None
    way = replace(PLAIN, tf32=then.tf32 and dtype is None)
    second = _eager_step(lender, then, dtype, inside.get(reference), only_loss=True, way=way).loss
    first = exact.loss
    error, size = rms(double(second) - double(first)), rms(double(first))
    allowed = (REPEATS if dtype is not None else 64 * _eps(first)) * size
    alike = torch.equal(first, second) or bool(first.isnan() and second.isnan()) or error <= allowed
    return [] if alike else [Row("repeat", "loss", error, 0.0, allowed)]


_REFERENCES: tuple[tuple[str, Callable[[], AbstractContextManager[None]] | None], ...] = (
    ("torch eager in float64", None),
    ("torch eager in float64 (also where the module names a narrower dtype)", widened),
)


def _exact_step(lender: Lender, then: Then, nudge: int | None) -> tuple[EagerStep | None, str]:
    """The step in float64 and what it is called; None for a module that has no float64 form, or where it has no
    room."""
    if missing := too_little(then.room.float64):
        return None, f"torch eager at the same precision (in float64 its step {missing})"
    for reference, inside in _REFERENCES:
        try:
            return _eager_step(lender, then, torch.float64, inside, nudge), reference
        except Refused:
            raise
        except Exception:  # a module that names its dtypes multiplies float32 with float64
            continue
    return None, "torch eager at the same precision (the module does not run in float64)"


def _state_before(lender: Lender, then: Then, nudge: int | None) -> dict[str, torch.Tensor]:
    def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        if then.restore is not None:
            then.restore(model, optimizer)
        if nudge is not None:
            _nudge(model, nudge)
        return {n: t.detach() for n, t in (*model.named_parameters(), *model.named_buffers())}

    if then.restore is None and nudge is None:
        return held(lender.model, lender.optimizer)
    return lender.run(held)


def _eager_step(
    lender: Lender,
    then: Then,
    dtype: torch.dtype | None,
    inside: Callable[[], AbstractContextManager[None]] | None = None,
    nudge: int | None = None,
    only_loss: bool = False,
    way: Way = PLAIN,
) -> EagerStep:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> EagerStep:
        tensors, layout = flatten(then.batch)  # its container need not know how to be copied
        given = copied(tensors)
        if then.restore is not None:
            then.restore(model, optimizer)
        if nudge is not None:
            _nudge(model, nudge)
        own = {id(p): q for p, q in zip(lender.model.parameters(), model.parameters(), strict=True)}
        _regroup(optimizer, then.groups, own)
        for part, training in zip(model.modules(), then.mode, strict=True):
            part.training = training
        if dtype is not None:
            # In place: a closure may hold a buffer itself. Not ``model.to(dtype)``, which makes complex buffers real.
            for tensor in tensors_of(model):
                tensor.data = _as(tensor.data, dtype)
            given = _batch_as(given, layout, dtype)
            for state in optimizer.state.values():
                for key, value in state.items():
                    if key != "step":
                        state[key] = pytree.tree_map(lambda x: _as(x, dtype), value)
        # Built last: of two leaves that are one tensor, and of attributes that were set on one, ``_as`` knows nothing.
        batch = layout.build(given)
        with _no_autocast() if dtype is not None else nullcontext():
            numbers = then.numbers() if inside is None else _joined(then.numbers(), inside)
            return eager_step(
                *(model, lender.loss, optimizer, batch, numbers, then.parts, then.clip, only_loss),
                around=lambda: way.inside(tensors_of(model)),
            )

    return lender.run(step)


def _regroup(
    optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]], own: Mapping[int, torch.Tensor]
) -> None:
    """The groups of that step: one may have been removed, merged or added since. ``own``: this optimizer's parameters
    by the ids of the live ones. The list, and as many groups as there are, stay the same objects: an optimizer that
    wraps another has them, too."""
    mine = optimizer.param_groups
    del mine[len(groups) :]
    mine.extend({} for _ in range(len(groups) - len(mine)))
    for group, held in zip(mine, groups, strict=True):
        group.clear()  # also of what the step has put there
        group.update(held)
        group["params"] = [own.get(id(p), p) for p in held["params"]]


def _nudge(model: nn.Module, seed: int) -> None:
    """Every element of every parameter, up or down by one rounding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                signs = signs.double()  # an int times eps would be float32, which has no 1 + 2e-16
                parameter.mul_((1 + _eps(parameter) * signs).to(parameter.device, parameter.dtype))


def _joined(
    numbers: Callable[[int], AbstractContextManager[Any] | None] | None,
    inside: Callable[[], AbstractContextManager[None]],
) -> Callable[[int], AbstractContextManager[Any]]:
    """The random twin of a micro-batch, and ``inside`` on top of it."""

    @contextmanager
    def both(part: int) -> Iterator[None]:
        with (numbers(part) if numbers else None) or nullcontext(), inside():
            yield

    return both


@contextmanager
def _no_autocast() -> Iterator[None]:
    """The float64 reference is exact: ``torch.autocast`` inside the module does nothing, in this thread."""
    plain = torch.autocast.__enter__, torch.autocast.__exit__
    torch.autocast.__enter__ = only_here(lambda self: self, plain[0])
    torch.autocast.__exit__ = only_here(lambda self, *error: None, plain[1])
    try:
        yield
    finally:
        torch.autocast.__enter__, torch.autocast.__exit__ = plain


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _as(value: Any, dtype: torch.dtype) -> Any:
    """A real tensor in ``dtype``, a complex one in the complex numbers of that width, anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_complex():
        return value.to(dtype.to_complex())
    return value.to(dtype) if _floating(value) else value


def _batch_as(tensors: Sequence[torch.Tensor], layout: Layout, dtype: torch.dtype) -> list[torch.Tensor]:
    """A batch's tensors in ``dtype``, in memory as they lay: the loss may ask."""
    odd = dict(layout.odd)
    rows = zip(tensors, layout.strides, layout.tracked, strict=True)
    return [
        laid(_as(tensor.detach(), dtype).resolve_conj().resolve_neg(), strides, odd.get(i)).requires_grad_(
            tracked
        )
        for i, (tensor, strides, tracked) in enumerate(rows)
    ]


def _rows(
    measured: Measured,
    before: Any,
    plain: EagerStep,
    exact: EagerStep,
    slack: float,
    own: Mapping[tuple[str, str], float],
) -> Iterable[Row]:
    eps = float(torch.finfo(measured.loss.dtype).eps)

    def floor(tensor: torch.Tensor, factor: float = 64.0) -> float:
        return max(factor * _eps(tensor), slack)

    loss = apart(measured.loss, plain.loss, exact.loss)
    yield _row(own, "loss", "loss", loss, max(64 * eps, slack), 0.0)
    known: dict[str, Apart] = {}
    sizes: dict[str, float] = {}
    for name, expected in exact.gradients.items():
        ours, theirs = measured.gradients.get(name), plain.gradients[name]
        if expected is not None and theirs is not None and ours is not None:
            known[name] = apart(ours, theirs, expected)
        if expected is not None:
            sizes[name] = known[name].size if name in known else rms(expected)
    largest = max(sizes.values(), default=0.0)
    typical = pooled((a for a in known.values() if a.size >= NEGLIGIBLE * largest), 0.5)
    telling: set[str] = set()  # parameters whose gradient is more than rounding
    for name, expected in exact.gradients.items():
        ours, theirs = measured.gradients.get(name), plain.gradients[name]
        if expected is None or theirs is None or ours is None:
            same = (ours is None) == (theirs is None)
            telling.add(name)
            yield Row("gradient", name, 0.0 if same else float("inf"), 0.0, 0.0)
            continue
        small = known[name].size < NEGLIGIBLE * largest and _is_rounding(ours, theirs, largest)
        if not small:
            telling.add(name)
        least = typical if expected.numel() < FEW else 0.0
        yield _row(own, "gradient", name, known[name], floor(theirs), 0.0, not small, least)
    rows: list[tuple[str, Apart, float, float, bool]] = []
    for name, expected in exact.values.items():
        theirs, old = plain.values[name], before[name]
        # What the program does not write stays as it was: eager must leave it, too.
        ours = measured.values.get(name, old)
        moves = theirs.is_floating_point() or theirs.is_complex()
        if name in measured.buffers or name not in measured.values or not moves:
            yield _row(own, "buffer", name, apart(ours, theirs, expected), floor(theirs), 0.0)
            continue
        gradient = exact.gradients.get(name)
        small = gradient is not None and name not in telling
        moved = apart_moved(ours, theirs, expected, old, gradient)
        # the stored sum is rounded to the parameter's dtype, whatever the update is
        stored = _eps(theirs) * rms(old)
        rows.append((name, moved, floor(theirs, 2e-5 / 2**-23), stored, not small))
    of_all = pooled(moved for _, moved, *_ in rows)
    for name, moved, share, stored, judged in rows:
        yield _row(own, "update", name, moved, share, stored, judged, of_all)


def _is_rounding(ours: torch.Tensor, theirs: torch.Tensor, largest: float) -> bool:
    """Whether a gradient that is next to nothing in float64 is no more than rounding makes of that, here or in
    torch."""
    rounding = max(NEGLIGIBLE, 64 * _eps(theirs)) * largest
    return rms(ours) <= max(rounding, 10 * rms(theirs))


def _row(
    seen: Mapping[tuple[str, str], float],
    kind: str,
    name: str,
    found: Apart,
    floor: float,
    extra: float,
    judged: bool = True,
    least: float = 0.0,
) -> Row:
    """One tensor, with torch's own error at least what was ``seen`` of it before, and its ``least`` share."""
    own = max(found.own, seen.get((kind, name), 0.0))
    allowed = MARGIN * max(own, least * found.size) + floor * found.size + extra
    return Row(kind, name, found.error, own, allowed, judged)


def _eps(tensor: torch.Tensor) -> float:
    return float(torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() or tensor.is_complex() else 0.0


def _jax_version() -> str:
    import jax

    return jax.__version__
