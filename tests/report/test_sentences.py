"""What is said of a pair and of a group; and what must never be said."""

from __future__ import annotations

from dataclasses import replace

import fabricated as f
import pytest

from detente.records.finding import Finding
from detente.report.compose import groups_of
from detente.report.page import plain_text
from detente.report.sentences import flipped, headline, interval, pair_sentence, times
from detente.report.terminal import render_text


def said(result):
    return [" ".join(plain_text(s.words) for s in headline(result.session, g)) for g in groups_of(result)]


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (f.verdict("a", "b", "SLOWER", 1.42), "a is 1.42x slower than b"),
        (f.verdict("a", "b", "FASTER", 0.5), "a is 2.00x faster than b"),
        (f.verdict("a", "b", "SAME", 0.99), "a and b are the same within 4.1 %"),
        (
            f.verdict("a", "b", "LEANS", 0.981),
            "a leans 1.9 % faster than b, not decided: the difference may be within the margin of 4.1 %",
        ),
        (
            f.verdict("a", "b", "UNDECIDED", 0.99, margin=0.02, blocks=5, needed=12),
            "not decided: a and b; 5 processes each, about 12 needed to see 2 %",
        ),
        (f.verdict("a", "b", "VOID", None, reason="b is void"), "no ratio between a and b: b is void"),
    ],
)
def test_a_pair_in_words(verdict, text):
    assert plain_text(pair_sentence(verdict)) == text


def test_the_other_side_says_the_same():
    v = f.verdict("a", "b", "SLOWER", 1.25, 0.04)
    back = flipped(v)
    assert (times(v), times(back)) == ("1.25x slower", "1.25x faster")
    assert interval(v) == interval(back) == "1.20 to 1.30"
    assert flipped(back).ratio == pytest.approx(v.ratio)


def test_a_word_without_a_ratio_prints_none():
    # Even where the judge left a figure in the record.
    for word in ("VOID", "UNDECIDED", "SAME"):
        assert times(f.verdict("a", "b", word, 1.3)) == ""
    assert interval(f.verdict("a", "b", "VOID", 1.3)) == ""


def test_headlines():
    assert said(f.whole()) == [
        "jax and torch-compile run at the same speed, within 4.1 %; jax is 1.42x faster than torch-eager. "
        "jax takes 16.7 s longer to its first loss and 430 ms less per step: ahead of torch-eager after 40 steps. "
        "Not decided: jax 1.02 s and jax-scan 1.05 s per step; "
        "5 processes each, about 12 needed to see 4.1 %."
    ]
    assert said(f.undecided()) == [
        "Not decided: jax 1.02 s and torch-eager 1.04 s per step; "
        "5 processes each, about 12 needed to see 2 %."
    ]


def test_a_drifting_session_says_no_ratio():
    (text,) = said(f.drifting())
    assert text.startswith("No ratio is printed: the machine drifted")
    assert "1.05 to 1.13" in text and "x faster" not in text and "x slower" not in text


def with_cells(*cells, verdicts=()):
    return replace(f.undecided(), cells=cells, verdicts=verdicts)


def test_the_fastest_of_all_is_claimed_only_when_it_is_decided_against_all():
    cells = (f.cell("a", 1.0), f.cell("b", 1.5), f.cell("c", 2.0))
    ab, ac = f.verdict("b", "a", "SLOWER", 1.5), f.verdict("a", "c", "FASTER", 0.5)
    (text,) = said(with_cells(*cells, verdicts=(ab, ac)))
    sooner = "a takes 1.00 s less to its first loss and 1.00 s less per step: ahead of c from the first step."
    assert text == f"a is the fastest of 3: 1.50x faster than b and 2.00x faster than c. {sooner}"
    open_ = f.verdict("b", "a", "UNDECIDED", 1.5, blocks=5)
    (text,) = said(with_cells(*cells, verdicts=(open_, ac)))
    assert text == (
        f"a is 2.00x faster than c. {sooner} "
        "Not decided: a 1.00 s and b 1.50 s per step; "
        "5 processes each, more would probably not decide about 4.1 %."
    )


