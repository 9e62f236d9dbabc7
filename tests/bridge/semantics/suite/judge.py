"""From observations to an outcome: one judge for values, and the parts that other judges are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from suite.case import Case, Judge, Moment, Observed

# Every planted difference of the suite is larger than 1e-2; rounding in float32 is below 1e-5 in all of it.
CLOSE = 2e-4


@dataclass(frozen=True)
class Outcome:
    """``same`` and ``refused`` pass; ``wrong`` is a silent difference, ``fails`` an error where torch runs."""

    kind: str
    why: str = ""

    @property
    def passed(self) -> bool:
        return self.kind in ("same", "refused")


def outcome(case: Case, theirs: Sequence[Observed], ours: Sequence[Observed]) -> Outcome:
    """``theirs`` is torch's."""
    torch_fails = any(o.error for o in theirs)
    error = next((o.error for o in ours if o.error), "")
    if error and not torch_fails:
        return Outcome("refused" if case.refusable else "fails", error)
    problem = case.judge(theirs, ours)
    return Outcome("wrong", problem) if problem else Outcome("same", error)


def far(ours: torch.Tensor, theirs: torch.Tensor, scale: float = 0.0) -> float:
    """Largest difference over the largest finite size of ``theirs`` (at least ``scale``); infinite where kind, shape,
    or the places of NaN and infinity differ. Integers of another width are equal when their values are."""
    if ours.shape != theirs.shape:
        return float("inf")
    if theirs.is_floating_point() != ours.is_floating_point() or (theirs.dtype == torch.bool) != (
        ours.dtype == torch.bool
    ):
        return float("inf")
    if theirs.is_floating_point() and ours.dtype != theirs.dtype:
        return float("inf")
    if not theirs.is_floating_point():
        return 0.0 if torch.equal(ours.to(torch.int64), theirs.to(torch.int64)) else float("inf")
    ours, theirs = ours.double(), theirs.double()
    odd = ~theirs.isfinite()
    if not torch.equal(odd, ~ours.isfinite()) or not torch.equal(
        ours[odd].nan_to_num(0.5), theirs[odd].nan_to_num(0.5)
    ):
        return float("inf")
    ours, theirs = ours[~odd], theirs[~odd]
    if not theirs.numel():
        return 0.0
    size = max(float(theirs.abs().max()), scale) or 1.0
    return float((ours - theirs).abs().max()) / size


def described(what: str, ours: torch.Tensor, theirs: torch.Tensor, distance: float) -> str:
    """A difference in words, with the first values that show it."""
    if ours.dtype != theirs.dtype and distance == float("inf"):
        return f"{what}: {ours.dtype}, torch {theirs.dtype}".replace("torch.", "")
    if ours.shape != theirs.shape:
        return f"{what}: shape {list(ours.shape)}, torch {list(theirs.shape)}"
    a, b = ours.reshape(-1).double(), theirs.reshape(-1).double()
    differs = ~((a == b) | (a.isnan() & b.isnan()))
    at = int((a - b).abs().nan_to_num(float("inf")).argmax()) if differs.any() else 0
    return f"{what}: {a[at]:.4g}, torch {b[at]:.4g}"


def moment_problem(theirs: Moment, ours: Moment, step: int, close: float) -> str:
    """The first thing of a step that differs."""
    pairs = [("loss", ours.loss, theirs.loss, 0.0)]
    if len(ours.aux) != len(theirs.aux):
        return f"step {step}: {len(ours.aux)} further results, torch {len(theirs.aux)}"
    pairs += [(f"result {i}", a, b, 0.0) for i, (a, b) in enumerate(zip(ours.aux, theirs.aux, strict=True))]
    sizes = [float(g.abs().max()) for g in theirs.gradients.values() if g is not None and g.numel()]
    scale = 1e-3 * max((s for s in sizes if s < float("inf")), default=0.0)
    for name, gradient in theirs.gradients.items():
        mine = ours.gradients.get(name)
        if gradient is None and mine is None:
            continue
        # None and zeros are one answer here: a function of JAX has no way to say None
        some = gradient if gradient is not None else mine
        assert some is not None
        zeros = torch.zeros_like(some)
        pairs.append(
            (
                f"gradient of {name}",
                zeros if mine is None else mine,
                zeros if gradient is None else gradient,
                scale,
            )
        )
    pairs += [(f"buffer {n}", ours.buffers[n], b, 0.0) for n, b in theirs.buffers.items()]
    for what, mine, right, scale in pairs:
        distance = far(mine, right, scale)
        if distance > close:
            return f"step {step}: " + described(what, mine, right, distance)
    return ""


def within(close: float) -> Judge:
    """Every step is torch's, to a relative ``close`` of each tensor's largest element; parameters too, where the case
    has an optimizer."""

    def judge(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
        for one, other in zip(theirs, ours, strict=True):
            if len(one.moments) != len(other.moments):
                return f"{len(other.moments)} steps, torch {len(one.moments)}"
            for step, (right, mine) in enumerate(zip(one.moments, other.moments, strict=True)):
                problem = moment_problem(right, mine, step, close)
                if problem:
                    return problem
            for name, parameter in (one.parameters or {}).items():
                mine = (other.parameters or {}).get(name)
                if mine is None:
                    return f"parameter {name} is missing after the run"
                distance = far(mine, parameter)
                if distance > close:
                    return described(f"parameter {name} after the run", mine, parameter, distance)
        return ""

    return judge


same = within(CLOSE)


def raises(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
    """Good steps are torch's, and the step at which torch raises raises here, at the latest when its loss is read."""
    for one, other in zip(theirs, ours, strict=True):
        if not one.error:
            return "torch does not raise: the case is broken"
        for step, (right, mine) in enumerate(zip(one.moments, other.moments, strict=False)):
            problem = moment_problem(right, mine, step, CLOSE)
            if problem:
                return problem
        if len(other.moments) < len(one.moments):
            return f"step {len(other.moments)} raises {other.error}, torch runs it"
        if not other.error:
            last = other.moments[len(one.moments)]
            return f"silent: the loss is {float(last.loss):.4g}, torch raises {one.error[:60]}"
    return ""


def holds(**tests: Judge) -> Judge:
    """All of these; the name of the first that does not hold leads its problem."""

    def judge(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
        for name, test in tests.items():
            problem = test(theirs, ours)
            if problem:
                return f"{name}: {problem}" if name != "values" else problem
        return ""

    return judge
