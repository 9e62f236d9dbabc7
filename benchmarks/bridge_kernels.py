"""The bridge's own kernels beside what XLA makes of the same, each alone.

    python benchmarks/bridge_kernels.py            # two minutes, quiet

Forward and both gradients of one operator, or an update, float32 where nothing else is said, on the cores that this
process may use; both take turns, and the median of each over rounds is told. In a step a call also keeps its
neighbours from being fused with it, so that what a model wins is told by ``bridge_against_torch.py`` and not here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs/results/bridge-kernels.md"
# What it is of, and (B, H, L, S, D, causal, dropout).
ATTENTIONS = {
    "Whisper's encoder": (1, 6, 1500, 1500, 64, False, 0.0),
    "ViT-B/16, 2": (2, 12, 197, 197, 64, False, 0.0),
    "GPT-2 Small, 2 x 64": (2, 12, 64, 64, 64, True, 0.1),
    "GPT-2 Small, 1 x 1024": (1, 12, 1024, 1024, 64, True, 0.1),
    "Llama, 2 x 128": (2, 12, 128, 128, 64, True, 0.0),
}
# Every channel by itself: (N, H, W, C, kernel).
DEPTHWISE = {
    "ConvNeXt, 56 x 56": (2, 56, 56, 96, 7),
    "ConvNeXt, 28 x 28": (2, 28, 28, 192, 7),
    "ConvNeXt, 14 x 14": (2, 14, 14, 384, 7),
    "ConvNeXt, 7 x 7": (2, 7, 7, 768, 7),
}
# A linear layer: (rows, inner, columns, dtype).
PRODUCTS = {
    "Linear of ViT-B/16, 4": (788, 768, 3072, "float32"),
    "Linear of ViT-B/16, 4, bf16": (788, 768, 3072, "bfloat16"),
}
# An optimizer's update of one parameter: (optimizer, its options, shape).
UPDATES = {
    "AdamW, GPT-2's words": ("AdamW", {}, (50257, 768)),
    "AdamW, a layer of GPT-2": ("AdamW", {}, (768, 3072)),
    "SGD with momentum, a layer of GPT-2": ("SGD", {"momentum": 0.9}, (768, 3072)),
}
# Batch normalisation in training: (N, H, W, C).
BATCH_NORMS = {
    "Batch norm of ResNet-50, 112 x 112": (4, 112, 112, 64),
    "Batch norm of ResNet-50, 56 x 56": (4, 56, 56, 256),
    "Batch norm of ResNet-50, 28 x 28": (4, 28, 28, 512),
    "Batch norm of ResNet-50, 14 x 14": (4, 14, 14, 1024),
    "Batch norm of ResNet-50, 7 x 7": (4, 7, 7, 2048),
}
# What ends a block of a residual network: a batch norm, what it is added to, and a ReLU.
JOINED = {
    "Batch norm, residual and ReLU of ResNet-50, 56 x 56": (4, 56, 56, 256),
    "Batch norm, residual and ReLU of ResNet-50, 14 x 14": (4, 14, 14, 1024),
}
# Activations whose derivative computes again what it would have to read: (rows, columns).
GELUS = {"GELU of ViT-B/16, 2": (394, 3072)}
# Masks of dropout, of which there is one in a forward pass alone.
MASKS = {
    "A mask of BERT-Base, 4 x 64": (4, 64, 768),
    "A mask of GPT-2's attention, 2 x 64": (2, 12, 64, 64),
}
ROUNDS = 15


def attention(size: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Each way, as one call."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from detente.bridge.kernels.build import calling
    from detente.bridge.lower.backwards import backwards
    from detente.bridge.lower.ops.attention import attention_scores
    from detente.bridge.lower.ops.fused_attention import fused_attention

    b, h, rows, s, d, causal, dropout = size
    draw = np.random.default_rng(0)
    given = [draw.standard_normal((b, n, h, d), np.float32) for n in (rows, s, s)]
    keep = jnp.asarray(draw.random((b, h, rows, s)) >= dropout) if dropout else None

    def plain(query: Any, key: Any, value: Any) -> Any:
        weights = jax.nn.softmax(attention_scores(query, key, None, causal, None), -1)
        if keep is not None:
            weights = jnp.where(keep, weights / (1 - dropout), 0)
        return jnp.einsum("bhls,bhsd->bhld", weights, value)

    def ours(query: Any, key: Any, value: Any) -> Any:
        return fused_attention(query, key, value, keep, causal, d**-0.5, dropout)

    def of(run: Any) -> Any:
        def loss(*heads: Any) -> Any:
            return jnp.sum(run(*(jnp.swapaxes(t, 1, 2) for t in heads)) ** 2)

        return _compiled(jax.grad(loss, (0, 1, 2)), given)

    with backwards(), calling():
        return {"XLA": of(plain), "ours": of(ours)}


def depthwise(size: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Each way, as one call."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from detente.bridge.kernels.build import calling
    from detente.bridge.lower.backwards import backwards
    from detente.bridge.lower.ops.conv import convolve_last

    n, h, w, c, k = size
    draw = np.random.default_rng(0)
    given = [draw.standard_normal(shape, np.float32) for shape in ((n, h, w, c), (c, 1, k, k))]

    def loss(x: Any, weight: Any) -> Any:
        pads = [(k // 2, k // 2)] * 2
        return jnp.sum(convolve_last(x, weight, None, (1, 1), pads, (1, 1), c) ** 2)

    with backwards():
        found = {"XLA": _compiled(jax.grad(partial(loss), (0, 1)), given)}
        with calling():
            found["ours"] = _compiled(jax.grad(partial(loss), (0, 1)), given)
    return found


def batch_norms(size: tuple[int, ...], joined: bool = False) -> dict[str, Callable[[], Any]]:
    """Each way, as one call; ``joined``: with what is added to it and a ReLU behind."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from detente.bridge.kernels.batch_norms import Norm, normalised, spread
    from detente.bridge.lower.ops.norm import standard

    draw = np.random.default_rng(0)
    given = [draw.standard_normal(shape, np.float32) for shape in (size, size[-1:], size[-1:])]
    given += [draw.standard_normal(size, np.float32)] if joined else []

    def plain(x: Any, weight: Any, bias: Any, *more: Any) -> Any:
        y = standard(x, (0, 1, 2), 1e-5)[0] * weight + bias
        return jax.nn.relu(y + more[0]) if more else y

    def ours(x: Any, weight: Any, bias: Any, *more: Any) -> Any:
        return normalised(Norm(x, weight, bias, spread(x, 1e-5)), *more, clamped=joined)

    def of(run: Any) -> Any:
        return _compiled(jax.grad(lambda *rest: jnp.sum(run(*rest) ** 2), tuple(range(len(given)))), given)

    return {"XLA": of(plain), "ours": of(ours)}


