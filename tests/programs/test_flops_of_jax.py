"""Every workload's closed form against a count of the program that JAX makes of it here and now, tiny, uncompiled."""

from __future__ import annotations

import pytest

from detente.programs.count import count_program
from detente.records.contract import CONTRACTS
from detente.workloads.catalogue import WORKLOADS, find_workload
from tests.sampled import sampled

pytest.importorskip("flax", reason="flax is not installed")

CASES = [
    (name, contract, scan)
    for name in WORKLOADS
    for contract in find_workload(name).contracts
    for scan in (False, True)
    if not scan or find_workload(name).layers(find_workload(name).sizes["tiny"]) > 1
]


@pytest.mark.parametrize(("name", "contract", "scan"), sampled(CASES, 2, several=True))
def test_the_closed_form_is_the_count(name: str, contract: str, scan: bool) -> None:
    import numpy as np

    from detente.stacks.jax_jit import JaxJit, JaxScan

    workload = find_workload(name)
    size = workload.sizes["tiny"]
    stack = JaxScan() if scan else JaxJit()
    stack.start("cpu", "fp32", 1)
    running = stack.build(workload, size, CONTRACTS[contract])
    batch = running.place(workload.batch(size, np.random.default_rng(0)))
    lowered = running.jitted.lower(running.params, running.rest, running.opt_state, batch)
    wanted = workload.flops(size, CONTRACTS[contract].region)
    proto = count_program(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), "hlo")
    text = count_program(lowered.as_text().encode(), "stablehlo")
    assert (proto.unknown_loops, text.unknown_loops) == (0, 0)
    assert (proto.flops, text.flops) == (wanted, wanted)
    # The donation that the stack asks for is in the program: every byte of state that a train step replaces.
    if CONTRACTS[contract].region == "train-step":
        assert (
            proto.alias_bytes
            == text.alias_bytes
            >= sum(a.size * a.dtype.itemsize for a in stack.jax.tree.leaves(running.params))
        )


@pytest.mark.parametrize("differentiated", [False, True])
def test_a_product_whose_groups_are_told_at_run_time_is_counted(differentiated: bool) -> None:
    """``jax.lax.ragged_dot`` as a TPU is handed it: an operation of its own, which was worth nothing."""
    import jax
    import jax.numpy as jnp

    def product(a, b, groups):
        return jnp.sum(jax.lax.ragged_dot(a, b, groups))

    asked = jax.grad(product, argnums=(0, 1)) if differentiated else product
    given = jnp.ones((11, 5)), jnp.ones((3, 5, 7)), jnp.array([4, 4, 3], jnp.int32)
    lowered = jax.jit(asked).trace(*given).lower(lowering_platforms=("tpu",))
    proto = count_program(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), "hlo")
    text = count_program(lowered.as_text().encode(), "stablehlo")
    assert proto.opcodes["ragged-dot"] == proto.products == text.products == 1 + differentiated
    assert proto.flops == text.flops == 2 * 11 * 5 * 7 * (1 + differentiated)


def test_two_functions_that_jax_calls_back_are_no_one_program() -> None:
    """What JAX calls such a custom call is what ``calls_back`` looks for."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from detente.programs.built import built_facts

    def step(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    lowered = jax.jit(step).lower(jnp.ones(3))
    facts = built_facts([("hlo", lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())])
    assert "program" not in facts and facts["work"].startswith("1:")
