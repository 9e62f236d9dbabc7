"""Values and gradients where an operator's own formula ends: ties, zeros, bounds, poles, infinities."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.lower.precision import x64
from detente.bridge.program.program import Program
from detente.bridge.random.keys import step_key

# One program of all cases, which takes a minute and a half to compile.
pytestmark = pytest.mark.long

INF = float("inf")
ROWS = {
    "ties": [2.0, 1.0, 2.0, 1.0],
    "zeros": [0.0, 0.0, 1.0, 0.0],
    "one zero a pair": [0.0, 1.0, 0.0, 3.0],
    "bounds": [-1.0, 1.0, -0.5, 0.5],
    "wide bounds": [3.0, -3.0, 6.0, -2.0],
    "infinities": [INF, 1.0, INF, -INF],
}
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 5.0])
SIGNS = torch.tensor([1.0, -1.0, -1.0, 1.0])


def square(x):
    return x.reshape(2, 2)


CASES = {
    # choosing one of equals
    "max": torch.max,
    "max of a dimension": lambda x: torch.max(x, 0)[0],
    "amax": lambda x: torch.amax(square(x), (0, 1)),
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "median of a dimension": lambda x: torch.median(x, 0)[0],
    "quantile": lambda x: torch.quantile(x.clamp(-9, 9), 0.3),
    "sort": lambda x: torch.sort(x, stable=True)[0] @ WEIGHTS.clamp(max=9),
    "cummax": lambda x: torch.cummax(x, 0)[0] * WEIGHTS,
    "maximum": lambda x: torch.maximum(x[:2], x[2:]) * WEIGHTS[:2],
    "fmax": lambda x: torch.fmax(x[:2], x[2:]) * WEIGHTS[:2],
    "max_pool2d": lambda x: F.max_pool2d(x.reshape(1, 1, 2, 2), 2),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x.reshape(1, 1, 4), 3),
    "scatter_reduce": lambda x: x[:2].scatter_reduce(0, torch.tensor([0, 1]), x[2:], "amax"),
    "segment_reduce": lambda x: torch.segment_reduce(x, "max", lengths=torch.tensor([3, 1])),
    # bounds
    "clamp": lambda x: x.clamp(-1, 1),
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    # losses: a margin that is met exactly, a difference of zero
    "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, SIGNS),
    "margin_ranking_loss": lambda x: F.margin_ranking_loss(x[:2], x[2:], SIGNS[:2]),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(
        square(x), square(x).flip(0), torch.tensor([1, -1])
    ),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(square(x), square(x), square(x), swap=True),
    "multi_margin_loss": lambda x: F.multi_margin_loss(square(x), torch.tensor([0, 1])),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(square(x), torch.tensor([[0, -1], [1, -1]])),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, SIGNS),
    "huber_loss": lambda x: F.huber_loss(x, torch.zeros(4)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, torch.zeros(4)),
    "l1_loss": lambda x: F.l1_loss(x, torch.zeros(4)),
    "cross_entropy": lambda x: F.cross_entropy(square(x), torch.tensor([0, 1])),
    "log_softmax": lambda x: torch.log_softmax(x, 0) * WEIGHTS,
    "softmax": lambda x: torch.softmax(x, 0) * WEIGHTS,
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "kl_div": lambda x: F.kl_div(torch.zeros(4), x, reduction="sum"),
    # distances of nothing
    "2-norm": torch.linalg.vector_norm,
    "1-norm": lambda x: torch.linalg.vector_norm(x, 1),
    "maximum norm": lambda x: torch.linalg.vector_norm(x, INF),
    "3-norm": lambda x: torch.linalg.vector_norm(x, 3),
    "dist": lambda x: torch.dist(x[:2], x[2:]),
    "cdist": lambda x: torch.cdist(square(x), square(x)),
    "pairwise_distance": lambda x: F.pairwise_distance(square(x), square(x)),
    "cosine_similarity": lambda x: F.cosine_similarity(x[:2], x[2:], 0),
    "normalize": lambda x: F.normalize(square(x)),
    "std": torch.std,
    "hypot": lambda x: torch.hypot(x[:2], x[2:]),
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    # products and powers of zero
    "prod": torch.prod,
    "cumprod": lambda x: torch.cumprod(x, 0),
    "power 0": lambda x: x**0,
    "power -1": lambda x: x**-1,
    "0 to a power": lambda x: torch.zeros(4) ** x,
    "itself to itself": lambda x: x**x,
    "xlogy": lambda x: torch.xlogy(x[:2], x[2:]),
    "xlog1py": lambda x: torch.special.xlog1py(x, x.flip(0)),
    "entr": torch.special.entr,
    # poles
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "log1p": torch.log1p,
    "atanh": torch.atanh,
    "acos": torch.acos,
    "erfinv": torch.erfinv,
    "logit": torch.logit,
    "logit with eps": lambda x: torch.logit(x, 0.1),
    "ndtri": torch.special.ndtri,
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "i0": torch.i0,
    "i0e": torch.special.i0e,
    "i1": torch.special.i1,
    "i1e": torch.special.i1e,
    "sinc": torch.sinc,
    "logaddexp": lambda x: torch.logaddexp(x[:2], x[2:]),
    "logaddexp2": lambda x: torch.logaddexp2(x[:2], x[2:]),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
    "det": lambda x: torch.linalg.det(square(x.clamp(-9, 9))),
}
DIFFERENT = {
    # torch disturbs a singular matrix and loses the gradient of its rank; this is the adjugate, which is right.
    "det": ("ties", "zeros", "one zero a pair", "bounds"),
    # torch's own derivative divides infinities; here every partial sum carries its own.
    "logcumsumexp": ("infinities",),
    "soft_margin_loss": ("infinities",),
}


class Every(nn.Module):
    """Every case on parameters of its own, so that one program tells all values and gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList(nn.Parameter(torch.tensor(row)) for _ in CASES for row in ROWS.values())

    def forward(self, _):
        functions = [f for f in CASES.values() for _ in ROWS]
        return torch.stack([f(row).sum() for f, row in zip(functions, self.rows, strict=True)])


