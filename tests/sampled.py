"""A part of a long list for the default run; the whole list is `make test-long`.

By a rule and not by choice: every so many, from the first. A list that stands for one kind of fault is given whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], every: int, several: bool = False) -> list[Any]:
    """``values`` for ``parametrize``: the first of each ``every`` as it is, the others with the mark ``long``;
    ``several``: each is a tuple of several names' values."""
    return [
        value
        if number % every == 0
        else pytest.param(*(value if several else (value,)), marks=pytest.mark.long)
        for number, value in enumerate(values)
    ]
