"""The probes: one file per key of evidence. A probe brings facts back; it never judges them."""

from __future__ import annotations

import errno
import importlib
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened

# In the order in which they run: those that move the weights come last and put them back.
PROBES: tuple[str, ...] = (
    "threads",
    "modules",
    "environment",
    "declared",
    "flags",
    "practice",
    "host",
    "devices",
    "consumed",
    "precision",
    "executable",
    "waiting",
    "observed",
    "program",
    "compiled",
    "peak",
    "weights",
    "region",
    "rotation",
    "slope",
    "captured",
)
# Cheap enough for every process of every block.
ALWAYS: tuple[str, ...] = (
    "threads",
    "modules",
    "environment",
    "declared",
    "flags",
    "host",
    "devices",
    "consumed",
    "precision",
    "executable",
    "waiting",
    "peak",
)

# What an operating system says of a disk that takes nothing more; the parent ends the session for it (session/disk.py).
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


def run_probes(names: tuple[str, ...], opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Every named probe's finding. A probe that fails says so under its own key; the samples are not lost for it.
    Raises OSError where the machine cannot be written to: that says nothing of the row, and a finding would be a
    verdict on it.
    """
    found: dict[str, Any] = {}
    for name in (n for n in PROBES if n in names):
        try:
            found.update(importlib.import_module(f"detente.worker.probes.{name}").probe(opened, samples))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _UNWRITABLE:
                raise
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return found
