"""Python's garbage collector, asked less often while the bridge is imported and a step is captured and compiled; and
what it knows of.

Importing and capturing make hundreds of thousands of small objects that stay, and each full collection walks over
them, the model and every module that was ever imported: a tenth of the first step. It is asked less often, and never
stopped: what a capture drops in circles is megabytes by the thousand.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

# Net new objects between two looks at the young ones, and how often the middle ones are looked at: 700 and 10 are
# Python's. A full collection comes no more rarely than that of the middle ones says.
_SELDOM = (20_000, 20, 10)

_lock = threading.Lock()
_found: list[tuple[int, int, int]] = []  # by each that is under way, the first one's first


@contextlib.contextmanager
def asked_seldom() -> Iterator[None]:
    """Two threads may capture at a time: the last one that leaves restores what the first one found. A collector that
    somebody set meanwhile, or who asks more rarely than this, stays as it is set."""
    with _lock:
        _found.append(gc.get_threshold())
        if len(_found) == 1 and 0 < _found[0][0] < _SELDOM[0]:
            gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        with _lock:
            before = _found[0]
            _found.pop()
            if not _found and gc.get_threshold() == _SELDOM:
                gc.set_threshold(*before)


@contextlib.contextmanager
def all_in_sight() -> Iterator[None]:
    """While it lasts ``gc.get_objects()`` and ``gc.get_referrers()`` see every object. What a user put aside with
    ``gc.freeze()`` (loops do, for speed) they pass over; behind this it is put aside again, with what lives by then."""
    if not gc.get_freeze_count():
        yield
        return
    gc.unfreeze()
    gc.collect()  # also what became garbage where it had been put aside: nobody else would
    try:
        yield
    finally:
        gc.freeze()
