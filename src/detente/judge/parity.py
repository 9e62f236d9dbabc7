"""Parity: is it the same computation? Two levels, judged from the errors that the workers measured.

*Same function*: size ``tiny``, fp64, relative error at most 1e-9 (fair pairs measure 1e-11, the smallest planted
fault 1e-4). *Same precision*: the timed process at the timed size, ``err <= 4 * err_ref + floor``, where err_ref is
torch-eager's own error against the same fp64 reference.

Which floor. In fp32 the error of a fair tensor is a sum of many roundings, and err_ref may be small by luck: 64 eps
of the tensor's rms. An update carries optax's fp32 ``1 - b2^t`` besides: 2e-5 of its rms (a fair one differs by 60x
the reference's error). In bf16 and tf32, 64 eps would be half of the tensor and prove nothing. There the operands of
each product are rounded once and accumulated in fp32, so that one unit roundoff of the compute dtype (eps / 2: 0.4 %
in bf16, 0.05 % in tf32) bounds the share that err_ref can miss; typical err_ref is larger, and 4 * err_ref decides.

Updates have heavy tails. AdamW divides by the root of the squared gradient, so that an element whose gradient is all
rounding moves by a full learning rate in a direction of its own: one or two such elements are a tensor's whole error,
and two fair draws of it differ by more than 4 (GPT-2 Small: 2 of 148 tensors between eager and torch_xla, while the
quantiles of the two agree to a tenth). A tensor's err_ref is therefore taken to be at least the 95th percentile of
the reference's own relative errors over all updates of the run. Gradients keep the sharp bound, and level one has no
such slack: a wrong optimizer is caught there.

Infinities and NaN among outputs and buffers (logits of a class that is not allowed) are no error where the reference
has the same in the same place: the worker compares the places by themselves (worker/unbounded.py), and they have no
floor. A loss, a gradient or a state that is not finite always fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from detente.records.precision import PRECISIONS, Precision
from detente.records.result import ParityColumn
from detente.records.tensor_error import NOT_FINITE, TensorError
from detente.records.window import MANY_STEPS

SAME_FUNCTION = 1e-9
TIMES_REFERENCE = 4.0
UPDATE_FLOOR = 2e-5
POOLED_LEAST = 20
# Tensors whose reference rms is under this share of the largest of their kind are rounding noise around a
# mathematical zero (the bias of an attention key, for one): listed, not judged.
NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Judged:
    """One tensor with its bound. ``share`` is err / bound: over 1 it differs. None: listed, not judged."""

    error: TensorError
    bound: float
    share: float | None


# Steps that the floor of updates was measured over, and where it ends: of thousands of small steps a hundredth that was
# left out is seen.
FLOOR_STEPS = 3
MOST_FLOOR = 5e-3
# What follows from updates: moments are gradients at parameters that drifted by them.
_UPDATED = ("update", "moment")


def times_reference(steps: int) -> float:
    """How many times the reference's own error a tensor may be off. Twice as many behind ``MANY_STEPS``, where a kink
    that one trajectory meets and nine others do not has parted them (5.2 times, of 542 steps of a small ReLU net)."""
    return TIMES_REFERENCE if steps <= MANY_STEPS else 2 * TIMES_REFERENCE


def relative_floor(precision: Precision, kind: str, steps: int = FLOOR_STEPS) -> float:
    """The floor of one kind of tensor as a share of its rms (see the module's text). Over more ``steps`` roundings add
    up: behind 27 of them a fair tensor of another framework was off by 3.6e-5 where two eager runs shared their
    kernels, and so their luck; one step left out of 27 is 4e-2."""
    rounding = 64 * precision.eps if precision.product in ("fp32", "fp64") else precision.eps / 2
    if kind not in _UPDATED:
        return rounding
    floor = max(UPDATE_FLOOR, rounding)
    return max(floor, min(floor * steps / FLOOR_STEPS, MOST_FLOOR))


def pooled_errors(errors: Sequence[TensorError], steps: int = FLOOR_STEPS) -> dict[str, float]:
    """For each scale of updates and moments (``_scale``) the 95th percentile of err_ref / rms over a run; absent under
    20 tensors, where there is no such percentile to speak of. Behind ``MANY_STEPS`` the median says it of fewer: an MLP
    that had learnt its batches by heart was off by 2.5 % in a moment of six that were, for the eager runs, off by 0.6
    to 40: the last digits of 1 - p are a framework's own."""
    shares: dict[str, list[float]] = {}
    for e in errors:
        if e.kind in _UPDATED and e.rms > 0 and math.isfinite(e.err_ref):
            shares.setdefault(_scale(e), []).append(e.err_ref / e.rms)
    return {
        scale: sorted(found)[int((0.95 if len(found) >= POOLED_LEAST else 0.5) * (len(found) - 1))]
        for scale, found in shares.items()
        if len(found) >= POOLED_LEAST or steps > MANY_STEPS
    }


def bound_of(
    error: TensorError, precision: Precision, pooled: float = 0.0, steps: int = FLOOR_STEPS
) -> float:
    """The largest error that this tensor may have behind so many ``steps``. ``pooled`` is that of its scale in its run
    (``pooled_errors``)."""
    if error.name.endswith(NOT_FINITE):
        return times_reference(steps) * error.err_ref  # places are the same or others: nothing rounds
    if precision.name == "fp64":
        return SAME_FUNCTION * error.rms
    own = max(error.err_ref, pooled * error.rms) if error.kind in _UPDATED else error.err_ref
    return times_reference(steps) * own + relative_floor(precision, error.kind, steps) * error.rms


def judge_tensors(
    errors: Sequence[TensorError], precision: Precision, steps: int = FLOOR_STEPS
) -> tuple[Judged, ...]:
    """Every tensor with its bound behind so many ``steps`` and share, in the order given. A value that is not finite
    always fails."""
    sizes: dict[str, list[float]] = {}
    for e in errors:
        if math.isfinite(e.rms):
            sizes.setdefault(_scale(e), []).append(e.rms)
    largest = {s: ceiling(found) if s.startswith("moment") else max(found) for s, found in sizes.items()}
    pooled = pooled_errors(errors, steps)
    judged = []
    for e in errors:
        if not (math.isfinite(e.err) and math.isfinite(e.rms) and math.isfinite(e.err_ref)):
            judged.append(Judged(e, math.nan, math.inf))
            continue
        bound = bound_of(e, precision, pooled.get(_scale(e), 0.0), steps)
        most = largest[_scale(e)]
        if e.kind != "loss" and e.rms < NEGLIGIBLE * most:
            # Noise may be listed, a value may not: an error that would count among the large ones is a difference.
            small = e.err <= max(bound, NEGLIGIBLE * most)
            judged.append(Judged(e, bound, None if small else e.err / max(bound, NEGLIGIBLE * most)))
        elif bound == 0:
            judged.append(Judged(e, bound, 0.0 if e.err == 0 else math.inf))
        else:
            judged.append(Judged(e, bound, e.err / bound))
    return tuple(judged)


# What shows a fault before an optimizer has spread it, first: gradients, or what a forward pass returns.
_SHARP = ("gradient", "output", "update")


def unseen(judged: Sequence[Judged]) -> float | None:
    """The relative error that the proof could not have seen: the largest bound over its tensor's rms, of the sharpest
    kind that there is. None where nothing was judged."""
    for kind in _SHARP:
        found = [
            j.bound / j.error.rms
            for j in judged
            if j.error.kind == kind and j.share is not None and j.error.rms
        ]
        if found:
            return max(found)
    return None


def ceiling(sizes: Iterable[float]) -> float:
    """What is large among these: the largest, but no more than 1e4 times the median. A state that a stack hands out is
    its own word: one moment blown up would make all others noise."""
    found = sorted(sizes)
    return min(found[-1], 1e4 * found[len(found) // 2]) if found else 0.0


def _scale(error: TensorError) -> str:
    """What is of one size: first and second moments are not, nor are numbers and the places of what is none."""
    if error.name.endswith(NOT_FINITE):
        return error.kind + NOT_FINITE
    return f"{error.kind}|{error.name.partition(':')[0]}" if error.kind == "moment" else error.kind


def first_difference(judged: Iterable[Judged]) -> Judged | None:
    """The first tensor over its bound, in the order in which the worker read them; before those whose reference is
    nothing but rounding, of which no relative error tells anything."""
    beyond = [j for j in judged if j.share is not None and j.share > 1]
    return next((j for j in beyond if not _is_rounding(j.error)), next(iter(beyond), None))


def _is_rounding(error: TensorError) -> bool:
    """Whether an error stands beside a reference that is 0 but for the rounding of fp64."""
    return math.isfinite(error.err) and error.rms < SAME_FUNCTION * error.err


@dataclass(frozen=True)
class Proved:
    """What one process proved at its precision: ``errors`` of its first three steps and, of a timed one, ``window``:
    those of the state that the first ``steps`` of its window left. Each has the bound of its own steps: by that of
    three a fair JAX row was void behind 35, all of its moments 5e-5 off. That is optax's ``1 - b2^t`` in float32: in
    an fp64 run of torch that alone moves them by 2e-5 to 7e-5."""

    errors: tuple[TensorError, ...]
    window: tuple[TensorError, ...] = ()
    steps: int = FLOOR_STEPS

    def judged(self, at: Precision) -> tuple[Judged, ...]:
        return judge_tensors(self.errors, at) + judge_tensors(self.window, at, self.steps)


@dataclass(frozen=True)
class Proofs:
    """The errors that exist of one row: fp64 runs (``function``, and whether one ran on the row's own device), what
    each process proved at the row's precision (``precision``), and what those did that measured memory (``memory``)."""

    function: tuple[tuple[TensorError, ...], ...] = ()
    function_on_device: bool = True
    precision: tuple[Proved, ...] = ()
    memory: tuple[Proved, ...] = ()


def parity_column(proofs: Proofs, precision_name: str) -> ParityColumn:
    """The parity column of a row, from everything that was measured of it."""
    at = PRECISIONS[precision_name]
    function = [judge_tensors(errors, PRECISIONS["fp64"]) for errors in proofs.function if errors]
    timed = [proved.judged(at) for proved in proofs.precision if proved.errors or proved.window]
    first = next((d for run in function if (d := first_difference(run))), None)
    second = next((d for run in timed if (d := first_difference(run))), None)
    third = next((d for run in proofs.memory if (d := first_difference(run.judged(at)))), None)
    passed = "passed" if proofs.function_on_device else "inherited"
    same_function = "failed" if first else passed if function else "not checked"
    same_precision = "failed" if second or third else "passed" if timed else "not checked"

    everything = [j for run in (timed or function) for j in run]
    counted = max((run for run in (timed or function)), key=len, default=())
    nearest = max((j for j in everything if j.share is not None), key=lambda j: j.share or 0.0, default=None)
    worst = first or second or third or nearest
    reason = ""
    if first:
        reason = f"not the same function in fp64: {tell_difference(first)}"
    elif second:
        reason = f"not the same precision as {precision_name}: {tell_difference(second)}"
    elif third:
        reason = f"where its memory was measured it computed something else: {tell_difference(third)}"
    return ParityColumn(
        same_function,
        same_precision,
        worst=worst.error if worst else None,
        share=worst.share if worst else None,
        tensors=len(counted),
        listed=sum(1 for j in counted if j.share is None),
        reason=reason,
        unseen=unseen(everything),
    )


def tell_difference(judged: Judged) -> str:
    """One line on a tensor beyond its bound."""
    e = judged.error
    if e.name.endswith(NOT_FINITE):
        return f"{e.kind} {e.name.removesuffix(NOT_FINITE)} is not finite in other places than the reference"
    if not math.isfinite(e.err):
        return f"{e.kind} {e.name} is not finite"
    if not (math.isfinite(e.rms) and math.isfinite(e.err_ref)):
        return f"the reference of {e.kind} {e.name} is not finite"
    relative = (
        f"an error of {e.err:.2g} where the reference is 0"
        if _is_rounding(e) or not e.rms
        else f"{e.err / e.rms:.2g} relative error"
    )
    return f"{e.kind} {e.name} has {relative}, {judged.share:.3g} times its bound"
