"""Lists of operators: read, refused, divided."""

from __future__ import annotations

import json

import pytest

from detente.programs.built import built_facts
from detente.programs.count import count_program, read_program
from detente.programs.module import ProgramError
from detente.programs.operators import SCHEMA, kernels_of, operator_facts, origin_of, seconds_of
from detente.programs.part_table import part_table
from detente.programs.scope import read_scope


def row(op, operands=(-1,), path="h.0", direction="forward", flops=0, seconds=None):
    return {
        "op": op, "results": [["float32", [2, 3]]], "operands": list(operands), "path": path,
        "direction": direction, "flops": flops, "seconds": seconds,
    }  # fmt: skip


def written(*rows) -> bytes:
    return json.dumps({"schema": SCHEMA, "name": "step", "operations": list(rows)}).encode()


@pytest.mark.parametrize("direction", ["forward", "backward", "remat", "optimizer"])
@pytest.mark.parametrize("path", ["h.0.attn", "", "root", "optimizer", "optimizer.0"])
def test_a_path_and_a_direction_survive_being_written_down(path: str, direction: str) -> None:
    scope = read_scope(origin_of(path, direction))
    assert scope is not None and scope.direction == direction
    wanted = path if direction == "optimizer" or path else "root"
    assert scope.path in (wanted, "")


def test_operators_are_counted_and_timed_by_part() -> None:
    data = written(
        row("aten.addmm.default", flops=100, seconds=3.0),
        row("aten.tanh.default", [0], path=None, seconds=1.0),
        row("aten.mm.default", [1], path="h.0", direction="backward", flops=50, seconds=2.0),
    )
    module = read_program(data, "operators")
    assert count_program(data, "operators").flops == 150
    table = part_table(module, module, seconds_of(data))
    found = {(r.path, r.direction): (r.flops, r.seconds, r.kernels) for r in table.rows}
    # tanh has no name, and is made of h.0's forward alone.
    assert found["h.0", "forward"] == (100, 4.0, 2)
    assert found["h.0", "backward"] == (50, 2.0, 1)
    assert table.of_time["name"] == pytest.approx(5 / 6) and table.of_time["flow"] == pytest.approx(1 / 6)


def test_what_a_check_reads_of_operators() -> None:
    attention = "aten._scaled_dot_product_flash_attention_for_cpu"
    data = written(
        row(f"{attention}.default"),
        row("aten._scaled_dot_product_efficient_attention.default"),
        row(f"{attention}_backward.default", [0], direction="backward"),
        row("aten._scaled_dot_product_attention_math.default"),
        row("aten.convolution.default") | {"channels_last": True},
        row("aten.convolution_backward.default", [4], direction="backward"),
        row("aten.native_batch_norm.default", [4]) | {"channels_last": True},
    )
    assert operator_facts(data) == {"attention_calls": 2, "convolutions": 2, "channels_last": 1}
    assert built_facts([("operators", data)]) == operator_facts(data)


def with_kernels(rows, *kernels) -> bytes:
    document = json.loads(written(*rows))
    document["kernels"] = [{"name": n, "operations": list(o), "seconds": s} for n, o, s in kernels]
    return json.dumps(document).encode()


def test_kernels_of_a_compiled_step_are_timed_by_the_part_of_their_result() -> None:
    rows = [
        row("aten.mul.Tensor", path="h.0"),
        row("aten.add.Tensor", [0], path="h.1"),
        row("aten.tanh.default", [1], path=None),
        row("aten.mm.default", [2], path="h.1", direction="backward", flops=8),
    ]
    data = with_kernels(rows, ("0.cpp_fused:1", [0, 1], 3.0), ("0.mm:2", [3], 1.0), ("1.lost:1", [], 0.5))
    held, seconds = kernels_of(data)
    assert seconds == {"0.cpp_fused:1": 3.0, "0.mm:2": 1.0, "1.lost:1": 0.5}
    table = part_table(read_program(data, "operators"), None, seconds, held)
    found = {(r.path, r.direction): (r.kernels, r.seconds) for r in table.rows}
    assert found["h.1", "forward"] == (1, 3.0) and found["h.1", "backward"] == (1, 1.0)
    assert found["h.0", "forward"] == (0, 0)
    assert table.shared_s == 3.0 and table.of_time["none"] == pytest.approx(0.5 / 4.5)
    assert kernels_of(written(*rows)) == ({}, {})


def test_a_kernel_of_operations_that_are_not_there_is_refused() -> None:
    with pytest.raises(ProgramError, match="there are 1 operations"):
        kernels_of(with_kernels([row("aten.mul.Tensor")], ("0.k:1", [1], 1.0)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"schema": "detente/operators/9", "operations": []}',
        written(row("aten.add.Tensor", [0])),
        written(row("aten.add.Tensor", [-2])),
        written({"op": "aten.add.Tensor"}),
        written({**row("aten.mm.default"), "flops": float("inf")}),
        written({**row("aten.mm.default"), "results": 3}),
        b"[" * 100_000,
    ],
)
def test_what_is_no_list_of_operators_is_refused(data: bytes) -> None:
    with pytest.raises(ProgramError):
        read_program(data, "operators")


@pytest.mark.parametrize(
    "kernels",
    [3, [3], [{"name": "k", "operations": 5, "seconds": 1}], [{"name": "k", "operations": ["x"], "seconds": 1}],
     [{"name": "k", "operations": [0], "seconds": float("nan")}], [{"name": [], "operations": [0], "seconds": 1}]],
)  # fmt: skip
def test_what_is_no_list_of_kernels_is_refused(kernels: object) -> None:
    data = json.dumps({**json.loads(written(row("aten.mm.default"))), "kernels": kernels}).encode()
    with pytest.raises(ProgramError):
        kernels_of(data)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0, "soon", []])
def test_what_is_no_time_is_refused(seconds: object) -> None:
    with pytest.raises(ProgramError):
        seconds_of(written({**row("aten.mm.default"), "seconds": seconds}))