def gelus(size: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Each way, as one call: a product reads the result, and so there is one."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from detente.bridge.lower.ops.activation import UNARY

    draw = np.random.default_rng(0)
    given = [draw.standard_normal(shape, np.float32) for shape in (size, size[-1:], (size[-1], 16))]

    def plain(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def of(run: Any) -> Any:
        return _compiled(jax.grad(lambda x, bias, w: jnp.sum((run(x + bias) @ w) ** 2), (0, 1, 2)), given)

    return {"XLA": of(plain), "ours": of(UNARY["gelu"])}


def masks(size: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Each way, as one call."""
    import jax

    from detente.bridge.kernels.build import calling
    from detente.bridge.lower.ops.random import keep_mask
    from detente.bridge.random.keys import IMPLEMENTATION

    key = jax.random.key(0, impl=IMPLEMENTATION)
    found = {"XLA": _compiled(lambda key: keep_mask(key, 0.1, size), [key])}
    with calling():
        found["ours"] = _compiled(lambda key: keep_mask(key, 0.1, size), [key])
    return found


def products(size: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Each way, as one call."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rows, inner, columns, dtype = size
    draw = np.random.default_rng(0)
    given = [
        jnp.asarray(draw.standard_normal(shape, np.float32), dtype)
        for shape in ((rows, inner), (columns, inner))
    ]

    def loss(x: Any, weight: Any) -> Any:
        return jnp.sum((x @ weight.T).astype("float32") ** 2)

    return {
        "XLA": _compiled(jax.grad(loss, (0, 1)), given, calls=False),
        "ours": _compiled(jax.grad(partial(loss), (0, 1)), given),
    }


def updates(size: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Each way, as one call in place."""
    import jax
    import numpy as np
    import torch

    from detente.bridge.kernels.build import calling
    from detente.bridge.optim.rule import trace

    kind, options, shape = size
    draw = np.random.default_rng(0)
    weight, grad = (draw.standard_normal(shape, np.float32) for _ in range(2))
    parameter = torch.nn.Parameter(torch.from_numpy(weight))
    optimizer = getattr(torch.optim, kind)([parameter], lr=1e-3, **options)
    rule = trace(optimizer, [("p", parameter)])
    hyper = rule.hyper(optimizer)

    def way() -> Callable[[], Any]:
        def run(params: Any, grads: Any, state: Any, numbers: Any) -> Any:
            return rule.apply(params, grads, state, numbers)

        grads = {"p": jax.device_put(grad)}
        held = [{"p": jax.device_put(weight)}, rule.read_state(optimizer, {"p": parameter})]
        compiled = jax.jit(run, donate_argnums=(0, 2)).lower(held[0], grads, held[1], hyper).compile()

        def once() -> None:
            held[:] = compiled(held[0], grads, held[1], hyper)
            jax.block_until_ready(held)

        return once

    found = {"XLA": way()}
    with calling():
        found["ours"] = way()
    return found


def _compiled(function: Any, given: list[Any], calls: bool = True) -> Callable[[], Any]:
    import jax

    from detente.bridge.kernels.build import called

    arrays = [jax.device_put(t) for t in given]
    lowered = jax.jit(function).lower(*arrays)
    if calls:
        called(lowered.compiler_ir())  # of the other operators' both ways
    compiled = lowered.compile()
    return lambda: jax.block_until_ready(compiled(*arrays))


def seconds(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median of each, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 2):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if turn >= 2:
                taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(all_) for name, all_ in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    os.environ.setdefault("DETENTE_KERNELS", "1")
    from detente.bridge.kernels.build import kernels
    from detente.session.fingerprint import machine

    if kernels().why:
        raise SystemExit(f"there are no kernels to measure: {kernels().why}")
    here = machine()
    rows = [
        "# The bridge's kernels, each alone",
        "",
        f"`python benchmarks/bridge_kernels.py`. Processor: {here['processor']}, {len(os.sched_getaffinity(0))} cores. "
        "Forward and gradients, a mask, or an update, ms.",
        "",
        "| operator | XLA | ours | XLA / ours |",
        "|---|---:|---:|---:|",
    ]
    for made, table in (
        (attention, ATTENTIONS),
        (depthwise, DEPTHWISE),
        (batch_norms, BATCH_NORMS),
        (partial(batch_norms, joined=True), JOINED),
        (gelus, GELUS),
        (masks, MASKS),
        (products, PRODUCTS),
        (updates, UPDATES),
    ):
        for name, size in table.items():
            found = seconds(made(size))
            cells = [f"{1e3 * found[k]:.2f}" for k in ("XLA", "ours")] + [
                f"{found['XLA'] / found['ours']:.2f}"
            ]
            rows.append(f"| {name} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
    given.page.write_text("\n".join([*rows, ""]))


if __name__ == "__main__":
    main()
