"""A step cut up: kinds of work, directions, parts, and what is left."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from detente.programs.kinds import KINDS, kind_of_operator, kinds_of
from detente.programs.module import Computation, Convolution, Dot, Instruction, ProgramError, Shape
from detente.programs.operators import SCHEMA
from detente.programs.parts import Part
from detente.programs.shown_profile import profile_lines
from detente.programs.step_profile import Slice, StepProfile, of_operators, of_xla
from tests.programs.build import parameter, program

F = (Shape("f32", (4, 4)),)
U = (Shape("u32", (4, 4)),)


def op(opcode: str, *operands: int, results=F, **more) -> Instruction:
    return Instruction(opcode, results, operands, **{"name": f"{opcode}.1", **more})


DOT = op("dot", 0, 0, detail=Dot((1,)))
CONVOLUTION = op("convolution", 0, 0, detail=Convolution((), 4, 4, 4))
WORDS = [op(o, 0, 0, results=U) for o in ("xor", "shift-left", "shift-right-logical")]
HELD = {
    "products": [DOT, op("reduce", 0, 0), op("add", 0, 0)],
    "convolutions": [CONVOLUTION, op("add", 0, 0)],
    "random numbers": [*WORDS, op("multiply", 0, 0)],
    "lookups": [op("gather", 0, 0), op("reduce", 0, 0)],
    "reductions": [op("multiply", 0, 0), op("reduce", 0, 0)],
    "elementwise": [op("xor", 0, 0, results=U), op("transpose", 0), op("exponential", 0)],
    "copies": [op("broadcast", 0), op("transpose", 0), op("dynamic-update-slice", 0, 0)],
    "other": [op("custom-call", 0, target="SomebodysKernel")],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fusion_is_what_it_holds(kind: str) -> None:
    inside = Computation("fused", (parameter(0, 4, 4), *HELD[kind]), len(HELD[kind]))
    # A later operation reads the earlier ones: what nobody reads is no work.
    inside = Computation(
        "fused", (*inside.instructions, op("tuple", *range(1, len(HELD[kind]) + 1))), len(HELD[kind]) + 1
    )
    module = program([parameter(0, 4, 4), op("fusion", 0, called=("fused",), name="fusion.7")], inside)
    assert kinds_of(module) == {"fusion.7": kind}


@pytest.mark.parametrize(
    ("target", "kind"),
    [("__onednn$matmul", "products"), ("__onednn$convolution", "convolutions"), ("__onednn$softmax", "reductions"),
     ("__cublas$gemm", "products"), ("__cudnn$convForward", "convolutions")],
)  # fmt: skip
def test_a_librarys_call_is_known_by_its_target(target: str, kind: str) -> None:
    module = program([parameter(0, 4, 4), op("custom-call", 0, target=target, name="call.1")])
    assert kinds_of(module) == {"call.1": kind}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten.mm.default", "products"),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", "products"),
        ("aten.convolution_backward.default", "convolutions"),
        ("aten.native_dropout_backward.default", "random numbers"),
        ("aten.bernoulli_.float", "random numbers"),
        ("aten.embedding_dense_backward.default", "lookups"),
        ("aten.index_put_.default", "lookups"),
        ("aten.native_layer_norm_backward.default", "reductions"),
        ("aten.max_pool2d_with_indices.default", "reductions"),
        (
            "aten.cudnn_batch_norm.default",
            "elementwise",
        ),  # not among the CPU's words: told as what is not known
        ("aten.gelu_backward.default", "elementwise"),
        ("aten.add_.Tensor", "elementwise"),
        ("aten.copy_.default", "copies"),
        ("aten.cat.default", "copies"),
        ("mylib.twice.default", "other"),
    ],
)
def test_an_operator_is_known_by_its_name(name: str, kind: str) -> None:
    assert kind_of_operator(Instruction(name, F)) == kind


def row(op, path, direction, seconds):
    return {
        "op": op, "results": [["float32", [2, 3]]], "operands": [-1], "path": path, "direction": direction,
        "flops": 0, "seconds": seconds,
    }  # fmt: skip


def operators(*rows) -> bytes:
    return json.dumps({"schema": SCHEMA, "name": "step", "operations": list(rows)}).encode()


STEP = operators(
    row("aten.addmm.default", "h.0.fc", "forward", 0.3),
    row("aten.addmm.default", "h.1.fc", "forward", 0.3),
    row("aten.mm.default", "h.0.fc", "backward", 0.2),
    row("aten._fused_adamw_.default", None, "optimizer", 0.1),
)


def test_slices_and_what_is_left_are_the_step() -> None:
    found = of_operators(STEP, {"plain_s": 1.0, "cpu_s": 1.5, "threads": 2.0})
    assert found.by_work()["products"] == pytest.approx(0.8) and found.by_work()[
        "optimizer"
    ] == pytest.approx(0.1)
    assert found.by_direction() == pytest.approx(
        {"forward": 0.6, "backward": 0.2, "remat": 0.0, "optimizer": 0.1}
    )
    assert found.by_part()[Part("h.*.fc", "forward")] == pytest.approx(0.6)
    assert found.dispatch == pytest.approx(0.1) and found.idle == pytest.approx(0.5) and found.covered == 1.0
    assert found.computed + found.dispatch == pytest.approx(found.watched_s)


def test_a_step_that_was_not_timed_has_no_profile() -> None:
    with pytest.raises(ProgramError, match="no operator was timed"):
        of_operators(operators(row("aten.mm.default", "h", "forward", None)), {})


def test_operators_that_took_longer_than_the_step_that_nobody_watched_leave_no_dispatch() -> None:
    found = of_operators(STEP, {"plain_s": 0.5})
    assert found.dispatch == 0.0 and found.computed == pytest.approx(0.9) and found.idle is None


def test_a_profile_of_another_program_is_refused() -> None:
    file = Path(__file__).parents[1] / "golden/programs/gpt2-tiny-jax.named.optimised.hlo.pb.gz"
    with pytest.raises(ProgramError, match="no operation of this program"):
        of_xla(gzip.decompress(file.read_bytes()), b"", {})


def made(*slices: Slice) -> StepProfile:
    return StepProfile(1.0, 1.1, 1.0, 1, slices)


def test_two_profiles_beside_each_other_are_in_the_order_of_what_they_differ_by() -> None:
    mine = made(Slice(Part("a", "forward"), "products", 0.1), Slice(Part("b", "backward"), "copies", 0.5))
    theirs = made(
        Slice(Part("a", "forward"), "products", 0.2), Slice(Part("", "optimizer"), "optimizer", 0.3)
    )
    lines = profile_lines({"bridge": mine, "eager": theirs})
    at = next(k for k, line in enumerate(lines) if line.startswith("by part"))
    assert [line.split("  ")[0] for line in lines[at + 1 : at + 4]] == ["b backward", "update", "a forward"]
    assert lines[at + 1].split() == ["b", "backward", "500", "0", "+500"]
    assert "+10.0 % while it was watched" in lines[0] and "0 % of their time idle" in lines[0]
    kinds = {line.split("  ")[0]: line.split()[-3:] for line in lines}
    assert kinds["dispatch"] == ["500", "600", "-100"] and kinds["all"] == ["1100", "1100", "+0"]


def test_parts_beyond_the_twentieth_are_one_row_that_leaves_nothing_out() -> None:
    slices = [Slice(Part(f"part{chr(97 + k)}", "forward"), "products", 0.01 * (k + 1)) for k in range(26)]
    lines = profile_lines({"bridge": made(*slices)})
    at = next(k for k, line in enumerate(lines) if line.startswith("by part"))
    told = [float(line.split()[-1]) for line in lines[at + 1 :]]
    assert lines[-1].startswith("6 more") and sum(told) == pytest.approx(1e3 * sum(s.seconds for s in slices))
