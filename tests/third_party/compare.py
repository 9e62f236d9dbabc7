"""Two trainings of one model: the same, or where they are furthest apart.

A tensor may be off by a share of what the training moved it, or by what eager PyTorch itself is off when every
parameter begins one rounding away (a ReLU at its kink and a norm over two examples magnify roundings).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tests.third_party.recipe import ROUNDING, Trained

SHARE = {torch.float64: 1e-6, torch.float32: 1e-4}
MARGIN, NUDGES = 10.0, 6
NEIGHBOURS = 3


def disagreement(
    found: Trained,
    wanted: Trained,
    begun: dict[str, torch.Tensor],
    nudged: Callable[[int], Trained],
    dtype: torch.dtype,
) -> tuple[str, float]:
    """(what is furthest apart or nothing, by how many times what is allowed). ``nudged(n)`` is eager's run from the
    n-th neighbouring point; one is always made, the others only while something is apart."""
    if set(found.state) != set(wanted.state):
        return f"other tensors: {sorted(set(found.state) ^ set(wanted.state))[:5]}", math.inf
    near: list[Trained] = []
    what, worst = "", 0.0
    for number in range(1, NUDGES + 1):
        near.append(nudged(number))
        what, worst = _furthest(found, wanted, begun, near, dtype)
        if worst <= 1:
            return "", worst
    return what, worst


def _furthest(
    found: Trained,
    wanted: Trained,
    begun: dict[str, torch.Tensor],
    near: list[Trained],
    dtype: torch.dtype,
) -> tuple[str, float]:
    share, rounding = SHARE[dtype], ROUNDING[dtype]
    what, worst = "", 0.0
    for step, (ours, theirs) in enumerate(zip(found.losses, wanted.losses, strict=True)):
        own = max(abs(n.losses[step] - theirs) for n in near)
        allowed = MARGIN * own + share * 0.1 * max(abs(theirs), 1e-3)
        apart = abs(ours - theirs) / allowed
        if not apart <= worst:
            what, worst = f"loss {ours!r} of step {step + 1}, eager {theirs!r}", apart
    moves = {k: _moved(t, begun.get(k)) for k, t in wanted.state.items() if _numeric(t)}
    whole = math.sqrt(sum(m * m for m in moves.values()))
    for name, want in wanted.state.items():
        got = found.state[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{name}: {tuple(got.shape)} {got.dtype}, eager {tuple(want.shape)} {want.dtype}", math.inf
        if not _numeric(want):
            if not torch.equal(got, want):
                return f"{name}: not equal", math.inf
            continue
        moved = moves[name]
        own = max(_apart(n.state[name], want) for n in near)
        allowed = MARGIN * own + share * max(moved, 1e-3 * whole) + 4 * rounding * _size(want)
        error = _apart(got, want)
        apart = error / max(allowed, 1e-300)
        if not apart <= worst:
            what, worst = f"{name}: {error:.3g} off, allowed {allowed:.3g}, moved {moved:.3g}", apart
    return what, worst


def _moved(tensor: torch.Tensor, before: torch.Tensor | None) -> float:
    known = before is not None and before.shape == tensor.shape
    return _apart(tensor, before) if known else _size(tensor)


def _numeric(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _size(tensor: torch.Tensor) -> float:
    """Of what is finite: a mask's -inf has none."""
    wide = tensor.detach().to(torch.complex128)
    return float(torch.linalg.vector_norm(torch.where(wide.isfinite(), wide, 0)))


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Infinite where what is not finite is not the same."""
    one, other = (t.detach().to(torch.complex128) for t in (one, other))
    same = (one == other) | (one.isnan() & other.isnan())
    return float(torch.linalg.vector_norm(torch.where(same, 0, one - other).nan_to_num(math.inf)))


def chaotic(wanted: Trained, begun: dict[str, torch.Tensor], nudged: Callable[[int], Trained]) -> bool:
    """Whether one rounding in the beginning moves the model, all in all, by more than a tenth of what the training
    does, and far more than the rounding itself is: ten times that is allowed above, which would be any training. In
    this dtype eager PyTorch has no answer to compare with. Asked of a few neighbours: what is magnified depends on
    which way each parameter was rounded (a batch norm over two values nearly equal)."""
    names = [name for name, t in wanted.state.items() if _numeric(t)]
    moved = math.hypot(*(_moved(wanted.state[name], begun.get(name)) for name in names))

    def far(near: Trained) -> bool:
        apart = {name: _apart(near.state[name], wanted.state[name]) for name in names}
        # of what differs at all: a buffer that nobody fills may hold anything
        own = [torch.finfo(wanted.state[n].dtype).eps * _size(wanted.state[n]) for n in names if apart[n]]
        return not math.hypot(*apart.values()) <= max(moved / MARGIN, MARGIN * math.hypot(*own))

    return any(far(nudged(number)) for number in range(1, NEIGHBOURS + 1))
