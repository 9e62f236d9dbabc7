"""Random numbers. No bridge has torch's own, so what is judged is what a training loop relies on: another mask in
every step, the right odds, the gradient of the mask that was used, and that the seed decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from suite.case import Case, Moment, Observed, Run
from suite.judge import same
from suite.nets import layer, normal


class Noisy(nn.Module):
    """A weight of ones that ``body(weight)`` makes noisy; the loss is the sum of the result."""

    def __init__(self, body: Callable[[Any], Any], shape: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*shape))
        self.body = body

    def forward(self, x):
        y = self.body(self.weight) * x
        return y.sum(), [y]


X = torch.ones(())


def _run(body: Callable[[Any], Any], steps: int = 2, seed: int = 0) -> Run:
    return Run(lambda: Noisy(body), lambda: [X] * steps, seed)


def _drop(w):
    return F.dropout(w, 0.25, True)


def _recomputed(w):
    return checkpoint(_drop, w, use_reentrant=False)


def _dead(used: float) -> Callable[[Any], Any]:
    def body(w):
        first = torch.rand(64, 64, device=w.device)
        second = F.dropout(w, 0.25, True)
        return second + used * first if used else second  # else nothing reads the first draw

    return body


def _kinds(w):
    draws = (
        torch.rand_like(w),
        torch.randn_like(w) * 0.25 + 0.5,
        torch.bernoulli(torch.full_like(w, 0.5)),
        torch.randint(0, 2, (64, 64), device=w.device).to(w.dtype),
    )
    return w * torch.cat([d.reshape(1, -1) for d in draws]).reshape(4, 64, 64).sum(0) / 4


def _moments(observed: Observed, count: int) -> str | Sequence[Moment]:
    if len(observed.moments) != count:
        return f"{len(observed.moments)} steps of {count}"
    return observed.moments


def _masks(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
    """Dropout of 0.25 on a weight of ones: rate, scale, gradient, and another mask in the second step."""
    found = _moments(ours[0], 2)
    if isinstance(found, str):
        return found
    for step, moment in enumerate(found):
        y, gradient = moment.aux[0].double(), moment.gradients["weight"]
        kept = y != 0
        if not 0.70 < float(kept.double().mean()) < 0.80:
            return f"step {step}: {float(kept.double().mean()):.3f} of the elements are kept, 0.75 were asked for"
        if float((y[kept] - 4 / 3).abs().max()) > 1e-5:
            return f"step {step}: what is kept is {float(y[kept][0]):.4g}, not 1 / 0.75"
        if gradient is None or float((gradient.double() - y).abs().max()) > 1e-5:
            return f"step {step}: the gradient is that of another mask"
    if torch.equal(found[0].aux[0], found[1].aux[0]):
        return "the second step has the mask of the first"
    return ""


def _odds(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
    """The mean of four kinds of draw with mean 1/2, and another value in the second step."""
    found = _moments(ours[0], 2)
    if isinstance(found, str):
        return found
    for step, moment in enumerate(found):
        y, right = moment.aux[0].double(), theirs[0].moments[step].aux[0].double()
        if abs(float(y.mean()) - 0.5) > 0.02 or abs(float(y.std()) - float(right.std())) > 0.02:
            return (
                f"step {step}: mean {float(y.mean()):.3f}, deviation {float(y.std()):.3f}; "
                f"torch {float(right.mean()):.3f}, {float(right.std()):.3f}"
            )
    return "the second step draws the first's" if torch.equal(found[0].aux[0], found[1].aux[0]) else ""


def _seeds(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
    """Seeds 1, 1, 2: the first two runs are one, the third is another."""
    first, again, other = ([m.aux[0] for m in o.moments] for o in ours)
    if not len(first) == len(again) == len(other) == 2:
        return "a run stopped early"
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        return "the same seed gives other numbers"
    if any(torch.equal(a, b) for a, b in zip(first, other, strict=True)):
        return "another seed gives the same numbers"
    return ""


def _unmoved(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
    """The mask after a draw that nothing reads is the mask after the same draw read."""
    dead, alive = (o.moments[0].aux[0] for o in ours)
    if torch.equal(dead, dead.clamp(max=0)):
        return "the mask is empty"
    kept, also = dead > 0.5, alive > 0.5
    return "" if torch.equal(kept, also) else "the mask moves when the draw before it is not read"


CASES = tuple(
    Case(name, "draws", source, torchs, runs, judge)
    for name, source, torchs, runs, judge in (
        (
            "dropout under the compiled step",
            "4.2, 4.4",
            "another mask in every step, its own gradient",
            (_run(_drop),),
            _masks,
        ),
        (
            "dropout in a recomputed region",
            "4.2",
            "the backward pass repeats the mask",
            (_run(_recomputed),),
            _masks,
        ),
        (
            "rand_like, randn_like, bernoulli, randint",
            "4.4",
            "other numbers in every step",
            (_run(_kinds),),
            _odds,
        ),
        (
            "torch.manual_seed decides",
            "4.2",
            "the same seed repeats, another differs",
            (_run(_drop, seed=1), _run(_drop, seed=1), _run(_drop, seed=2)),
            _seeds,
        ),
        (
            "a dead draw keeps its place",
            "list",
            "later numbers do not depend on who reads the earlier",
            (_run(_dead(0.0), steps=1), _run(_dead(1e-3), steps=1)),
            _unmoved,
        ),
        (
            "dropout in eval",
            "4.4",
            "nothing is dropped",
            layer(lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).eval(), normal(4, 6)),
            same,
        ),
    )
)
