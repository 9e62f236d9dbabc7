"""Lists of operators: read, refused, divided."""

from __future__ import annotations

import json

import pytest

from detente.programs.count import count_program, read_program
from detente.programs.module import ProgramError
from detente.programs.operators import SCHEMA, origin_of, seconds_of
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
@pytest.mark.parametrize("path", ["h.0.attn", "", "root"])
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
    ],
)
def test_what_is_no_list_of_operators_is_refused(data: bytes) -> None:
    with pytest.raises(ProgramError):
        read_program(data, "operators")
