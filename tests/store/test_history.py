"""History compares like with like, says what differs where it cannot, and leaves out what does not count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fabricate import STEPS, make_session

from detente.records.result import CellResult, MachineLoad, Result, SessionHead
from detente.records.session import Fingerprint
from detente.session.asked import settings_of
from detente.session.layout import lay_out
from detente.session.request import Request
from detente.store.history import history, unjudged
from detente.store.sessions import comparable, open_store


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path) as store:
        yield store


def put(store, n: int, **changes):
    session = make_session(blocks=10, id=f"s{n}", started=1000.0 * n, seed=n, **changes)
    store.write_session(session)
    return session


def changes(store, **asked):
    (series,) = history(store, workload="gpt2", stack="jax", **asked)
    return [None if p.change is None else p.change.word for p in series.points]


def test_words_over_sessions(store):
    put(store, 1)
    put(store, 2)
    put(store, 3, scale=1.2, versions={"jax": "0.11.0"})
    put(store, 4, machine={"processor": "another", "cores": 2})
    put(store, 5, scale=1.2, versions={"jax": "0.11.0"})
    assert changes(store) == [None, "NO CHANGE SEEN", "CHANGED", "NOT COMPARABLE", "NO CHANGE SEEN"]
    (series,) = history(store, workload="gpt2", stack="jax")
    points = series.points
    assert points[2].changed_versions == ("jax 0.10.2 to 0.11.0",)
    assert points[2].change.ratio == pytest.approx(1.2, rel=0.03)
    assert points[3].change.ratio is None
    assert "machine.processor (made up to another)" in points[3].change.reason
    # The fifth is compared with the third, the newest on the same machine.
    assert points[4].against == "s3"
    assert points[0].median == pytest.approx(STEPS["jax"], rel=0.02)


def test_seed_and_budget_do_not_matter_but_threads_do(store):
    for n, settings in enumerate(
        ({"seed": 1, "threads": 2}, {"seed": 2, "threads": 2}, {"seed": 2, "threads": 4}), 1
    ):
        session = make_session(blocks=5, id=f"s{n}", started=float(n), seed=n)
        store.write_session(replace(session, fingerprint=replace(session.fingerprint, settings=settings)))
    assert changes(store) == [None, "NO CHANGE SEEN", "NOT COMPARABLE"]


def test_the_a_a_twin_comes_only_when_it_is_asked_for(store):
    put(store, 1)
    assert [s.cell.rsplit("/", 1)[1] for s in history(store)] == ["jax", "torch-eager"]
    assert len(history(store, stack="jax#aa")) == 1
    assert len(history(store, cell="gpt2/tiny")) == 3


def test_what_does_not_count_is_left_out(store):
    session = make_session(blocks=6, id="s1")
    first, *rest = session.processes
    bad = [
        replace(first, evidence=replace(first.evidence, status="failed")),
        replace(first, kind="memory"),
        replace(first, block=-1),
    ]
    store.write_session(replace(session, processes=(*bad, *rest)))
    counted = sum(len(p.medians) for s in history(store, cell="gpt2") for p in s.points)
    assert counted == len(rest)


def test_a_row_that_was_judged_void_is_left_out(store):
    session = put(store, 1)
    key = next(c for c in session.planned if c.label == "jax")
    row = CellResult("gpt2", "tiny", "jax", "jax", "train-step", "fp32", "cpu", "void", "P5", group=key.group)
    head = SessionHead("s1", 0.0, 1.0, (), "", "whole", 10, session.fingerprint)
    store.write_judgement(Result(head, (row,), ()))
    assert [s.cell.rsplit("/", 1)[1] for s in history(store)] == ["torch-eager"]
    store.write_judgement(Result(head, (replace(row, status="ok"),), ()))
    assert len(history(store)) == 2


def test_limits_and_filters(store):
    assert history(store) == ()
    for n in range(1, 6):
        put(store, n)
    (series,) = history(store, stack="jax", sessions=3)
    assert [p.session for p in series.points] == ["s3", "s4", "s5"]
    assert history(store, workload="gemm") == ()
    assert len(history(store, cell="gpt2/tiny/train-step")) == 3
    assert history(store, cell="gpt2/paper") == ()


def judged(session, load: str = "") -> Result:
    told = MachineLoad(0.4, 0.5, 0.1, reason=load)
    rows = tuple(
        CellResult("gpt2", "tiny", c.stack, c.label, "train-step", "fp32", "cpu", "ok", group=c.group)
        for c in session.planned
    )
    return Result(
        SessionHead(session.id, 0.0, 1.0, (), "", "whole", 10, session.fingerprint, load=told), rows, ()
    )


def test_those_that_nobody_judged_are_told(store):
    one, two = put(store, 1), put(store, 2)
    assert set(unjudged(store)) == {"s1", "s2"}
    store.write_judgement(judged(one))
    assert unjudged(store) == ("s2",)
    store.write_judgement(judged(two, "others used up to 40 % of this machine"))
    assert unjudged(store) == () and unjudged(store, workload="gemm") == ()


@pytest.mark.parametrize("loaded", ["s1", "s2"])
@pytest.mark.parametrize(("scale", "word"), [(1.2, "NO CHANGE SEEN"), (1.5, "CHANGED")])
def test_beside_others_only_a_large_change_is_one(store, loaded, scale, word):
    for session in (put(store, 1), put(store, 2, scale=scale)):
        load = "others used up to 40 % of this machine" if session.id == loaded else ""
        store.write_judgement(judged(session, load))
    (series,) = history(store, workload="gpt2", stack="jax")
    change = series.points[1].change
    assert change.word == word and change.reason.endswith("others used up to 40 % of this machine")
    assert [bool(p.load) for p in series.points] == [loaded == "s1", loaded == "s2"]


def test_how_far_sessions_lie_apart_is_of_those_in_which_nothing_changed(store):
    for n, scale in enumerate((1.0, 1.06, 0.95, 1.04, 1.08), 1):
        put(store, n, scale=scale)
    assert changes(store)[1:3] == ["CHANGED", "CHANGED"], "of two sessions nobody knows"
    assert changes(store)[3:] == ["NO CHANGE SEEN", "NO CHANGE SEEN"]
    (series,) = history(store, workload="gpt2", stack="jax")
    assert [p.change.known for p in series.points[1:]] == [False, False, True, True]
    put(store, 6, scale=1.0, versions={"jax": "0.11.0"})
    put(store, 7, scale=1.3, versions={"jax": "0.11.0"})
    (series,) = history(store, workload="gpt2", stack="jax")
    assert not series.points[-1].change.known, "one session of the new version is there"


def own(session, stack: str, digest: str = "a"):
    """The session with jax's row another stack's, as a class that is called so makes it."""
    cells = {c: replace(c, stack=stack) if c.label == "jax" else c for c in session.planned}
    processes = tuple(replace(p, cell=cells[p.cell]) for p in session.processes)
    settings = {**session.fingerprint.settings, "own_files": {"mine.py": digest}}
    told = replace(session.fingerprint, settings=settings)
    return replace(session, planned=tuple(cells.values()), processes=processes, fingerprint=told)


def test_two_files_that_have_one_class_are_no_past_of_each_other(store):
    for n, file in enumerate(("/a/mine.py:jax", "/b/mine.py:jax", "/a/mine.py:jax"), 1):
        store.write_session(own(make_session(blocks=10, id=f"s{n}", started=float(n), seed=n), file))
    (series,) = history(store, workload="gpt2", stack="jax")
    words = [None if p.change is None else p.change.word for p in series.points]
    assert words == [None, "NOT COMPARABLE", "NO CHANGE SEEN"]
    assert "jax was /a/mine.py:jax and is /b/mine.py:jax" in series.points[1].change.reason
    assert series.points[2].against == "s1"


def test_a_file_that_was_edited_is_compared_and_named(store):
    for n, digest in enumerate(("a", "b"), 1):
        session = make_session(blocks=10, id=f"s{n}", started=float(n), seed=n)
        store.write_session(own(session, "/a/mine.py:jax", digest))
    (series,) = history(store, workload="gpt2", stack="jax")
    point = series.points[1]
    assert point.change.word == "NO CHANGE SEEN" and point.changed_versions == ("mine.py was edited",)


def test_those_that_are_asked_to_be_left_out_are(store):
    put(store, 1)
    put(store, 2)
    (series,) = history(store, workload="gpt2", stack="jax", without=("s1",))
    assert [p.session for p in series.points] == ["s2"]


def test_a_row_of_explain_is_a_row_of_compare() -> None:
    """How many blocks an explanation may take at most stood in the way: its rows began a history of their own."""
    compared = Request(("gemm",), ("jax",), size="tiny")
    explained = replace(compared, blocks=5, blocks_at_most=15, left_out={"runtime": "why"}, memory=False)
    a, b = (comparable(Fingerprint({}, settings_of(r, lay_out(r)), "")) for r in (compared, explained))
    assert a == b and set(a["settings"]) == {"threads", "memory_cap", "sampling", "options"}
