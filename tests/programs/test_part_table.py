"""A program by part: what a step runs, not what is written."""

from __future__ import annotations

import gzip

from detente.programs.count import read_program
from detente.programs.module import Computation, Instruction, Shape
from detente.programs.part_table import part_table
from detente.programs.parts import kernels
from tests.programs.build import parameter, program
from tests.programs.test_golden import GOLDEN

F = (Shape("f32", (4, 4)),)


def test_a_kernel_of_a_loop_counts_as_often_as_it_runs() -> None:
    data = gzip.decompress((GOLDEN / "gpt2-tiny-jax-scan.optimised.hlo.pb.gz").read_bytes())
    module = read_program(data, "hlo-optimised")
    found = kernels(module)
    assert {k.runs for k in found} == {1, 2}
    rows = part_table(module, module, {}).rows
    assert sum(row.kernels or 0 for row in rows) == sum(k.runs for k in found) > len(found)


def test_operations_dtypes_and_kernels_are_those_of_a_step() -> None:
    tanh = Instruction("tanh", F, (0,), name="tanh.1", origin="jit(f)/while/body/jvp(h)/tanh")
    body, cond = (
        Computation("body", (parameter(0, 4, 4), tanh), 1),
        Computation("cond", (parameter(0, 4, 4),), 0),
    )
    loop = Instruction("while", F, (0,), called=("cond", "body"), trips=12)
    module = program([parameter(0, 4, 4), loop], body, cond)
    (row,) = part_table(module, module, {"tanh.1": 1.0}).rows
    assert (row.operations, row.dtypes, row.kernels, row.bytes) == (12, {"f32": 12}, 12, 12 * 64)
    assert row.seconds == 1.0  # the profile's is of a step already
