"""HloModuleProtos, written by hand field by field: what no compiler would write, too."""

from __future__ import annotations

from tests.programs.test_xplane import held, number, varint

_KINDS = {"pred": 1, "s32": 4, "f32": 11}


def shape(*dims: int, dtype: str = "f32") -> bytes:
    return number(2, _KINDS[dtype]) + held(3, b"".join(map(varint, dims)))


def instruction(
    ident: int,
    opcode: str,
    *operands: int,
    of: bytes | None = None,
    called: tuple[int, ...] = (),
    more: bytes = b"",
) -> bytes:
    """``of``: its shape; ``called``: the numbers of the computations that it calls, a loop's body first."""
    written = held(1, f"{opcode}.{ident}".encode()) + held(2, opcode.encode())
    written += held(3, shape(4, 4) if of is None else of) + more + number(35, ident)
    written += b"".join(number(36, operand) for operand in operands)
    return written + (held(38, b"".join(map(varint, called))) if called else b"")


def computation(ident: int, *rows: bytes, name: str = "") -> bytes:
    """Instructions whose last is the root; its identity is the number of its place."""
    written = held(1, (name or f"c{ident}").encode()) + b"".join(held(2, row) for row in rows)
    return held(3, written + number(5, ident) + number(6, _ident(rows[-1])))


def module(*computations: bytes) -> bytes:
    """The first is the entry, and has the number 1."""
    return held(1, b"jit_step") + held(2, b"main") + b"".join(computations) + number(6, 1)


def _ident(row: bytes) -> int:
    """Field 35 of a row that ``instruction`` wrote."""
    from detente.programs.wire import fields

    return next(v for n, v in fields(memoryview(row)) if n == 35 and isinstance(v, int))
