"""Truths about JAX and its programs, each changed once. Run as ``of_jax.py PREPARED``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.worker.evidence.bench import Bench, Truth, tell

TRUTHS: dict[str, Truth] = {}


def truth(key: str) -> Callable[[Truth], Truth]:
    def keep(function: Truth) -> Truth:
        TRUTHS[key] = function
        return function

    return keep


def captured(b: Bench, **changes: Any) -> dict[str, Any]:
    """What is counted in the program of another step, made of the honest one by ``around``."""
    honest = b.opened()
    jax, running = honest.running.jax, honest.running
    before, jitted = running._planned, running.jitted
    around, donate = changes.get("around", lambda f: f), changes.get("donate", (0, 1, 2))
    running.jitted, running._planned = jax.jit(around(jitted.__wrapped__), donate_argnums=donate), None
    try:
        return b.probe("program", replace(honest))["program"]
    finally:
        running.jitted, running._planned = jitted, before


@truth("observed.launches")
def a_step_starts_another_program(b: Bench) -> tuple[Any, Any]:
    jax = b.opened().running.jax
    other = jax.jit(lambda x: x * 2)

    def step(honest: Any, batch: Any) -> Any:
        loss, rest = honest.step(batch)
        return other(loss), rest

    step(b.opened().running, b.opened().placed[0])
    changed = b.probe("observed", b.with_running(step=step))["observed"]["launches"]
    return b.probe("observed")["observed"]["launches"], changed


@truth("observed.reads")
def a_step_reads_its_loss(b: Bench) -> tuple[Any, Any]:
    def step(honest: Any, batch: Any) -> Any:
        handle = honest.step(batch)
        float(handle[0])
        return handle

    changed = b.probe("observed", b.with_running(step=step))["observed"]["reads"]
    return b.probe("observed")["observed"]["reads"], changed > 0


@truth("observed.queue")
def every_second_step_of_a_queue_is_not_started(b: Bench) -> tuple[Any, Any]:
    # Counted from the last wait: how many steps the window took before hangs on the time that they took.
    waiting: list[Any] = []

    def step(honest: Any, batch: Any) -> Any:
        waiting.append(batch)
        return honest.step(batch) if len(waiting) % 2 else (0.0, {})

    def synchronise(honest: Any, *handles: Any) -> None:
        waiting.clear()
        honest.synchronise(*handles)

    changed = b.probe("observed", b.with_running(step=step, synchronise=synchronise))["observed"]["queue"]
    return b.probe("observed")["observed"]["queue"]["launches"], changed["launches"]


@truth("program.alias_bytes")
def nothing_is_donated(b: Bench) -> tuple[Any, Any]:
    state = b.probe("region")["region"]["state_bytes"]
    return captured(b)["alias_bytes"] >= 0.98 * state, captured(b, donate=())["alias_bytes"] >= 0.98 * state


@truth("program.output_bytes")
def nothing_but_the_loss_is_returned(b: Bench) -> tuple[Any, Any]:
    state = b.probe("region")["region"]["state_bytes"]
    changed = captured(b, around=lambda f: lambda *a: f(*a)[0], donate=())["output_bytes"]
    return captured(b)["output_bytes"] >= 0.98 * state, changed >= 0.98 * state


@truth("program.constants_bytes")
def weights_are_captured(b: Bench) -> tuple[Any, Any]:
    jnp = b.opened().running.jax.numpy
    held = np.random.default_rng(0).random((512, 512)).astype(np.float32)

    def around(f: Any) -> Any:
        def step(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            loss, *others = f(params, rest, state, batch)
            return (loss + (jnp.asarray(held) * loss).sum(), *others)

        return step

    return captured(b)["constants_bytes"] > 2**20 - 1, captured(b, around=around)[
        "constants_bytes"
    ] > 2**20 - 1


@truth("program.product_dtypes")
def a_product_is_rounded(b: Bench) -> tuple[Any, Any]:
    jnp = b.opened().running.jax.numpy

    def around(f: Any) -> Any:
        def step(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            loss, *others = f(params, rest, state, batch)
            half = jnp.full((8, 8), loss, jnp.bfloat16)
            return (loss + (half @ half)[0, 0].astype(loss.dtype), *others)

        return step

    return sorted(captured(b)["product_dtypes"]), sorted(captured(b, around=around)["product_dtypes"])


@truth("program.narrow_sums")
def a_program_adds_in_half_precision(b: Bench) -> tuple[Any, Any]:
    jax = b.opened().running.jax
    jnp = jax.numpy

    def around(f: Any) -> Any:
        def step(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            loss, *others = f(params, rest, state, batch)
            half = jnp.full((100,), loss, jnp.bfloat16)
            added = jax.lax.reduce(half, jnp.bfloat16(0), jax.lax.add, (0,))
            return (loss + added.astype(loss.dtype), *others)

        return step

    return captured(b)["narrow_sums"], captured(b, around=around)["narrow_sums"]


@truth("program.rng_ops")
def a_program_draws(b: Bench) -> tuple[Any, Any]:
    jax = b.opened().running.jax

    def around(f: Any) -> Any:
        def step(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            loss, *others = f(params, rest, state, batch)
            seed = loss.astype("int32")
            return (loss + jax.random.normal(jax.random.key(seed)), *others)

        return step

    return captured(b)["rng_ops"] > 0, captured(b, around=around)["rng_ops"] > 0


@truth("executable.hash of two processes")
def another_program_has_another_hash(b: Bench) -> tuple[Any, Any]:
    """Off the CPU, where compilers tune; the platform is all that is pretended here."""
    honest = b.opened()
    running, jitted = honest.running, honest.running.jitted

    def hashed() -> str:
        return b.probe("executable", replace(honest, platform="cuda"))["executable"]["hash"]

    fair = hashed() == hashed()
    first = hashed()
    running.jitted = running.jax.jit(
        lambda p, r, s, x: (jitted.__wrapped__(p, r, s, x)[0] * 2, *jitted.__wrapped__(p, r, s, x)[1:])
    )
    changed = hashed() == first
    running.jitted = jitted
    return fair, changed


@truth("compile")
def something_compiles(b: Bench) -> tuple[Any, Any]:
    running = b.opened().running
    jax = running.jax
    before = running.compiled().events
    running.loss(running.step(b.opened().placed[0]))
    fair = running.compiled().events - before
    jax.jit(lambda x: x * 17.25)(jax.numpy.ones(3)).block_until_ready()
    return fair, running.compiled().events - before > 0


@truth("precision.denormals")
def jax_on_a_cpu_flushes(b: Bench) -> tuple[Any, Any]:
    """What the rule was made for: nobody changed anything, and it is another truth than torch's."""
    return True, b.probe("precision")["precision"]["denormals"]


if __name__ == "__main__":
    tell("jax", sys.argv[1], TRUTHS)
