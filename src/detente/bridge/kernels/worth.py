"""Whether the other library's products and convolutions are faster on this machine: measured, once, and remembered.

MKL leads XLA by a fifth on Intel's processors, and is behind it on others. What a library promises of a processor is
not asked: six products of a training step's kind, or a convolution and its gradients, are timed in both, in turns.
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

from detente.bridge.kernels.convolutions import Sizes, convolved, of_input, of_kernel
from detente.bridge.kernels.products import BF16, F32, rewrite

# How much faster it must be: below this a call, which nothing is fused into, is not worth having.
WINS = 1.05
ROUNDS = 7
# (rows, inner, columns) of a linear layer: forward, gradient of the input, gradient of the weight.
_DTYPES = {F32: jnp.float32, BF16: jnp.bfloat16}
_LAYERS = ((256, 768, 768), (256, 512, 2048))
CONVOLUTIONS = "convolutions"
# (pictures, their size, channels in and out, the kernel's size): a layer in the middle of a network.
_CONVOLVED = (2, 28, 128, 3)


def lead(place: Path, of: str = F32) -> float:
    """Seconds of XLA's products ``of`` this type, or of its ``CONVOLUTIONS``, over those of the calls, the geometric
    mean over shapes; remembered in ``place`` for this processor, these cores and these versions."""
    kind = of if of == CONVOLUTIONS else f"products-{of}"
    known = place / f"{kind}-{_machine()}.json"
    try:
        return float(json.loads(known.read_text())["lead"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    # What asks may be in the middle of a trace, of which none of this is a part.
    with jax.ensure_compile_time_eval():
        ratios = _of_convolutions() if of == CONVOLUTIONS else _of_products(_DTYPES[of])
    found = math.exp(sum(map(math.log, ratios)) / len(ratios))
    fresh = known.with_name(f".{known.name}.{os.getpid()}")
    try:
        fresh.write_text(json.dumps({"lead": found, "of": ratios}))
        fresh.replace(known)
    except OSError:
        fresh.unlink(missing_ok=True)
    return found


def _of_products(dtype: Any) -> list[float]:
    found = []
    for layer in _LAYERS:
        for product, a, b in _products(*layer, dtype):
            plain = jax.jit(product).lower(a, b).compile()
            # JAX keeps one module for each function, and this one is changed
            lowered = jax.jit(partial(product)).lower(a, b)
            calls = rewrite(lowered.compiler_ir())
            found.append(_ratio(plain, lowered.compile(), a, b) if calls else 1.0)
    return found


def _of_convolutions() -> list[float]:
    (n, size, channels, kernel), draw = _CONVOLVED, np.random.default_rng(0)
    x, weight = (
        jnp.asarray(draw.standard_normal(shape), jnp.float32)
        for shape in ((n, size, size, channels), (channels, channels, kernel, kernel))
    )
    sizes = Sizes.of(x.shape, weight.shape, (1, 1), (kernel // 2,) * 2, (1, 1), 1)
    found = []
    for plain, called in _convolutions(sizes):
        ways = [jax.jit(way).lower(x, weight).compile() for way in (plain, called)]
        found.append(_ratio(ways[0], ways[1], x, weight))
    return found


def _convolutions(sizes: Sizes) -> list[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Each way of a convolution whose result is as large as its input, and of both gradients."""

    def plain(x: Any, weight: Any) -> Any:
        turned = jnp.transpose(weight, (2, 3, 1, 0))
        pads, numbers = [(sizes.low_h,) * 2, (sizes.low_w,) * 2], ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, turned, (1, 1), pads, dimension_numbers=numbers)

    return [
        (plain, partial(convolved, sizes)),
        (lambda x, w: jax.vjp(lambda x: plain(x, w), x)[1](x)[0], lambda x, w: of_input(sizes, w, x)),
        (lambda x, w: jax.vjp(lambda w: plain(x, w), w)[1](x)[0], lambda x, w: of_kernel(sizes, x, x)),
    ]


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


def _ratio(plain: Callable[..., Any], called: Callable[..., Any], a: Any, b: Any) -> float:
    """The fastest of each, in turns: what else the machine did meanwhile must not choose."""
    best = [math.inf, math.inf]
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
