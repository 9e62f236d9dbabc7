"""How far values lie apart: against the definition, written out in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from detente.bridge.certify.apart import Apart, apart, apart_moved, rms


def plainly(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.abs(values) ** 2))) if values.size else 0.0


def drawn(seed: int, dtype: torch.dtype) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(5, 7, generator=made) > 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(-9, 9, (5, 7), generator=made, dtype=dtype)
    return torch.randn(5, 7, generator=made, dtype=dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.bool], ids=str
)
def test_three_values_of_a_tensor(dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    ours, theirs, exact = drawn(0, dtype), drawn(1, dtype), drawn(2, dtype).to(wide)
    a, b, c = (t.to(wide).numpy() for t in (ours, theirs, exact))
    found = apart(ours, theirs, exact)
    expected = Apart(plainly(a - c), plainly(b - c), plainly(c))
    assert vars(found) == pytest.approx(vars(expected), rel=1e-12)


@pytest.mark.parametrize("complex_", [False, True])
def test_updates_count_where_the_gradient_is_more_than_rounding(complex_: bool) -> None:
    dtype = torch.complex64 if complex_ else torch.float32
    wide = torch.complex128 if complex_ else torch.float64
    ours, theirs, exact, old = (drawn(k, dtype) for k in range(4))
    exact, gradient = exact.to(wide), drawn(4, wide)
    gradient[0] *= 1e-6  # nothing but rounding
    gradient[1] = 0.0  # and what no gradient reaches, which counts
    a, b, c, o, g = (torch.view_as_real(t.to(wide)).numpy() if complex_ else t.to(wide).numpy()
                     for t in (ours, theirs, exact, old, gradient))  # fmt: skip
    sound = (g == 0) | (np.abs(g) >= 1e-2 * plainly(g[g != 0]))
    assert not sound[0].any() and sound[1].all()
    found = apart_moved(ours, theirs, exact, old, gradient)
    moved = [(t - o)[sound] for t in (a, b, c)]
    expected = Apart(plainly(moved[0] - moved[2]), plainly(moved[1] - moved[2]), plainly(moved[2]))
    assert vars(found) == pytest.approx(vars(expected), rel=1e-12)
    every = apart_moved(ours, theirs, exact, old, None)
    assert every.error == pytest.approx(plainly(a - c), rel=1e-12)


def test_what_is_no_number_is_infinitely_far() -> None:
    exact = torch.ones(4, dtype=torch.float64)
    broken = torch.tensor([1.0, math.nan, 1.0, 1.0])
    assert rms(broken) == math.inf and apart(broken, exact, exact) == Apart(math.inf, 0.0, 1.0)
    assert apart_moved(broken, exact, exact, exact, None).error == math.inf
    same = torch.full((4,), math.inf)
    assert apart(same, exact, same.double()).error == math.inf  # inf - inf is nothing
    assert rms(torch.empty(0)) == 0.0
    # a gradient of rounding alone leaves no element
    hidden = apart_moved(broken, exact, exact, exact, torch.full((4,), math.nan, dtype=torch.float64))
    assert hidden == Apart(0.0, 0.0, 0.0)
