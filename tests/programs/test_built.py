"""Kernels are what a step calls one by one: what is inside of a fusion is none, what a loop runs is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from detente.programs import built
from detente.programs.count import read_program
from detente.programs.module import Computation, Instruction, Module, Shape
from tests.programs.build import parameter, program
from tests.programs.test_xplane import held
from tests.programs.written_hlo import computation, instruction
from tests.programs.written_hlo import module as module_of

GOLDEN = Path(__file__).parents[1] / "golden/programs"
F = (Shape("f32", (4, 4)),)


def facts(*modules: Module, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    forms = {bytes([k]): m for k, m in enumerate(modules)}
    monkeypatch.setattr(built, "read_program", lambda data, form: forms[data])
    return built.built_facts([("hlo-optimised", data) for data in forms])


INNER = Computation(
    "inner", (parameter(0, 4, 4), Instruction("add", F, (0, 0)), Instruction("exponential", F, (1,))), 2
)


def test_a_fusion_is_one_kernel_and_a_loop_runs_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = program([parameter(0, 4, 4), Instruction("fusion", F, (0,), ("inner",))], INNER)
    looped = program([parameter(0, 4, 4), Instruction("while", F, (0,), ("inner", "inner"))], INNER)
    assert facts(fused, monkeypatch=monkeypatch)["kernels"] == 1
    found = facts(looped, monkeypatch=monkeypatch)
    assert (found["kernels"], found["loops"]) == (2, 1)


def test_what_nothing_reads_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = program([parameter(0, 4, 4), Instruction("add", F, (0, 0)), Instruction("negate", F, (0,))])
    assert facts(dead, monkeypatch=monkeypatch)["kernels"] == 1


def test_several_programs_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    one = program([parameter(0, 4, 4), Instruction("dot", F, (0, 0))], aliased=64)
    other = program([parameter(0, 4, 4), Instruction("custom-call", F, (0,), target="gemm")], aliased=32)
    found = facts(one, other, monkeypatch=monkeypatch)
    assert found == {
        "executables": 2,
        "kernels": 2,
        "products": 1,
        "loops": 0,
        "alias_bytes": 96,
        "bridge_calls": 0,
    }


def test_what_the_bridge_brings_is_counted_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [
        Instruction("custom-call", F, (0,), target=t) for t in ("detente_matmul", "detente_update", "gemm")
    ]
    tuples = [parameter(0, 4, 4), *calls, Instruction("tuple", F, (1, 2, 3))]
    assert facts(program(tuples), monkeypatch=monkeypatch)["bridge_calls"] == 2


def golden(name: str) -> bytes:
    return gzip.decompress((GOLDEN / f"{name}.hlo.pb.gz").read_bytes())


def test_a_stack_that_gives_no_optimised_program_away_has_its_program_alone() -> None:
    found = built.built_facts([("hlo", golden("gpt2-tiny-torch-xla"))])
    assert found.keys() == {"program", "work"} and len(str(found["program"])) == 64
    # Another hash, and the same work: names and text are no work.
    named = built.built_facts([("hlo", golden("gpt2-tiny-torch-xla.named"))])
    assert named["work"] == found["work"]
    assert built.built_facts([("hlo", golden("gpt2-tiny-jax"))])["work"] != found["work"]
    assert built.built_facts([]) == {}


def test_a_loop_over_layers_is_seen_in_what_xla_made_of_it() -> None:
    found = built.built_facts(
        [("hlo", golden("gpt2-tiny-jax-scan")), ("hlo-optimised", golden("gpt2-tiny-jax-scan.optimised"))]
    )
    assert found["loops"] == 2 and found["executables"] == 1 and found["alias_bytes"] > 0
    assert 100 < found["kernels"] < 1000


def hand_written(config: bytes, target: bytes = b"__cudnn$fmhaSoftmax") -> bytes:
    """A program whose work is all in a library's call, given this."""
    given = instruction(1, "parameter")
    call = instruction(2, "custom-call", 1, more=held(28, target) + held(43, config))
    return module_of(computation(1, given, call))


def test_what_a_librarys_call_is_given_is_in_the_programs_hash() -> None:
    """cuDNN's mask and scale stand there, and a Pallas kernel: programs that differ in it alone had one hash, so that
    all of a gap was the runtime's."""
    causal, none = hand_written(b'{"mask_type":"CAUSAL"}'), hand_written(b'{"mask_type":"NO_MASK"}')
    of = [built.built_facts([("hlo", data)])["program"] for data in (causal, none, causal)]
    assert of[0] == of[2] != of[1]


def test_of_a_program_that_calls_python_back_nobody_knows_what_it_is() -> None:
    """Its address differs from process to process, and two functions at one address are not the same."""
    calls = [
        hand_written(config, b"xla_ffi_python_cpu_callback") for config in (b"{index = 1}", b"{index = 2}")
    ]
    found = [built.built_facts([("hlo", data)]) for data in calls]
    assert all("program" not in facts and facts["work"] for facts in found)
    assert read_program(calls[0], "hlo").sha256 == read_program(calls[1], "hlo").sha256