def total(model, batch):
    values = model(batch)
    return values.sum(), values.detach()


@pytest.fixture(scope="module")
def found():
    model, batch = Every(), torch.zeros(1)
    captured = capture(model, total, batch)
    program = Program(captured.graph)
    weights = {n: t.detach().numpy() for n, t in captured.weights.tensors.items()}
    with x64():
        run = jax.jit(program.gradients(program.connected))
        (_, (aux, *_)), ours = run(weights, [batch.numpy()], step_key(0, 0))
    loss, values = total(model, batch)
    theirs = torch.autograd.grad(loss, list(model.rows))
    names = [(case, row) for case in CASES for row in ROWS]
    (mine,) = jax.tree.leaves(aux)
    return {
        name: (
            (float(mine[i]), float(values[i])),
            (np.asarray(ours[f"rows.{i}"]), theirs[i].numpy(force=True)),
        )
        for i, name in enumerate(names)
    }


@pytest.mark.parametrize("case", CASES)
def test_values_at_edges(case, found):
    for row in ROWS:
        ours, theirs = found[case, row][0]
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6, err_msg=row)


@pytest.mark.parametrize("case", CASES)
def test_gradients_at_edges(case, found):
    for row in ROWS:
        if row not in DIFFERENT.get(case, ()):
            ours, theirs = found[case, row][1]
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6, err_msg=row)


@pytest.mark.parametrize(("case", "row"), [(case, row) for case, rows in DIFFERENT.items() for row in rows])
def test_what_differs_by_choice_still_does(case, row, found):
    ours, theirs = found[case, row][1]
    assert not np.allclose(ours, theirs, rtol=2e-5, atol=1e-6, equal_nan=True)
