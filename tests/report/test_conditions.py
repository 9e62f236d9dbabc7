"""What a page says of margin, noise, correlation and load; and which headlines a busy machine gets."""

from __future__ import annotations

from dataclasses import replace

import fabricated as f
import pytest

from detente.judge.block_correlation import STORED
from detente.records.result import MachineLoad, NoiseColumn, Result, SessionHead
from detente.report.compose import groups_of
from detente.report.conditions import conditions
from detente.report.page import plain_text
from detente.report.sentences import headline

LOADED = MachineLoad(
    0.31, 0.45, 0.1, busy=3, waited_s=48.0, gave_up=True, names=("cc1plus", "python3"),
    reason="others used up to 45 % of this machine (3 of 5 blocks)",
)  # fmt: skip
QUIET = MachineLoad(0.012, 0.02, 0.1)


def head(
    load: MachineLoad | None = QUIET, bound: float = 0.02, own: float | None = -0.1, known: bool = True
) -> SessionHead:
    rho = max(STORED.bound, own or 0.0)
    return f.head(load=load, noise={f.GROUP: NoiseColumn(bound, known, rho, own)})


def told(session: SessionHead) -> str:
    result = replace(f.undecided(), session=session)
    return " ".join(conditions(session, groups_of(result)[0]))


def leads(result: Result) -> list[str]:
    (group,) = groups_of(result)
    return [plain_text(s.words) for s in headline(result.session, group)]


def compared(session: SessionHead, *verdicts) -> Result:
    cells = (f.cell("a", 1.0), f.cell("b", 1.5), f.cell("c", 2.0))
    return replace(f.undecided(), session=session, cells=cells, verdicts=verdicts)


def test_a_quiet_machine_in_one_clause():
    text = told(head())
    assert "Others used 1.2 % of the machine." in text
    assert f"{STORED.bound:.2f}" in text and "own estimate, not used: -0.10" in text
    assert ("provisional" in text) is STORED.provisional


def test_an_own_estimate_that_widens_is_said():
    assert "own estimate, used: 0.60" in told(head(own=0.6)) and "2.00 times as wide" in told(head(own=0.6))


def test_a_busy_machine_names_who_and_how_long_it_was_waited_for():
    text = told(head(LOADED))
    assert (
        "others used up to 45 % of this machine (3 of 5 blocks): cc1plus, python3." in text and "48 s" in text
    )


def test_too_noisy_is_said_with_its_bound():
    assert "differs by up to 88 %" in told(head(bound=0.88)) and "Too noisy for SAME" in told(
        head(bound=0.88)
    )
    assert "factor" not in told(head(bound=0.88))


def test_a_session_of_an_older_version_has_only_its_margin():
    assert told(f.head()).startswith("The margin is") and "Intervals" not in told(f.head())


def test_beside_others_a_headline_is_the_nearer_end():
    fast, slow = f.verdict("a", "c", "FASTER", 1 / 143, 0.3), f.verdict("b", "a", "SLOWER", 1.5, 0.1)
    (first, second) = leads(compared(head(LOADED), fast, slow))
    assert first == "a is the fastest of 3: at least 1.35x faster than b and at least 110x faster than c."
    assert second.startswith("The machine was not quiet: others used up to 45 %")


def test_beside_others_small_differences_and_same_do_not_lead():
    near, same = f.verdict("b", "a", "SLOWER", 1.2), f.verdict("c", "b", "SAME", 1.0)
    (only,) = leads(compared(head(LOADED), near, same))
    assert only.startswith("No headline: others used up to 45 % of this machine")
    assert "b against a and c against b" in only and "1.2x" not in only.replace("1.25x", "")
    assert leads(compared(head(QUIET), near, same))[0] == "a is 1.20x faster than b."
    # The A/A pair broke off: the noise is not known, and the same holds.
    assert leads(compared(head(QUIET, known=False), near))[0].startswith(
        "No headline: the A/A pair did not come"
    )


@pytest.mark.parametrize("load", [QUIET, LOADED])
def test_an_open_pair_never_reads_like_an_equal_one(load):
    open_ = f.verdict("b", "a", "UNDECIDED", 1.5, blocks=1, needed=5)
    text = leads(compared(head(load), open_))[0]
    assert text == "Not decided: a 1.00 s and b 1.50 s per step; 1 process each, a verdict needs 5."
    noisy = replace(
        open_, blocks=15, needed=None, reason="too noisy: the A/A pair differs by up to 88 %, more than 5 %"
    )
    assert "too noisy: the A/A pair differs by up to 88 %" in leads(compared(head(load), noisy))[0]
    both = f.verdict("c", "a", "UNDECIDED", 2.0, blocks=1, needed=5)
    text = leads(compared(head(load), open_, both))[0]
    assert text == (
        "Not decided: a 1.00 s against each of b 1.50 s and c 2.00 s per step; 1 process each, a verdict needs 5."
    )