def test_rows_that_are_the_same_as_a_third_are_not_said_to_be_the_same_as_each_other():
    cells = (f.cell("a", 1.0), f.cell("b", 1.01), f.cell("c", 1.015))
    same = f.verdict("b", "a", "SAME", 1.01), f.verdict("c", "a", "SAME", 1.015)
    whole = (*same, f.verdict("c", "b", "SAME", 1.005))
    (text,) = said(with_cells(*cells, verdicts=whole))
    assert text == "a, b and c run at the same speed, within 2 %."
    for third in ((f.verdict("c", "b", "LEANS", 1.016),), ()):  # of five rows not every pair is shown
        (text,) = said(with_cells(*cells, verdicts=(*same, *third)))
        assert text.startswith("a runs at the same speed as each of b and c, within 2 %."), text


@pytest.mark.parametrize(
    ("verdict", "figure", "ends"),
    [
        (f.verdict("a", "b", "SLOWER", 1.1176, 0.0014), "1.118x slower", "1.116 to 1.119"),
        (f.verdict("a", "b", "FASTER", 0.97738, 0.0016), "1.023x faster", "1.022 to 1.025"),
        (f.verdict("a", "b", "FASTER", 0.5, 0.0), "2.00x faster", "2.0000 to 2.0000"),
    ],
)
def test_a_figure_lies_within_the_interval_beside_it(verdict, figure, ends):
    assert (times(verdict), interval(verdict)) == (figure, ends)


def test_what_is_settled_between_other_rows_leads():
    cells = (f.cell("a", 1.0), f.cell("b", 1.1), f.cell("c", 2.0))
    open_ = [f.verdict("b", "a", "UNDECIDED", 1.1, blocks=5), f.verdict("c", "a", "UNDECIDED", 2.0, blocks=5)]
    settled = f.verdict("c", "b", "SLOWER", 1.8)
    result = with_cells(*cells, verdicts=(*open_, settled))
    assert said(result) == [
        "b is 1.80x faster than c. "
        "b takes 900 ms less to its first loss and 900 ms less per step: ahead of c from the first step. "
        "Not decided: a 1.00 s against each of b 1.10 s and c 2.00 s per step; 5 processes each."
    ]
    assert [s.leads for s in headline(result.session, groups_of(result)[0])] == [True, False, False]


def test_a_verdict_that_contradicts_the_medians_is_said():
    cells = (f.cell("a", 1.0), f.cell("b", 1.01))
    (text,) = said(with_cells(*cells, verdicts=(f.verdict("b", "a", "FASTER", 0.9),)))
    assert text == "a is 1.11x slower than b."


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        (
            (f.cell("a", None, "oom"), f.cell("b", None, "skipped")),
            "No row of this comparison has a result: oom, skipped.",
        ),
        (
            (f.cell("a", 1.0), f.cell("b", None, "failed")),
            "Only a has a result; b failed, so nothing is compared.",
        ),
        ((f.cell("a", 1.0),), "Only a has a result, so nothing is compared."),
        ((f.cell("a", 1.0), f.cell("b", 1.0)), "2 rows were measured; this session is without a verdict."),
    ],
)
def test_when_there_is_nothing_to_compare(cells, text):
    assert said(with_cells(*cells)) == [text]


def test_rows_that_were_proved_at_their_beginning_alone_are_named():
    whole = f.undecided()
    late = Finding("window-not-proved", "unchecked", "x/jax", "not checked: no evidence: window")
    cells = tuple(replace(c, findings=(late,)) if c.label == "jax" else c for c in whole.cells)
    assert "proved to compute the same." in render_text(whole)
    text = " ".join(render_text(replace(whole, cells=cells)).split())
    assert (
        "the same in its first steps; what was timed after them was not taken again by the reference: jax."
        in text
    )


def test_a_replay_that_proves_nothing_is_no_proof_of_what_was_timed():
    whole = f.undecided()
    drift = Finding("window-not-proved", "unchecked", "x/jax", "not checked: in part", {"drift": 0.3})
    cells = tuple(replace(c, findings=(drift,)) if c.label == "jax" else c for c in whole.cells)
    text = " ".join(render_text(replace(whole, cells=cells)).split())
    assert (
        "the same in its first steps; what was timed after them was taken again, where eager itself drifts too far to "
        "tell: jax." in text
    )
