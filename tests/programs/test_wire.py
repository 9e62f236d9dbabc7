"""The wire format against an encoder of its own, and against google.protobuf where that is installed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detente.programs.wire import WireError, fields, integers, read_varint, signed, text


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        low, value = value & 0x7F, value >> 7
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_integers_survive(value: int) -> None:
    data = varint(value & (2**64 - 1))
    found, at = read_varint(memoryview(data), 0)
    assert (signed(found), at) == (value, len(data))


@given(
    st.lists(st.tuples(st.integers(1, 500), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300))))
)
def test_every_field_comes_back_in_order(message: list[tuple[int, int | bytes]]) -> None:
    data = b""
    for number, value in message:
        if isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            data += varint(number << 3 | 2) + varint(len(value)) + value
    found = [(n, v if isinstance(v, int) else bytes(v)) for n, v in fields(memoryview(data))]
    assert found == message


def test_a_cut_message_is_refused_at_its_offset() -> None:
    data = varint(3 << 3 | 2) + varint(10) + b"short"
    with pytest.raises(WireError, match="field 3 at byte 0 wants 10 bytes, 5 are left"):
        list(fields(memoryview(data)))
    with pytest.raises(WireError, match="unknown wire type 3"):
        list(fields(memoryview(b"\x0b")))
    with pytest.raises(WireError, match="broken varint"):
        read_varint(memoryview(b"\xff" * 12), 0)


def test_agrees_with_google_protobuf() -> None:
    """descriptor.proto is a message that protobuf itself ships: names, numbers and nesting must be read alike."""
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not installed")
    message = descriptor.DescriptorProto(
        name="M", field=[descriptor.FieldDescriptorProto(name="f", number=-7)], reserved_name=["a", "b"]
    )
    found = list(fields(memoryview(message.SerializeToString())))
    assert [text(v) for n, v in found if n == 1] == ["M"]
    assert [text(v) for n, v in found if n == 10] == ["a", "b"]
    (inner,) = [v for n, v in found if n == 2]
    assert not isinstance(inner, int)
    assert dict(fields(inner))[3] == (-7) % 2**64
    assert integers(-7 % 2**64) == [-7]


def test_packed_integers() -> None:
    packed = memoryview(b"".join(varint(v & (2**64 - 1)) for v in (1, -1, 300)))
    assert integers(packed) == [1, -1, 300]
