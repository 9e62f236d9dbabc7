"""Whether a first step was compiled cold. What the compile wrote to the folder that the parent emptied decides it, and
only where the compiler was told to look there and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detente.records.evidence import CacheState
from detente.stacks.catalogue import find_entry

if TYPE_CHECKING:
    from detente.worker.opened import Opened
    from detente.worker.watch.in_jax import CacheReads

# Of a first step, what a cold compile may have saved by entries of a cache: within one process the same small program
# may be compiled twice.
_SAVED = 0.1
_JAX_FOLDER = "JAX_COMPILATION_CACHE_DIR"


def count_files(folder: str) -> int:
    """Files below a cache folder that hold anything."""
    paths = (os.path.join(at, name) for at, _, files in os.walk(folder) for name in files) if folder else ()
    return sum(map(_holds, paths))


def _holds(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:  # a compiler's own temporary file, gone since the folder was listed
        return False


def watch_cache() -> CacheReads | None:
    """Listens to what JAX reads from its cache from now on; None where JAX is not loaded."""
    if "jax" not in sys.modules:
        return None
    from detente.worker.watch.in_jax import CacheReads

    return CacheReads()


def cache_state(opened: Opened, first_s: float) -> CacheState:
    """``miss``, ``hit``, ``none`` or ``unknown``; see records/evidence.py. A compile that wrote beside entries which
    were there is neither cold nor warm: some of it came from them. Nor is one that looks elsewhere, or that read from
    JAX's cache what it had not written. How it can fail: a stack that keeps compiled steps by means of its own."""
    caches = find_entry(opened.job.cell.stack).caches
    if _moved(caches, opened.environment["before"]):
        return "unknown"
    if not caches:
        return "none"
    before, now = opened.cache_before, count_files(opened.job.cache)
    saved = opened.cache_reads.saved_s if opened.cache_reads is not None else 0.0
    if not before and saved > _SAVED * first_s:
        return "unknown"
    if now > before:
        return "unknown" if before else "miss"
    return "hit" if before else "unknown"


def _moved(caches: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Whether a compiler looks for entries where the parent did not put them."""
    if any(os.environ.get(name) != before.get(name) for name in caches):
        return True
    jax = sys.modules.get("jax")
    folder = getattr(getattr(jax, "config", None), "jax_compilation_cache_dir", None)
    return bool(folder) and folder != (before.get(_JAX_FOLDER) if _JAX_FOLDER in caches else None)
