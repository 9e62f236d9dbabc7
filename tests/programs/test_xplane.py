"""Profiles of XLA, written by hand."""

from __future__ import annotations

import pytest

from detente.programs.module import ProgramError
from detente.programs.xplane import Profile, read_xplane


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def held(key: int, value: bytes) -> bytes:
    return varint(key << 3 | 2) + varint(len(value)) + value


def stat_name(ident: int, name: str) -> bytes:
    return held(5, number(1, ident) + held(2, number(1, ident) + held(2, name.encode())))


def event(begun: int, took: int, operation: str, module: bytes) -> bytes:
    stats = held(4, number(1, 1) + held(5, operation.encode())) + held(4, number(1, 2) + module)
    return held(4, number(1, 7) + number(2, begun) + number(3, took) + stats)


STEP = number(7, 3)  # by reference to a name


def profile(*lines: bytes) -> bytes:
    names = stat_name(1, "hlo_op") + stat_name(2, "hlo_module") + stat_name(3, "jit_step")
    return held(1, held(2, b"/host:CPU") + names + b"".join(held(3, line) for line in lines))


def test_thread_time_is_added_and_its_union_told() -> None:
    one = number(3, 1) + event(0, 4000, "dot.1", STEP) + event(5000, 1000, "add.2", STEP)
    two = number(3, 1) + event(2000, 4000, "dot.1", STEP)
    found = read_xplane(profile(one, two))
    assert found.seconds == {
        ("jit_step", "dot.1"): pytest.approx(8e-9),
        ("jit_step", "add.2"): pytest.approx(1e-9),
    }
    assert found.busy == pytest.approx(6e-9) and found.span == pytest.approx(6e-9)


def test_an_instant_is_shared_out_among_the_innermost_operations_of_each_thread() -> None:
    one = number(3, 1) + event(0, 8000, "while.1", STEP) + event(2000, 4000, "dot.2", STEP)
    two = number(3, 1) + event(4000, 6000, "add.3", STEP) + event(20_000, 1000, "exp.4", STEP)
    found = read_xplane(profile(one, two))
    assert found.shares == {
        ("jit_step", "while.1"): pytest.approx(3e-9),  # 0 to 2 alone, 6 to 8 beside add.3
        ("jit_step", "dot.2"): pytest.approx(3e-9),  # 2 to 4 alone, 4 to 6 beside add.3
        ("jit_step", "add.3"): pytest.approx(4e-9),  # 4 to 8 beside others, 8 to 10 alone
        ("jit_step", "exp.4"): pytest.approx(1e-9),
    }
    assert sum(found.shares.values()) == pytest.approx(found.busy)
    assert found.of_step(shared=True)["add.3"] == pytest.approx(4e-9)


def test_operations_that_follow_each_other_without_a_gap_are_not_nested() -> None:
    rows = [
        event(0, 10, "a", STEP),
        event(10, 20, "b", STEP),
        event(10, 5, "c", STEP),
        event(30, 0, "d", STEP),
    ]
    found = read_xplane(profile(number(3, 1) + b"".join(rows)))
    assert found.shares == {
        ("jit_step", "a"): pytest.approx(10e-12),
        ("jit_step", "b"): pytest.approx(15e-12),
        ("jit_step", "c"): pytest.approx(5e-12),
    }


def test_a_step_is_a_run_of_each_operation_whatever_the_profile_cut_off() -> None:
    rows = [event(0, 10, "add.1", STEP), event(20, 30, "dot.2", STEP), event(60, 12, "add.1", STEP)]
    more = [event(100 + k, 2, "body.3", STEP) for k in range(4)]
    tail = [event(200, 20, "exp.4", STEP), event(300, 20, "exp.5", STEP)]
    found = read_xplane(profile(b"".join([*rows, *more, *tail]))).of_step()
    assert found["dot.2"] == pytest.approx(30e-12)
    # Most run once: a loop's body, four times as often, counts four times.
    assert found["body.3"] == pytest.approx(8e-12)


def test_another_program_beside_the_step_is_left_out() -> None:
    other = held(5, b"jit_convert")
    found = read_xplane(profile(event(0, 100, "dot.1", STEP) + event(200, 5, "dot.1", other))).of_step()
    assert found == {"dot.1": pytest.approx(100e-12)}


def test_a_profile_without_operations_is_empty() -> None:
    assert read_xplane(held(1, held(2, b"/host:metadata"))).of_step() == {}
    assert read_xplane(b"").busy == 0


def test_what_is_no_profile_is_refused() -> None:
    with pytest.raises(ProgramError, match="not a profile"):
        read_xplane(b"\xff\xff\xff")


def of_layers(layers: int, steps: int, entry: int = 20, body: int = 30) -> Profile:
    """Kernels of a millisecond each, in front of a loop over layers and inside of it."""
    runs = {("jit_step", f"entry.{k}"): steps for k in range(entry)}
    runs |= {("jit_step", f"body.{k}"): steps * layers for k in range(body)}
    return Profile({key: 1e-3 * n for key, n in runs.items()}, runs)


@pytest.mark.parametrize("told", [5.0, None])
def test_a_loop_over_layers_takes_as_long_as_its_layers(told: float | None) -> None:
    """The commonest number of runs is the loop's, where layers are one: a body was once told as one layer."""
    found = of_layers(12, 5).of_step(steps=told)
    assert sum(found.values()) == pytest.approx(20e-3 + 30 * 12e-3)
    assert found["body.7"] == pytest.approx(12e-3) and found["entry.7"] == pytest.approx(1e-3)


def test_where_nearly_everything_is_in_the_loop_the_capture_knows_how_many_steps_there_were() -> None:
    found = of_layers(12, 5, entry=1, body=200).of_step(steps=5.0)
    assert sum(found.values()) == pytest.approx(1e-3 + 200 * 12e-3)


def test_a_profile_that_began_late_holds_fewer_steps_than_were_run() -> None:
    """torch_xla's is begun and ended by a clock: of 9 steps 7 lie within it."""
    found = of_layers(4, 7).of_step(steps=9.0)
    assert sum(found.values()) == pytest.approx(20e-3 + 30 * 4e-3)


@pytest.mark.parametrize("told", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_number_of_steps_that_is_none_is_not_believed(told: float) -> None:
    assert sum(of_layers(12, 5).of_step(steps=told).values()) == pytest.approx(20e-3 + 30 * 12e-3)
