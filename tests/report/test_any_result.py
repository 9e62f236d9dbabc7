"""Whatever the judge may leave out of a result, the page is told."""

from __future__ import annotations

from dataclasses import replace

import fabricated as f
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detente.records.result import CompileColumn, Floor, ParityColumn, Result, Steady
from detente.report.compose import compose
from detente.report.html import html_page
from detente.report.markdown import render_markdown
from detente.report.terminal import render_text

TIMES = st.none() | st.floats(0, 1e9) | st.just(float("nan")) | st.just(float("inf"))
STATES = st.sampled_from(["ok", "oom", "failed", "skipped", "void"])
PROOFS = st.sampled_from(["passed", "failed", "inherited", "not checked"])
LABELS = st.sampled_from(["live_tensors", "process_peak", "odd_label"])
POSITIVE = st.floats(1e-9, 1e9)


@st.composite
def cells(draw, label):
    base = f.cell(label, 1.0, draw(STATES), draw(st.text(max_size=20)))
    ends = st.none() | POSITIVE
    steady = draw(st.none() | st.builds(Steady, POSITIVE, ends, ends, st.just(3), st.just(9)))
    work = st.just(10**9)
    floor = st.builds(Floor, work, work, POSITIVE, POSITIVE, POSITIVE, ends, st.just("flops"))
    states = st.sampled_from(["miss", "hit", "none", "unknown"])
    return replace(
        base,
        steady_s=steady,
        first_s=draw(TIMES),
        second_s=draw(TIMES),
        third_s=draw(TIMES),
        floor=draw(st.none() | floor),
        compile=draw(
            st.none() | st.builds(CompileColumn, st.integers(0, 9), st.floats(0, 99), states, TIMES, TIMES)
        ),
        parity=draw(st.none() | st.builds(ParityColumn, PROOFS, PROOFS, st.none(), st.none() | POSITIVE)),
        memory=draw(
            st.dictionaries(
                st.sampled_from(["live_tensors", "process_peak", "odd_label"]), st.integers(0, 10**13)
            )
        ),
        device=draw(st.sampled_from(["cpu", "cuda"])),
    )


WORDS = st.sampled_from(["FASTER", "SLOWER", "SAME", "LEANS", "UNDECIDED", "VOID"])


@st.composite
def results(draw):
    labels = draw(
        st.lists(st.sampled_from(["a", "b", "c", "d", "a#aa"]), min_size=0, max_size=5, unique=True)
    )
    rows = tuple(draw(cells(x)) for x in labels)
    ratio = st.none() | st.floats(1e-6, 1e6)
    verdicts = tuple(
        f.verdict(a, b, draw(WORDS), draw(ratio), 0.02, needed=draw(st.none() | st.integers(1, 99)))
        for i, a in enumerate(labels)
        for b in labels[:i]
    )
    state = draw(st.sampled_from(["whole", "interrupted", "drifting", "unjudged"]))
    aa = draw(
        st.sampled_from([{}, {f.GROUP: f.AA}, {f.GROUP: replace(f.AA, ratio=None, low=None, high=None)}])
    )
    return Result(
        replace(f.head(state), aa=aa, margins=draw(st.sampled_from([{}, {f.GROUP: 3.0}]))), rows, verdicts
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(results(), st.booleans())
def test_text_and_markdown(result, full):
    text = render_text(result, full=full)
    assert result.session.rerun in text and result.session.rerun in render_markdown(result)
    if result.session.state == "drifting":
        assert "x faster" not in text and "x slower" not in text


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(results())
def test_html(result):
    page = html_page(compose(result))
    assert page.count("<table>") == page.count("</table>") and "NaN" not in page
