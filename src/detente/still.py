"""Imports that leave the generators of the process where they are.

JAX draws from numpy's when it is imported, and a loop that seeded numpy before its first ``detente.compile`` would
shuffle and mix in another order than in eager PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from detente.collector import asked_seldom


def import_still(name: str) -> ModuleType:
    """The module; Python's and numpy's generators are as they were. Nobody has seeded one of numpy's where numpy is not
    imported yet."""
    import random  # not with the package: `python -m detente` first leaves the current folder's out (__main__.py)

    numpy = getattr(sys.modules.get("numpy"), "random", None)
    pythons = random.getstate()
    numpys = None if numpy is None else numpy.get_state(legacy=False)
    try:
        with asked_seldom():
            return importlib.import_module(name)
    finally:
        random.setstate(pythons)
        if numpy is not None:
            numpy.set_state(numpys)
