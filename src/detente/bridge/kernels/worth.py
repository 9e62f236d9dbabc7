"""Whether the other library's work is faster on this machine: measured, once, and remembered.

MKL leads XLA by a fifth on Intel's processors. On an AMD of Zen 3 the two are as fast in the products of a forward
pass, and MKL leads in gradients of weights and in batches. What a library promises of a processor is not asked: each
kind of work (trials.py) is timed in both, in turns.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxlib
import torch

from detente.bridge.kernels.extension import texts
from detente.bridge.kernels.products import F32
from detente.bridge.kernels.trials import DECIDED, trials

# How much faster it must be: below this a call, which nothing is fused into, is not worth having.
WINS = 1.05
ROUNDS = 8
# Of which so many are enough where they took so long.
ENOUGH, SECONDS = 4, 0.06


def leads(place: Path | None, of: str = F32, patience: int = 1, again: bool = False) -> dict[str, float]:
    """Of each kind of work that ``trials(of)`` names: the seconds of XLA's way over those of the calls, the geometric
    mean over shapes. Remembered in ``place`` (None: nowhere) for this processor, these cores, these versions and
    kernels. ``patience``: how many times as often as in the middle of a first step each of them is timed; what was
    remembered with less is measured anew, and all of it ``again``."""
    known = None if place is None else place / f"leads-{of}-{_machine()}.json"
    if known is not None and not again and (found := _remembered(known, of, patience)) is not None:
        return found
    ratios: dict[str, list[float]] = {}
    # What asks may be in the middle of a trace, of which none of this is a part.
    with jax.ensure_compile_time_eval():
        for kind, plain, called, operands in trials(of):
            ratios.setdefault(kind, []).append(_ratio(plain, called, operands, patience))
    found = {kind: math.exp(sum(map(math.log, each)) / len(each)) for kind, each in ratios.items()}
    if known is not None:
        fresh = known.with_name(f".{known.name}.{os.getpid()}")
        try:
            fresh.write_text(json.dumps({"leads": found, "of": ratios, "patience": patience}))
            fresh.replace(known)
        except OSError:
            fresh.unlink(missing_ok=True)
    return found


def _remembered(known: Path, of: str, patience: int) -> dict[str, float] | None:
    try:
        told = json.loads(known.read_text())
        found = {str(k): float(v) for k, v in told["leads"].items()}
        patient = int(told.get("patience", 1)) >= patience
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    complete = set(found) == set(DECIDED[of])  # or a release with other forms wrote it
    return found if patient and complete else None


def _ratio(
    plain: Callable[..., Any], called: Callable[..., Any], operands: tuple[Any, ...], patience: int = 1
) -> float:
    """Of the fastest of each, in turns, each one first as often: what else the machine did must not choose."""
    best, ways, since = [math.inf, math.inf], (plain, called), time.perf_counter()
    for turn in range(ROUNDS * patience):
        if turn >= ENOUGH and time.perf_counter() - since > SECONDS * patience:
            break
        for k in (0, 1) if turn % 2 else (1, 0):
            begun = time.perf_counter()
            jax.block_until_ready(ways[k](*operands))
            best[k] = min(best[k], time.perf_counter() - begun)
    return best[0] / best[1]


def processor() -> list[str]:
    """What the system says of the processor and its instructions; empty where it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(("model name", "model\t", "flags"))][:3]


def _machine() -> str:
    """What the figure is of."""
    kernels = hashlib.sha256(b"".join(texts())).hexdigest()
    facts = (processor(), len(os.sched_getaffinity(0)), torch.__version__, jaxlib.__version__, kernels)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
