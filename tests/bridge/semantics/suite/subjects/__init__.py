"""Who can be asked: one file per bridge, each with ``run(case, run) -> Observed``.

A subject never raises for what the case does to it: an error is an observation, and so is the point it came at.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from suite.case import Case, Observed, Run

# name -> module; imported when it is asked for, so that torchax is needed by nobody else
SUBJECTS = {
    "torch": "suite.subjects.eager",
    "detente": "suite.subjects.compiled",
    "torchax": "suite.subjects.interceptor",
}


def subject(name: str) -> Callable[[Case, Run], Observed]:
    """The subject's ``run``. Raises KeyError for another name, ImportError where the bridge is not here."""
    return importlib.import_module(SUBJECTS[name]).run
