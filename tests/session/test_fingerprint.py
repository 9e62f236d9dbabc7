"""What may change between a session and its continuation."""

from __future__ import annotations

from typing import Any

from detente.records.session import Fingerprint
from detente.session.fingerprint import differences, machine, processor_of


def _asked(**settings: Any) -> Fingerprint:
    return Fingerprint(
        {"cores": 2}, {"blocks": None, "budget_s": 480.0, "memory": True, **settings}, "source"
    )


def test_a_larger_budget_continues():
    assert differences(_asked(), _asked(budget_s=1200.0, memory=False)) == []


def test_other_blocks_or_another_seed_do_not():
    assert differences(_asked(blocks=5), _asked(blocks=10)) == ["settings blocks: 5 -> 10"]
    assert differences(_asked(seed=1), _asked(seed=2)) == ["settings seed: 1 -> 2"]


def test_another_source_does_not():
    assert differences(_asked(), Fingerprint({"cores": 2}, _asked().settings, "other")) == [
        "detente's own source changed"
    ]


def _cpuinfo(family: int, model: int) -> str:
    one = f"vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n"
    return "".join(f"processor\t: {core}\n{one}microcode\t: 0x1\n\n" for core in range(2))


def test_two_generations_of_one_name_are_two_processors():
    """A session of one day was resumed on the next by a machine of another generation, whose name is the same."""
    older, newer = processor_of(_cpuinfo(25, 1)), processor_of(_cpuinfo(26, 2))
    assert (older, newer) == ("AMD EPYC (family 25, model 1)", "AMD EPYC (family 26, model 2)")
    moved = differences(Fingerprint({"processor": older}, {}, ""), Fingerprint({"processor": newer}, {}, ""))
    assert moved == [f"machine processor: {older!r} -> {newer!r}"]


def test_a_processor_that_tells_half_of_it():
    assert processor_of("model name\t: Neoverse-N1\n") == "Neoverse-N1"
    assert (
        processor_of("Hardware\t:\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
        == "implementer 0x41, part 0xd0c"
    )
    assert processor_of("") == "" and machine()["processor"]
