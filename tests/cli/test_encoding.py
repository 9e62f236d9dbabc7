"""A terminal that knows ASCII alone gets the whole page."""

from __future__ import annotations

import io

from detente.cli.encoding import forgive


def test_every_character_has_a_plain_one():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    forgive(stream)
    stream.write("détente · 42.7 µs – ░│━●━ ✓ ✗ 漢")
    stream.flush()
    assert raw.getvalue() == b"detente - 42.7 us - .|=o= + x ?"


def test_a_stream_that_knows_them_is_not_changed():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    forgive(stream)
    stream.write("détente ●")
    stream.flush()
    assert raw.getvalue().decode() == "détente ●"


def test_what_is_no_file_is_left_alone():
    forgive(io.StringIO())
