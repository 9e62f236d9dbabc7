"""Every workload's closed form against a count of the program that JAX makes of it here and now, tiny, uncompiled."""

from __future__ import annotations

import pytest

from detente.programs.count import count_program
from detente.records.contract import CONTRACTS
from detente.workloads.catalogue import WORKLOADS, find_workload

pytest.importorskip("flax", reason="flax is not installed")

CASES = [
    (name, contract, scan)
    for name in WORKLOADS
    for contract in find_workload(name).contracts
    for scan in (False, True)
    if not scan or find_workload(name).layers(find_workload(name).sizes["tiny"]) > 1
]


@pytest.mark.parametrize(("name", "contract", "scan"), CASES)
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
