"""PyTorch's own samples for every operator in bfloat16, within a reviewed tolerance (``opinfo/tolerances.py``).

The default run takes one sample of every twelfth operator; ``-m ops`` takes all of them.
"""

from __future__ import annotations

import pytest
from opinfo.checking import NAMES, every, roughly


@pytest.mark.parametrize("name", every(12, 1))
def test_bfloat16(name: str) -> None:
    roughly(name, 1)


@pytest.mark.ops
@pytest.mark.timeout(3600)  # pools have 1,440 samples
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_every_sample(name: str) -> None:
    roughly(name, None)
