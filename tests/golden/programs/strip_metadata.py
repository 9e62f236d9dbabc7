"""How the golden protos were made: a captured HloModuleProto without its source locations, gzipped.

    detente programs gpt2 jax torch-xla --save FOLDER
    python tests/golden/programs/strip_metadata.py FOLDER/jax.step.hlo.pb gpt2-tiny-jax.hlo.pb.gz
    python tests/golden/programs/strip_metadata.py --names FOLDER/jax.step.hlo.pb gpt2-tiny-jax.named.hlo.pb.gz

Source locations are two thirds of the file and paths of the machine it was captured on; nothing reads them. ``--names``
keeps what each operation is called (the modules that it is part of).
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

from detente.programs.wire import read_varint


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        low, value = value & 0x7F, value >> 7
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def rewritten(data: memoryview, keep: Callable[[int], bool], inner: dict[int, Callable]) -> bytes:
    """The message with the fields that ``keep`` keeps, sub-messages of ``inner`` rewritten, wire types as they were."""
    out, at = bytearray(), 0
    while at < len(data):
        start = at
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 2:
            size, at = read_varint(data, at)
            body = data[at : at + size]
            at += size
            if keep(number):
                new = inner[number](body) if number in inner else bytes(body)
                out += varint(tag) + varint(len(new)) + new
            continue
        if kind == 0:
            _, at = read_varint(data, at)
        else:
            at += 8 if kind == 1 else 4
        if keep(number):
            out += data[start:at]
    return bytes(out)


def strip(data: bytes, names: bool = False, schedule: bool = False) -> bytes:
    def named(body: memoryview) -> bytes:
        return rewritten(body, lambda number: number == 2, {})  # OpMetadata.op_name

    def instruction(body: memoryview) -> bytes:
        return rewritten(body, lambda number: names or number != 7, {7: named})

    def computation(body: memoryview) -> bytes:
        return rewritten(body, lambda number: True, {2: instruction})

    kept = {1, 2, 3, 4, 5, 6, 8, 18}  # without the stack frame index, the device assignment, and the schedule
    kept |= {7} if schedule else set()
    return rewritten(memoryview(data), kept.__contains__, {3: computation})


if __name__ == "__main__":
    named = sys.argv[1] == "--names"
    source, target = map(Path, sys.argv[1 + named : 3 + named])
    target.write_bytes(gzip.compress(strip(source.read_bytes(), named), 9, mtime=0))
