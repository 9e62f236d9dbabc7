"""The protobuf wire format, read without protobuf.

A worker has numpy and the standard library and nothing else (it runs inside any stack's environment, whose protobuf,
if there is one, is another framework's pin), and all we need of ``HloModuleProto`` is some thirty fields. So this is
the wire format itself: tag, then varint, 64-bit, bytes or 32-bit. Unknown fields are skipped, as protobuf does.
Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator


class WireError(ValueError):
    """Bytes that are not a protobuf message. The message tells the offset."""


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """The unsigned varint at offset ``at`` and the offset behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise WireError(f"broken varint at byte {at} of {len(data)}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def signed(value: int) -> int:
    """A varint read as int32 or int64 (protobuf writes negative numbers as 64-bit two's complement)."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Every field of a message in order: (number, integer) or (number, bytes).

    Fixed 32- and 64-bit fields come as their bytes. Raises WireError when the message is cut or is no message.
    """
    at = 0
    while at < len(data):
        start = at
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = read_varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = read_varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise WireError(f"unknown wire type {kind} of field {number} at byte {start}")
        if at + size > len(data):
            raise WireError(f"field {number} at byte {start} wants {size} bytes, {len(data) - at} are left")
        yield number, data[at : at + size]
        at += size


def integers(value: int | memoryview) -> list[int]:
    """A repeated integer field's share of one wire field: packed or single, signed."""
    if isinstance(value, int):
        return [signed(value)]
    found, at = [], 0
    while at < len(value):
        one, at = read_varint(value, at)
        found.append(signed(one))
    return found


def text(value: int | memoryview) -> str:
    """A string field."""
    return bytes(value).decode("utf-8", "replace") if not isinstance(value, int) else str(value)


def written(number: int, data: bytes) -> bytes:
    """A message, or bytes, as the field of that number.

    >>> written(3, b"ab").hex()
    '1a026162'
    """
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
