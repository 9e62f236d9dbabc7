"""Parts as nested boxes, and memory as a line: nothing leaves the drawing, and every width is a share."""

from __future__ import annotations

import pytest

from detente.programs.live_memory import LiveMemory
from detente.programs.part_table import PartRow, PartTable
from detente.programs.parts import Kernel, Part
from detente.report.icicle import deepest, icicle
from detente.report.memory_curve import POINTS, outline, peak_words

PARTS = [Part("h.0.attn", "forward"), Part("h.1.attn", "forward")]


def row(path: str, direction: str, seconds: float | None, operations: int = 1, members=()) -> PartRow:
    return PartRow(path, direction, tuple(members), operations, 0, 0, {}, 1, seconds)


def table(*rows: PartRow) -> PartTable:
    return PartTable(rows, {"name": 1.0, "flow": 0.0, "guess": 0.0, "none": 0.0})


def test_boxes_nest_and_add_up() -> None:
    drawn = icicle(
        table(
            row("h.*.attn", "forward", 3.0, members=PARTS),
            row("h.*.mlp", "forward", 1.0),
            row("", "optimizer", 4.0),
        ),
        {PARTS[0]: 7},
        8.0,
        640.0,
        True,
    )
    by = {(b.label, b.direction): b for b in drawn}
    assert by["forward", "forward"].width == by["optimizer", "optimizer"].width == 320
    assert by["attn", "forward"].width == 240 and by["attn", "forward"].part == 7
    assert "h.*.attn" in by["attn", "forward"].title and "x2" in by["attn", "forward"].title
    assert by["h", "forward"].part is None
    assert max(b.x + b.width for b in drawn) <= 640.01
    assert deepest(drawn) == 4
    for box in drawn:
        inside = [b for b in drawn if b.row == box.row + 1 and box.x <= b.x < box.x + box.width - 1e-6]
        assert sum(b.width for b in inside) <= box.width + 0.1


def test_without_times_the_width_is_operations_and_what_is_too_thin_is_left_out() -> None:
    drawn = icicle(
        table(row("a", "forward", None, 1), row("b", "forward", None, 9999)), {}, 10_000, 640, False
    )
    assert [b.label for b in drawn] == ["forward", "b"]
    assert "operations" in drawn[0].title


def test_a_program_of_nothing_draws_nothing() -> None:
    assert icicle(table(), {}, 0.0, 640.0, True) == () and deepest(()) == 0


def live(*temporary: int) -> LiveMemory:
    return LiveMemory(10, 100, tuple(f"op.{k}" for k in range(len(temporary))), temporary, {})


@pytest.mark.parametrize("count", [1, 3, POINTS, 7 * POINTS + 1])
def test_a_curve_keeps_its_peak_whatever_its_length(count: int) -> None:
    sizes = [1] * count
    sizes[count // 2] = 100
    points = [p.split(",") for p in outline(live(*sizes), 100, 640, 90).split()]
    assert len(points) <= POINTS + 2
    assert min(float(y) for _, y in points) == 0
    assert max(float(x) for x, _ in points) <= 640
    assert points[0][1] == points[-1][1] == "90.0"


def test_no_memory_no_curve() -> None:
    assert outline(live(), 100, 640, 90) == "" and outline(live(0, 0), 0, 640, 90) == ""


def test_the_peak_is_told_with_its_part() -> None:
    kernels = (Kernel("op.1", PARTS[0], "name", False),)
    assert peak_words(live(1, 5, 2), kernels) == "op.1 of h.0.attn forward, operation 2 of 3"
    assert peak_words(live(1, 2, 5), kernels) == "op.2, operation 3 of 3"
