"""The judgement of whole sessions: statuses, denominators, the A/A pair, drift, groups, round trip."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from planted_sessions import BYTES, FLOPS, TWIN, make_session, probe, row

from detente.judge import judge, more_blocks
from detente.judge.statistics import MARGIN
from detente.records.codec import dumps, from_json
from detente.records.evidence import Evidence
from detente.records.result import Result
from detente.records.session import Process, Session


def words(result: Result) -> dict[tuple[str, str], str]:
    return {(v.a, v.b): v.word for v in result.verdicts}


def test_a_plain_session():
    result = judge(make_session(10))
    assert words(result) == {
        ("jax", "torch-eager"): "FASTER",
        ("torch-compile", "torch-eager"): "FASTER",
        ("torch-compile", "jax"): "SLOWER",
    }
    jax = row(result, "jax")
    assert jax.status == "ok" and jax.steady_s and jax.steady_s.processes == 10
    assert jax.steady_s.low < jax.steady_s.median < jax.steady_s.high
    assert (jax.first_s, jax.compile.cold_first_s, jax.compile.warm_first_s) == (9.0, 9.0, 3.0)
    assert jax.compile.cache_state == "miss" and jax.compile.events == 3
    assert (
        jax.parity.same_function == "passed"
        and jax.parity.same_precision == "passed"
        and jax.parity.listed == 2  # the gradient and the first moment of a bias that has none
    )
    assert jax.floor.seconds == pytest.approx(FLOPS / 4e11) and 0 < jax.floor.share < 1
    assert row(result, "torch-eager").compile.cache_state == "none"
    assert result.session.state == "whole" and result.session.blocks == 10
    assert list(result.session.margins.values()) == [MARGIN]
    assert [v.word for v in result.session.aa.values()] == ["SAME"]
    assert (result.session.aa[jax.group].a, result.session.aa[jax.group].b) == (TWIN, "torch-eager")


def test_the_twin_is_a_row_and_never_a_pair():
    result = judge(make_session())
    assert row(result, TWIN).status == "ok"
    assert all(TWIN not in (v.a, v.b) for v in result.verdicts)


def test_a_result_survives_the_trip_through_json():
    result = judge(make_session())
    assert from_json(Result, json.loads(dumps(result))) == result


def test_an_imported_session_is_judged_the_same():
    session = make_session()
    assert judge(from_json(Session, json.loads(dumps(session)))) == judge(session)


def test_no_ratio_with_a_void_row():
    result = judge(make_session(plant={"jax": probe("slope", read_t_k=50.0)}))
    for v in result.verdicts:
        assert ("jax" in (v.a, v.b)) == (v.word == "VOID")
        if v.word == "VOID":
            assert (v.ratio, v.low, v.high) == (None, None, None) and "clock-stops-early" in v.reason


def test_drifting_session_prints_no_ratio():
    result = judge(make_session(twin=1.08))
    assert result.session.state == "drifting"
    assert result.verdicts and all(
        v.word == "UNDECIDED" and v.ratio is None and v.low is None for v in result.verdicts
    )
    assert "drifting" in result.verdicts[0].reason
    # The rows themselves are facts and stay.
    assert {c.status for c in result.cells} == {"ok"} and row(result, "jax").steady_s


def test_noise_widens_the_margin():
    result = judge(make_session(10, spread=0.03))
    (margin,) = result.session.margins.values()
    assert margin > MARGIN
    assert {v.margin for v in result.verdicts} == {margin}


def test_without_a_twin_the_margin_is_the_fixed_one():
    result = judge(make_session(twin=None))
    assert list(result.session.margins.values()) == [MARGIN] and result.session.aa == {}


def lost(session: Session, label: str, evidence: Evidence) -> Session:
    return replace(
        session,
        processes=tuple(
            replace(p, evidence=evidence) if p.cell.label == label and p.kind == "time" else p
            for p in session.processes
        ),
    )


@pytest.mark.parametrize("status", ["oom", "failed"])
def test_a_cell_that_ended_badly_stays_in_the_table(status):
    session = lost(make_session(), "jax", Evidence(status, "first", "out of memory: 3 GB"))
    result = judge(session)
    assert (row(result, "jax").status, row(result, "jax").reason) == (status, "out of memory: 3 GB")
    assert words(result)[("jax", "torch-eager")] == "VOID"
    assert words(result)[("torch-compile", "torch-eager")] == "FASTER"
    assert len(result.cells) == len(session.planned)


def test_skipped_cells_stay_in_the_table_and_have_no_pair():
    session = make_session()
    key = next(c.key for c in session.planned if c.label == "torch-compile")
    rest = tuple(p for p in session.processes if p.cell.label != "torch-compile")
    result = judge(replace(session, skipped={key: "no g++"}, processes=rest))
    assert (row(result, "torch-compile").status, row(result, "torch-compile").reason) == ("skipped", "no g++")
    assert words(result) == {("jax", "torch-eager"): "FASTER"}


def test_nothing_measured_yet():
    session = replace(make_session(), processes=())
    result = judge(session)
    assert result.session.state == "unjudged" and result.session.blocks == 0
    assert {c.status for c in result.cells} == {"skipped"} and result.verdicts == ()
    assert more_blocks(session)


def test_only_whole_blocks_are_judged():
    session = make_session(6)
    cut = tuple(p for p in session.processes if not (p.block == 5 and p.cell.label == "jax"))
    result = judge(replace(session, processes=cut, ended=None))
    assert result.session.blocks == 5 and result.session.state == "interrupted"
    assert {v.blocks for v in result.verdicts} == {5}


def test_a_block_that_ran_again_counts_once_and_the_last_run_counts():
    session = make_session(5)
    stale = [p for p in session.processes if p.block == 4 and p.cell.label == "jax"]
    old = tuple(
        replace(p, started=p.started - 500, evidence=replace(p.evidence, samples=p.evidence.samples[:1]))
        for p in stale
    )
    again = judge(replace(session, processes=(*old, *session.processes)))
    assert again.verdicts == judge(session).verdicts
    assert row(again, "jax").steady_s.processes == 5


def test_under_five_blocks_everything_is_undecided():
    result = judge(make_session(4))
    assert set(words(result).values()) == {"UNDECIDED"} and {v.needed for v in result.verdicts} == {5}


def test_facts_passed_in_win_over_the_stored_ones_and_none_means_no_floor():
    session = make_session()
    group = session.planned[0].group
    passed = judge(session, {group: {"flops": 2 * FLOPS, "bytes": BYTES}})
    assert row(passed, "jax").floor.flops == 2 * FLOPS
    bare = replace(session, fingerprint=replace(session.fingerprint, settings={}))
    assert row(judge(bare), "jax").floor is None
    unchecked = {f.rule for f in row(judge(bare), "jax").findings if f.severity == "unchecked"}
    assert "faster-than-physics" in unchecked


def test_groups_are_judged_apart_and_pairs_are_counted_together():
    one, two = make_session(10, workload="gpt2"), make_session(10, workload="resnet", seed=8)
    whole = replace(
        one,
        planned=one.planned + two.planned,
        processes=one.processes + tuple(replace(p, started=p.started + 5000) for p in two.processes),
    )
    result, alone = judge(whole), judge(one)
    assert len(result.verdicts) == 6 and len(result.session.margins) == 2
    assert {v.group for v in result.verdicts} == {c.group for c in whole.planned}
    together = next(v for v in result.verdicts if v.group == alone.verdicts[0].group)
    assert together.ratio == alone.verdicts[0].ratio
    assert together.low < alone.verdicts[0].low and together.high > alone.verdicts[0].high


def test_more_blocks_stops_where_the_words_are_settled():
    assert more_blocks(make_session(4))
    assert not more_blocks(make_session(5, steps={"torch-eager": 0.2, "jax": 0.1}))
    assert more_blocks(make_session(5, steps={"torch-eager": 0.1, "jax": 0.097}, spread=0.01))
    assert not more_blocks(make_session(15, steps={"torch-eager": 0.1, "jax": 0.097}, spread=0.01))


def test_more_blocks_keeps_a_number_that_the_user_named():
    assert more_blocks(make_session(5, settings={"blocks": 7}))
    assert not more_blocks(make_session(7, settings={"blocks": 7}))
    assert not more_blocks(make_session(2, settings={"blocks": 2}))


def test_memory_columns_come_from_memory_processes():
    session = make_session()
    cell = next(c for c in session.planned if c.label == "jax")
    evidence = Evidence("ok", "done", memory={"process_peak": 3 << 30, "live_tensors": 1 << 30})
    extra = Process(cell, "memory", -1, 0, 9000.0, 5.0, 0.0, evidence)
    result = judge(replace(session, processes=(*session.processes, extra)))
    assert row(result, "jax").memory == {
        "process_peak": 3 << 30,
        "live_tensors": 1 << 30,
        "compiler_estimate": 500_000_000,
    }
    assert row(result, "torch-eager").memory == {}


def test_a_cold_memory_process_is_said():
    session = make_session()
    cell = next(c for c in session.planned if c.label == "jax")
    evidence = Evidence("ok", "done", memory={"process_peak": 3 << 30})
    cold = replace(evidence, compile=replace(evidence.compile, cache_state="miss"))
    found = []
    for one in (evidence, cold):
        extra = Process(cell, "memory", -1, 0, 9000.0, 5.0, 0.0, one)
        result = judge(replace(session, processes=(*session.processes, extra)))
        found.append([f.rule for f in row(result, "jax").findings if f.severity == "warn"])
    assert found == [[], ["peak-includes-compile"]]


def test_the_rate_of_a_row_at_another_precision_is_no_peak():
    fast = {"shapes": [[1024, 1024, 1024, 9e12]], "copy_bytes_per_s": 7e10}
    session = make_session(plant={"jax": probe("peak", **fast)})
    wrong = make_session(
        plant={"jax": lambda e: probe("precision", **{"class": "bf16"})(probe("peak", **fast)(e))}
    )
    assert row(judge(session), "torch-eager").floor.peak_flops == 9e12
    assert row(judge(wrong), "torch-eager").floor.peak_flops == 4e11


def test_five_rows_show_reference_and_fastest():
    steps = {"torch-eager": 0.1, "b": 0.09, "c": 0.06, "d": 0.08, "e": 0.07}
    pairs = set(words(judge(make_session(steps=steps))))
    assert pairs == {
        ("b", "torch-eager"), ("c", "torch-eager"), ("d", "torch-eager"), ("e", "torch-eager"),
        ("c", "b"), ("d", "c"), ("e", "c"),
    }  # fmt: skip


def on_auto(session: Session, platforms: dict[str, str]) -> Session:
    """The session as if ``--device auto`` had been asked for; rows say which platform they found."""

    def moved(p: Process) -> Process:
        if p.kind == "prove":
            return p
        where = platforms.get(p.cell.label, "cpu")
        evidence = probe("devices", outputs=[where], platform=where)(p.evidence)
        return replace(p, cell=replace(p.cell, device="auto"), evidence=evidence)

    return replace(
        session,
        planned=tuple(replace(c, device="auto") for c in session.planned),
        processes=tuple(moved(p) for p in session.processes),
    )


def test_a_row_under_auto_says_where_it_ran_and_its_proof_there_is_no_inheritance():
    result = judge(on_auto(make_session(), {}))
    assert {c.device for c in result.cells} == {"cpu"}
    assert row(result, "jax").parity.same_function == "passed"
    assert {c.status for c in result.cells} == {"ok"}


def test_rows_that_chose_another_device_under_auto_are_void():
    """JAX without a CUDA wheel: two rows on the GPU, one on the processor."""
    result = judge(on_auto(make_session(), {x: "cuda" for x in ("torch-eager", "torch-compile", TWIN)}))
    assert row(result, "jax").status == "void" and "silent-fallback" in row(result, "jax").reason
    assert row(result, "torch-eager").status == "ok"
    assert row(result, "torch-eager").parity.same_function == "inherited"


def test_the_twin_is_not_asked_for_evidence_that_its_sibling_brought():
    bare = {
        k: v for k, v in make_session().processes[0].evidence.probes.items() if k in ("region", "devices")
    }
    result = judge(make_session(plant={TWIN: lambda e: replace(e, probes=bare)}))
    assert row(result, TWIN).findings == ()


def test_an_interrupted_session_says_so():
    assert judge(replace(make_session(), note="interrupted")).session.state == "interrupted"


def test_a_row_that_died_holds_no_block_up_and_is_void():
    session = make_session(6)

    def cut(p: Process) -> bool:
        return p.cell.label == "jax" and p.kind == "time" and p.block > 2

    processes = tuple(
        replace(p, evidence=Evidence("failed", "steady", "killed by SIGKILL"))
        if cut(p) and p.block == 3
        else p
        for p in session.processes
        if not (cut(p) and p.block > 3)
    )
    result = judge(replace(session, processes=processes))
    assert result.session.blocks == 6
    assert row(result, "jax").status == "void" and "killed by SIGKILL" in row(result, "jax").reason
    assert words(result)[("torch-compile", "torch-eager")] == "FASTER"


def test_peaks_of_a_busy_machine_void_nothing():
    """At 4e11 FLOP/s 15 ms are impossible; but with others on the machine, nobody knows what it can do."""
    steps = {"torch-eager": 0.1, "jax": 0.015}
    busy = judge(make_session(steps=steps, foreign=0.5))
    floor = row(busy, "jax").floor
    assert row(busy, "jax").status == "ok" and "others used the machine" in floor.note
    # It is no measure of the machine, and raises nothing; more than the whole of a limit is no share.
    assert floor.share is None and "this row" not in floor.note
    unchecked = {f.rule: f.what for f in row(busy, "jax").findings if f.severity == "unchecked"}
    assert "others used the machine" in unchecked["faster-than-physics"]
    assert row(judge(make_session(steps=steps)), "jax").status == "void"


def test_one_quiet_process_is_enough_for_a_peak():
    session = make_session(steps={"torch-eager": 0.1, "jax": 0.015}, foreign=0.5)
    first = next(i for i, p in enumerate(session.processes) if p.cell.label == "torch-eager")
    processes = tuple(replace(p, foreign=0.01) if i == first else p for i, p in enumerate(session.processes))
    assert row(judge(replace(session, processes=processes)), "jax").status == "void"


def test_one_program_alone_says_nothing_of_the_lottery():
    count = iter(range(99))

    def once(e: Evidence) -> Evidence:
        tuned = probe("flags", XLA_FLAGS="--xla_x=1")(e)
        return probe("executable", hash="c" * 64)(tuned) if next(count) == 0 else tuned

    findings = row(judge(make_session(plant={"jax": once})), "jax").findings
    assert [f.severity for f in findings if f.rule == "autotune-lottery"] == ["unchecked"]


def test_where_nothing_is_tuned_there_is_no_lottery_to_check():
    findings = row(judge(make_session()), "jax").findings
    assert not [f for f in findings if f.rule == "autotune-lottery"]


def test_a_busy_machine_voids_what_no_neighbour_explains_and_keeps_its_peak():
    """A thousandth of the floor was once the peak of "79.6 TFLOP/s" of two cores, and spoilt every row's share."""
    result = judge(make_session(steps={"torch-eager": 0.1, "jax": 0.0001}, foreign=0.5))
    assert row(result, "jax").status == "void" and "faster-than-physics" in row(result, "jax").reason
    eager = row(result, "torch-eager").floor
    assert eager.peak_flops == 4e11 and eager.share == pytest.approx(0.25, rel=0.1)


def test_a_busy_row_raises_no_peak_of_a_quiet_one():
    session = make_session(steps={"torch-eager": 0.1, "jax": 0.022})
    moved = tuple(
        replace(p, foreign=0.5) if p.cell.label == "jax" and p.kind == "time" else p
        for p in session.processes
    )
    assert row(judge(session), "torch-eager").floor.peak_flops > 4e11
    assert row(judge(replace(session, processes=moved)), "torch-eager").floor.peak_flops == 4e11


def test_a_users_own_stack_times_its_own_products_and_makes_no_peak():
    session = make_session(plant={"jax": probe("peak", shapes=[[8, 8, 8, 9e15]], copy_bytes_per_s=9e15)})
    own = "mine.py:Fast"

    def owned(cell):
        return replace(cell, stack=own) if cell.label == "jax" else cell

    planned = tuple(map(owned, session.planned))
    processes = tuple(replace(p, cell=owned(p.cell)) for p in session.processes)
    result = judge(replace(session, planned=planned, processes=processes))
    assert row(result, "torch-eager").floor.peak_flops == 4e11
