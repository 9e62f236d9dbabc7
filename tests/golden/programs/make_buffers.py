"""Makes the golden programs with their buffers: ``PYTHONPATH=src:. python -m tests.golden.programs.make_buffers``.

Two steps of the same function, layers written out and in a loop. The plan that XLA tells of each goes beside them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from detente.stacks.xla_memory import read_plan, with_buffers
from tests.golden.programs.strip_metadata import strip

HERE = Path(__file__).parent


def scan(weights: Any, x: Any) -> Any:
    def body(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w), None

    x, _ = jax.lax.scan(body, x, weights)
    return (x**2).sum()


def chain(weights: Any, x: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def main() -> None:
    plans = {}
    layers = {"scan": jnp.ones((5, 64, 64)), "chain": [jnp.ones((64, 64)) for _ in range(5)]}
    for function in (scan, chain):

        def step(weights: Any, x: Any, function: Any = function) -> Any:
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(function)(weights, x))

        jitted = jax.jit(step, donate_argnums=0)
        compiled = jitted.lower(layers[function.__name__], jnp.ones((256, 64))).compile()
        analysis = compiled.memory_analysis()
        module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
        data = gzip.compress(with_buffers(strip(module, schedule=True), analysis), 9, mtime=0)
        (HERE / f"{function.__name__}.buffers.hlo.pb.gz").write_bytes(data)
        plans[function.__name__] = read_plan(analysis)
    (HERE / "buffers.json").write_text(json.dumps(plans, indent=1) + "\n")


if __name__ == "__main__":
    main()
