"""The rules of pages that scripts write: when two clocks agree, and what is said of a machine that was not quiet."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """A script of benchmarks/ by its name; its neighbours there can be imported by it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.parametrize(
    ("ours", "theirs", "bound", "word"),
    [
        (1.00, 1.03, 0.02, "agree"),
        (1.00, 1.07, 0.02, "DISAGREE"),
        (1.00, 1 / 1.07, 0.02, "DISAGREE"),
        # What passed once: 0.831 inside a bound of 35.7 %. Nobody can tell.
        (1.5268, 1.2691, 0.357, "UNDECIDED"),
        (1.00, 1.00, 0.357, "UNDECIDED"),
        # Beyond all noise they disagree on any machine.
        (1.00, 2.00, 0.357, "DISAGREE"),
        (1.00, 1.00, None, "UNDECIDED"),
    ],
)
def test_clocks_agree_within_a_fixed_tolerance_or_it_is_undecided(module, ours, theirs, bound, word):
    assert module("independent_check").verdict(ours, theirs, bound) == word


def test_a_page_tells_every_attempt_and_whether_the_machine_was_quiet(module, tmp_path):
    attempts = module("attempts")
    page = tmp_path / "page.md"

    def tried(bound: float | None) -> str:
        one = attempts.Attempt("2026-11-22 10:00 UTC", "Processor", "python x.py", bound, 0.02, "3 SAME")
        return "\n".join(attempts.told(attempts.remember(page, one)))

    assert "**Not quiet**: the A/A bound of 35.7 % is not under 5 %" in tried(0.357)
    assert "too few blocks for a bound" in tried(None)
    third = tried(0.05)
    assert "was not to be had in 3 attempts" in third and third.count("2026-11-22") == 3
    assert "quiet enough: its A/A bound of 3.1 % is under 5 %" in tried(0.031)
    assert "**Not quiet**" in tried(0.2), "a quiet attempt that is past does not excuse this one"


def test_readme_and_the_stored_pages_are_what_their_sessions_say():
    script = str(BENCHMARKS / "readme_session.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_bridges_page_decides_within_a_round_and_tells_what_failed(module):
    page = module("bridge_against_torch").page

    def line(side, number, step, **more):
        return {
            "model": "gpt2",
            "processor": "one, 2 cores",
            "form": "rolled" if side == "bridge" else "",
            "side": side,
            "round": number,
            "step_s": step,
            "first_s": 9.0,
            "peak_gb": 2.0,
        } | more

    lines = [
        line("eager", 0, 1.0), line("compile", 0, 0.5), line("bridge", 0, 0.6),  # 1.2 of the better one
        line("eager", 1, 4.0),
        line("compile", 1, 9.0) | {"failed": "exit code 1"},
        line("bridge", 1, 2.0),  # a machine four times as slow, and 0.5
        line("bridge", 2, 9.0),  # nothing beside it yet: interrupted
        line("bridge", 0, 9.0, model="bert", failed="exit code 137"),
        line("eager", 0, 1.0, processor="other, 2 cores"), line("bridge", 0, 3.0, processor="other, 2 cores"),
        line("compile", 0, 1.0, processor="other, 2 cores", failed="exit code 1"),
        line("eager", 0, 2.0, model="vit"), line("eager, channels last", 0, 3.0, model="vit"),
        line("compile", 0, 4.0, model="vit"), line("compile, channels last", 0, 1.0, model="vit", first_s=7.0),
        line("bridge", 0, 1.5, model="vit", extension="built", second_s=3.0, trials_s={"f32": 0.5}),
        line("eager", 0, 2.0, model="convnext"), line("bridge", 0, 2.0, model="convnext"),
    ]  # fmt: skip
    told = page(lines, "python benchmarks/bridge_against_torch.py")
    row, elsewhere = [text for text in told.splitlines() if text.startswith("| GPT-2")]
    assert "| 2 | 2.5 | 0.5 | 1.3 | rolled | 0.85 (0.50 to 1.20) |" in row
    assert "| 1 | 1 | failed | 3 | rolled | 3.00 (3.00 to 3.00) |" in elsewhere, "a table of its own"
    assert told.index("## one, 2 cores") < told.index(row) < told.index("## other, 2 cores")
    (pictures,) = [text for text in told.splitlines() if text.startswith("| ViT")]
    assert "| 1 | 2 | 1 cl | 1.5 | rolled | 1.50 (1.50 to 1.50) | 7, 9 | –, 3 |" in pictures, (
        "the layout that is faster"
    )
    (had,) = [
        text for text in told[: told.index("## other")].splitlines() if "extension of the bridge" in text
    ]
    assert "GPT-2" in had and "ConvNeXt" in had and "ViT" not in had
    assert "Geometric mean of the ratios: 1.08; the largest: 1.50." in told
    assert "may be faster with it: ConvNeXt tiny." in told
    (partly,) = [text for text in told.splitlines() if text.startswith("| ConvNeXt")]
    assert "| 1 | 2 | – | 2 | rolled | 1.00 (1.00 to 1.00) | –, 9 |" in partly, "not failed: not measured yet"
    assert "(`detente bridge prepare`): ViT-B/16." in told and "has of it: f32 0.5." in told
    assert "BERT" in told and "failed: exit code 137" in told
    assert "processes apart, from before they took turns: GPT-2" in told.replace("\n", " ")


def test_the_bridges_page_holds_against_each_other_what_ran_in_the_same_turn(module):
    page = module("bridge_against_torch").page

    def line(side, *steps, number=0, **more):
        middle = sorted(steps)[len(steps) // 2]
        return {
            "model": "gpt2", "processor": "one, 2 cores", "form": "", "side": side, "round": number,
            "step_s": middle, "steps_s": list(steps), "first_s": 9.0, "peak_gb": 2.0,
        } | more  # fmt: skip

    # a machine that becomes slower from turn to turn: 0.9 in each, whatever the medians say
    slower = [1.0 * 1.3**k for k in range(16)]
    lines = [
        line("eager", *slower),
        line("compile", *(2 * s for s in slower), second_failed="exit code 9"),
        line("bridge", *(0.9 * s for s in slower)),
    ]
    told = page(lines, "python benchmarks/bridge_against_torch.py")
    assert " 0.90 (0.90 to 0.90) " in told
    assert "compile, round 1, a second process failed: exit code 9" in told
    assert "processes apart" not in told
    uneven = [1.1, 0.7] * 8
    more = [line("eager", *[1.0] * 16, number=1), line("bridge", *uneven, number=1)]
    told = page(lines + more, "python benchmarks/bridge_against_torch.py")
    assert " 0.90 (0.70 to 1.10) " in told, "from the lowest to the highest of the rounds"
