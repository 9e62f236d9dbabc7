"""Which causes lie between two stacks, by their names and by what their captures say."""

from __future__ import annotations

from typing import Any

import pytest

from detente.explain.causes import known_path, label, lacking, narrowed
from detente.explain.question import Question

PLAIN = {"alias_bytes": 96, "executables": 1, "program": "x"}
MINE = "my.py:Mine"


def codes(path: Any) -> list[str]:
    return [c.code for c in path.causes]


def test_a_stack_of_the_users_has_a_runtime_and_a_program() -> None:
    path = known_path(MINE, "jax")
    assert codes(path) == ["runtime", "program"]
    assert [label(path, s) for s in ((), ("runtime",), ("runtime", "program"))] == [
        MINE,
        f"jax[program={MINE}]",
        "jax[program=jax]",
    ]
    # Nothing is known of two of the user's, and of a runtime that takes nobody's program.
    assert codes(known_path(MINE, "my.py:Other")) == [] == codes(known_path(MINE, "torch-eager"))


@pytest.mark.parametrize(
    ("a", "found"),
    [
        ({}, ()),
        ({"alias_bytes": 0}, ("donation",)),
        ({"executables": 2}, ("optimizer",)),
        ({"alias_bytes": 0, "executables": 3}, ("donation", "optimizer")),
        ({"kernels": 10_000, "loops": 3}, ()),
    ],
)
def test_what_a_lacks_is_seen_in_its_capture(a: dict[str, Any], found: tuple[str, ...]) -> None:
    assert lacking({**PLAIN, **a}, PLAIN, "jax") == found


def test_nothing_is_lacking_where_nobody_knows() -> None:
    assert lacking({}, PLAIN, "jax") == () == lacking({"alias_bytes": 0}, {}, "jax")
    # What B lacks itself, and what B's runtime cannot switch, is no cause.
    assert lacking({**PLAIN, "alias_bytes": 0}, {**PLAIN, "alias_bytes": 0}, "jax") == ()
    assert lacking({**PLAIN, "alias_bytes": 0}, PLAIN, "torch-eager") == ()


def test_a_step_of_several_executables_is_not_run_by_another_runtime() -> None:
    """What the optimizer outside is worth had no bar: the rows between were those of a program that nobody can hand
    over, and the row that says it was never planned."""
    path = narrowed(known_path(MINE, "jax"), ("donation", "optimizer"), False)
    assert codes(path) == ["donation", "optimizer"]
    assert (
        label(path, ()) == "jax[donation=off+optimizer=outside]"
        and label(path, ("donation", "optimizer")) == "jax"
    )
    assert [code for code, _ in path.left] == ["runtime", "program"]
    # From PyTorch, the bridge stands in: nothing of A's is handed over.
    assert not narrowed(known_path("torch-eager", "jax"), ("optimizer",), False).left


def test_one_program_on_both_sides_is_no_cause() -> None:
    path = narrowed(known_path(MINE, "jax"), ("donation",), True)
    assert codes(path) == ["runtime", "donation"]
    assert [label(path, s) for s in ((), ("runtime",), ("runtime", "donation"))] == [
        MINE,
        "jax[donation=off]",
        "jax",
    ]
    # Where the program is all that could be switched, it stays.
    assert codes(narrowed(known_path("detente", "jax"), (), True)) == ["program", "torch-kernels"]


def test_torchs_products_are_no_part_of_the_programs_text() -> None:
    path = known_path("torch-eager", "jax")
    assert codes(path) == ["runtime", "program", "torch-kernels", "fusion"]
    # JAX never calls them: they are switched off on the bridge, before its program makes room for JAX's.
    assert path.orders() == (
        ("runtime", "torch-kernels", "program", "fusion"),
        ("runtime", "torch-kernels", "fusion", "program"),
        ("runtime", "fusion", "torch-kernels", "program"),
    )
    assert {label(path, order[:k]) for order in path.orders() for k in range(5)} == {
        "torch-eager",
        "detente[fusion=off]",
        "detente[fusion=off+torch-kernels=off]",
        "detente",
        "detente[torch-kernels=off]",
        "jax[fusion=off]",
        "jax",
    }
    assert codes(path.without("program")) == ["runtime", "fusion"]
    assert codes(path.without("torch-kernels")) == ["runtime", "program", "fusion"]
    back = known_path("detente", "jax-scan")
    assert [label(back, order[:k]) for order in back.orders() for k in range(3)] == [
        "detente",
        "detente[torch-kernels=off]",
        "jax-scan",
    ]
    assert codes(known_path("torch-compile", "detente")) == ["runtime"]


def test_only_a_training_step_brings_kernels() -> None:
    for contract, brings in (("train-step", True), ("gradient", False), ("forward", False)):
        path = Question("gpt2", "tiny", contract, "fp32", "cpu", "torch-eager", "jax").path
        assert ("torch-kernels" in codes(path)) == brings, contract
        assert {"runtime", "program", "fusion"} <= set(codes(path))
        # Nor is the runtime's bar called after products that nobody calls there.
        assert ("PyTorch's products" in path.causes[0].title) == brings, contract


def test_a_cause_is_not_there_twice() -> None:
    path = known_path("torch-eager", "jax")
    assert codes(narrowed(path, ("fusion",), False)) == codes(path)


def test_a_question_knows_what_the_captures_say() -> None:
    question = Question("gpt2", "tiny", "train-step", "fp32", "cpu", MINE, "jax")
    knowing = question.knowing({MINE: {**PLAIN, "alias_bytes": 0}, "jax": PLAIN})
    assert (knowing.lacks, knowing.same_program) == (("donation",), True)
    assert codes(knowing.path) == ["runtime", "donation"]
    other = question.knowing({MINE: {**PLAIN, "program": "y"}, "jax": PLAIN})
    assert codes(other.path) == ["runtime", "program"] and not other.same_program
    assert question.knowing({}).path == question.path
