"""Whether the other library's products are faster on this machine: measured, once, and remembered.

MKL leads XLA by a fifth on Intel's processors, and is behind it on others. What a library promises of a processor is
not asked: six products of a training step's kind are timed in both, in turns.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import torch

from detente.bridge.kernels.products import BF16, F32, rewrite

# How much faster it must be: below this a call, which nothing is fused into, is not worth having.
WINS = 1.05
ROUNDS = 7
# (rows, inner, columns) of a linear layer: forward, gradient of the input, gradient of the weight.
_DTYPES = {F32: jnp.float32, BF16: jnp.bfloat16}
_LAYERS = ((256, 768, 768), (256, 512, 2048))


def lead(place: Path, of: str = F32) -> float:
    """Seconds of XLA's products ``of`` this type over those of the calls, the geometric mean over shapes; remembered in
    ``place`` for this processor, these cores and these versions."""
    known = place / f"products-{of}-{_machine()}.json"
    try:
        return float(json.loads(known.read_text())["lead"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    ratios = [
        _ratio(product, *operands)
        for layer in _LAYERS
        for product, *operands in _products(*layer, _DTYPES[of])
    ]
    found = math.exp(sum(map(math.log, ratios)) / len(ratios))
    fresh = known.with_name(f".{known.name}.{os.getpid()}")
    try:
        fresh.write_text(json.dumps({"lead": found, "of": ratios}))
        fresh.replace(known)
    except OSError:
        fresh.unlink(missing_ok=True)
    return found


def _products(rows: int, inner: int, columns: int, dtype: Any) -> list[tuple[Callable[..., Any], Any, Any]]:
    draw = np.random.default_rng(0)
    x, w, g = (
        jnp.asarray(draw.standard_normal(shape), dtype)
        for shape in ((rows, inner), (columns, inner), (rows, columns))
    )
    contract = jax.lax.dot_general
    return [
        (lambda x, w: contract(x, w, (((1,), (1,)), ((), ()))), x, w),
        (lambda g, w: contract(g, w, (((1,), (0,)), ((), ()))), g, w),
        (lambda g, x: contract(g, x, (((0,), (0,)), ((), ()))), g, x),
    ]


def _ratio(product: Callable[..., Any], a: Any, b: Any) -> float:
    """The fastest of each, in turns: what else the machine did meanwhile must not choose."""
    plain = jax.jit(product).lower(a, b).compile()
    lowered = jax.jit(partial(product)).lower(
        a, b
    )  # JAX keeps one module for each function, and this one is changed
    if not rewrite(lowered.compiler_ir()):
        return 1.0  # nothing became a call
    called, best = lowered.compile(), [math.inf, math.inf]
    for _ in range(ROUNDS):
        for k, run in enumerate((plain, called)):
            begun = time.perf_counter()
            jax.block_until_ready(run(a, b))
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
    facts = (processor(), len(os.sched_getaffinity(0)), torch.__version__, jaxlib.__version__)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
