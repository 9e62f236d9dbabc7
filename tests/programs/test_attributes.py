"""What an operation says beside its operands and shapes: equal where programs do the same, different where not."""

from __future__ import annotations

from detente.programs.attributes import SAYING, digest_of
from detente.programs.hlo import read_hlo
from detente.programs.wire import written
from tests.programs.test_golden import golden


def literal(field: int, data: bytes, layout: bytes = b"") -> tuple[int, memoryview]:
    """LiteralProto{shape 1, ... f32s 8}."""
    return 8, memoryview((written(1, layout) if layout else b"") + written(field, data))


def test_a_constant_is_its_value_and_not_its_layout() -> None:
    half, one = (literal(8, bytes(4 * [n])) for n in (1, 2))
    assert digest_of("constant", [half]) != digest_of("constant", [one])
    assert digest_of("constant", [half]) == digest_of("constant", [literal(8, bytes(4 * [1]), b"\x10\x0b")])
    assert digest_of("constant", [literal(9, bytes(8))]) != digest_of("constant", [literal(8, bytes(8))])


def test_what_is_there_without_being_said_says_nothing() -> None:
    # One group of features; a precision, which no program decides.
    assert digest_of("convolution", [(50, 1), (58, 1)]) == ""
    assert digest_of("convolution", [(50, 4)]) != ""
    assert 51 not in SAYING
    # A convolution's window is in its detail, but for its direction.
    plain, turned = (memoryview(written(1, b"\x08\x03" + more)) for more in (b"", b"\x38\x01"))
    assert digest_of("convolution", [(15, plain)]) == "" != digest_of("convolution", [(15, turned)])
    assert digest_of("reduce-window", [(15, plain)]) != ""
    # What a kernel is configured with is none of a program's own, except that of a call.
    config = [(43, memoryview(b"{}"))]
    assert digest_of("dot", config) == ""
    assert digest_of("custom-call", config, "mine") != ""
    # An address of one process is no difference between two captures of a program.
    assert digest_of("custom-call", config, "xla_ffi_python_cpu_callback") == ""


def test_of_real_programs() -> None:
    """What JAX sums up and what it takes the maximum of are two things, and PyTorch/XLA's sums are JAX's."""
    said = {}
    for stack in ("jax", "torch-xla"):
        module = read_hlo(golden(stack, "hlo"))
        found = {}
        for home in module.computations.values():
            for one in home.instructions:
                if one.opcode == "reduce":
                    (body,) = (module.computations[name] for name in one.called)
                    found.setdefault(body.instructions[body.root].opcode, set()).add(one.attributes)
                if one.opcode == "dot":
                    dims = [home.instructions[k].shape.dims for k in one.operands]
                    left, right = one.detail.contracting, one.detail.right
                    assert [dims[0][k] for k in left] == [dims[1][k] for k in right] and left
                if one.opcode == "transpose":
                    inner = home.instructions[one.operands[0]].shape.dims
                    assert one.shape.dims == tuple(inner[k] for k in one.dimensions)
        said[stack] = found
    assert {opcode: len(digests) for opcode, digests in said["jax"].items()} == {
        "add": 1,
        "maximum": 1,
        "and": 1,
    }
    assert said["jax"]["add"].isdisjoint(said["jax"]["maximum"])
    assert said["jax"]["add"] & said["torch-xla"]["add"]
