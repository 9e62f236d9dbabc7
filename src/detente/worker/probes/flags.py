"""Flags of compilers that are not their defaults, read from the environment and from the compilers' own tables."""

from __future__ import annotations

import os
import sys
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened

# Where these begin a variable's name, it steers a compiler or a kernel library. What they say of caches and files is
# the harness's own doing.
_STEERING = (
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRITON_",
    "ONEDNN_",
    "MKL_",
    "DNNL_",
)
_OURS = ("_CACHE_DIR", "_NUM_THREADS")
# What importing a framework sets by itself: torch_xla its own XLA flags, JAX and torch_xla those of a TPU. Anything
# else that is there behind a stack's ``start`` is the stack's: it runs in ``start``, as importing does.
_BY_IMPORTING = {"torch_xla": _STEERING, "jax": ("LIBTPU_INIT_ARGS",)}
# Inductor's switches that spend compile time on speed.
_INDUCTOR = (
    "max_autotune",
    "max_autotune_gemm",
    "max_autotune_pointwise",
    "coordinate_descent_tuning",
    "freezing",
)


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``flags``: name -> value. What the worker's start set for every row, and what importing the framework sets
    by itself, is the default; ``torch.compile(mode=...)`` patches Inductor's table only while it compiles and is not
    seen here."""
    own = tuple(start for name, starts in _BY_IMPORTING.items() if name in sys.modules for start in starts)
    imported = {n: v for n, v in opened.environment["after"].items() if n.startswith(own)}
    found = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_STEERING)
        and not name.endswith(_OURS)
        and value not in ("", imported.get(name))
        and "/" not in value
    }
    if config := sys.modules.get("torch._inductor.config"):
        found |= {f"inductor.{name}": True for name in _INDUCTOR if getattr(config, name, False) is True}
    return {"flags": found}
