"""PyTorch's own samples for every operator: forward, gradient and jit, in float64 or what it has instead.

The default run takes one sample of every fifth operator; ``-m ops`` takes all of them.
"""

from __future__ import annotations

import pytest
from known_gaps import GAPS
from opinfo.checking import NAMES, every, exactly
from opinfo.samples import OPS


@pytest.mark.parametrize("name", every(5))
def test_exact(name: str) -> None:
    exactly(name, 1)


@pytest.mark.ops
@pytest.mark.timeout(3600)  # pools have 1,440 samples
@pytest.mark.parametrize("name", NAMES)
def test_exact_every_sample(name: str) -> None:
    exactly(name, None)


def test_gaps_name_operators() -> None:
    """A row about an operator that does not exist would excuse nothing and hide a typing error."""
    unknown = sorted({op for gap in GAPS for op in gap.ops} - OPS.keys())
    assert not unknown
