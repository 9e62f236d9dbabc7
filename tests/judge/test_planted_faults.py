"""Every fault that the museum plants, here as evidence alone: caught at the row that has it, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from planted_sessions import (
    ERRORS,
    FLOPS,
    PROOF,
    STATE,
    WEIGHTS,
    Change,
    loud,
    make_session,
    probe,
    quiet,
    row,
    without,
)
from planted_windows import covered

from detente.judge import judge
from detente.judge.rules import RULES, find_rule
from detente.judge.rules.planting import LIVE
from detente.records.evidence import CompileRecord, Evidence
from detente.records.sample import Sample


def errors(kind: str, name: str, factor: float) -> Change:
    """One tensor's error times ``factor``."""
    moved = tuple(replace(e, err=e.err * factor) if (e.kind, e.name) == (kind, name) else e for e in ERRORS)
    return lambda evidence: replace(evidence, errors=moved)


def compiling(record: CompileRecord) -> Change:
    return lambda evidence: replace(evidence, compile=record)


def both(*changes: Change) -> Change:
    def change(evidence: Evidence) -> Evidence:
        for one in changes:
            evidence = one(evidence)
        return evidence

    return change


def queued(steps: int) -> Change:
    """Each sample holds so many steps."""

    def change(evidence: Evidence) -> Evidence:
        samples = tuple(Sample(s.wall_ns * steps, steps) for s in evidence.samples)
        return covered(replace(evidence, samples=samples))

    return change


def rhythm(evidence: Evidence) -> Evidence:
    ticks = [80_000_000 + (12_000_000 if i % 5 == 0 else 0) + 1000 * i for i in range(30)]
    return covered(replace(evidence, samples=tuple(Sample(t) for t in ticks)))


def second_version(evidence: Evidence) -> Evidence:
    cold = evidence.compile.cache_state == "miss"
    return replace(evidence, versions={**evidence.versions, "jax": "0.10.2" if cold else "0.11.0"})


def some_fail(evidence: Evidence) -> Evidence:
    if evidence.compile.cache_state == "miss":
        return Evidence("failed", "steady", "killed by signal 9")
    return evidence


@dataclass(frozen=True)
class Planted:
    """``at`` has the fault, ``rule`` must say so with ``severity``; ``region`` is the contract it needs."""

    name: str
    rule: str
    change: Change
    severity: str = "void"
    at: str = "jax"
    region: str = "train-step"


def fails(key: str) -> Change:
    """The probe is asked, and raises."""
    return lambda evidence: replace(
        evidence, probes={**evidence.probes, key: {"error": "ValueError: invalid literal"}}
    )


PLANTED = (
    Planted("unsynchronised clock", "clock-stops-early", probe("slope", t_k=0.001, t_2k=0.002, read_t_k=1.0)),
    Planted("clock that waits for the loss alone", "clock-stops-early", probe("slope", read_t_k=1.3)),
    Planted("time that does not grow with the work", "clock-stops-early", probe("slope", t_2k=1.1)),
    Planted("copy to the host inside", "regions-differ", probe("observed", reads=1)),
    Planted(
        "loss among the values read", "regions-differ", probe("observed", loss_read=True), at="torch-compile"
    ),
    Planted("optimizer left out of the clock", "regions-differ", probe("region", inside=["backward"])),
    Planted(
        "outputs read on the host inside",
        "regions-differ",
        probe("region", inside=["backward", "optimizer", "read"]),
    ),
    Planted(
        "inputs placed inside", "regions-differ", probe("region", inside=["place", "backward", "optimizer"])
    ),
    Planted(
        "optimizer inside a gradient",
        "regions-differ",
        probe("region", inside=["backward", "optimizer"]),
        region="gradient",
    ),
    Planted("a sleep in the wait", "wait-not-idle", probe("waiting", idle_s=5e-4, share=0.01, asleep=0.0098)),
    Planted("a timer at half speed", "clock-patched", probe("host", patched_timers=["perf_counter_ns"])),
    Planted("denormals flushed", "denormals-differ", probe("precision", denormals=False), "warn"),
    Planted("TF32 under fp32", "precision-differs", probe("precision", **{"class": "tf32"})),
    Planted(
        "bf16 in one product",
        "product-dtypes-differ",
        probe("program", product_dtypes={"f32": 48, "bf16": 1}),
    ),
    Planted(
        "bf16 on one operand",
        "product-dtypes-differ",
        probe("program", product_dtypes={"f32": 48, "bf16xf32": 1}),
    ),
    Planted("changed GELU", "not-the-same-function", errors("gradient", "h.0.attn.weight", 700)),
    Planted("changed LayerNorm epsilon", "not-the-same-function", errors("gradient", "h.0.attn.weight", 26)),
    Planted("NaN loss", "not-the-same-function", errors("loss", "2", float("nan"))),
    Planted("reference that moves", "reference-not-deterministic", probe("repeat", max_rel=1e-4), "warn"),
    Planted("dropout on one side", "modes-differ", probe("observed", random_ops=4), at="torch-compile"),
    Planted("random draws on one side", "modes-differ", probe("program", rng_ops=12)),
    Planted("other weights", "weights-differ", probe("weights", hash="b" * 64)),
    Planted("dropped tie", "weights-differ", probe("weights", count=149)),
    Planted("gradients discarded", "work-removed", probe("program", flops=3_600_000_000), region="gradient"),
    Planted(
        "products left out eagerly", "work-removed", probe("observed", flops=0.9 * FLOPS), at="torch-eager"
    ),
    Planted(
        "sixteen steps in one executable",
        "steps-fused",
        both(queued(32), probe("observed", queue={"steps": 32, "launches": 2})),
    ),
    Planted(
        "two steps in one compiled region",
        "steps-fused",
        both(queued(32), probe("observed", queue={"steps": 32, "regions": 16})),
        at="torch-compile",
    ),
    Planted(
        "batches of a queue in one batch",
        "steps-fused",
        both(queued(32), probe("observed", queue={"steps": 32, "operators": 80})),
        at="torch-eager",
    ),
    Planted("nothing read back", "work-removed", probe("consumed", outputs=[]), region="gradient"),
    Planted(
        "weights captured as constants", "weights-baked-in", probe("program", constants_bytes=40_000_000)
    ),
    Planted(
        "weights not among the arguments", "weights-baked-in", probe("program", argument_bytes=80_000_000)
    ),
    Planted("Inductor freezes", "weights-baked-in", probe("observed", frozen=True), at="torch-compile"),
    Planted("stale inputs", "stale-inputs", probe("rotation", losses=[11.0, 11.0, 11.0, 11.0])),
    Planted("state that does not move", "stale-inputs", probe("region", moved=0)),
    Planted("output that is not finite", "lazy-outputs", probe("consumed", finite=False)),
    Planted("graph break", "graph-break", probe("observed", graph_breaks=2), "warn", at="torch-compile"),
    Planted("two programs a step", "graph-break", probe("observed", launches=2), "warn"),
    Planted(
        "optimizer outside on one side",
        "optimizer-outside",
        probe("observed", updated=WEIGHTS // 4, eager_ops={"aten::_fused_adamw_": 1}),
        at="torch-compile",
    ),
    Planted(
        "only the model compiled",
        "optimizer-outside",
        probe("observed", eager_ops={"aten::nll_loss_forward": 1}),
        at="torch-compile",
        region="gradient",
    ),
    Planted(
        "the optimizer is another program",
        "optimizer-outside",
        both(probe("observed", launches=2), probe("program", output_bytes=WEIGHTS)),
    ),
    Planted("outputs on another device", "silent-fallback", probe("devices", outputs=["cuda"])),
    Planted("compile inside the window", "compile-in-window", compiling(CompileRecord(3, 4.0, 1, "hit"))),
    Planted("second step compiles again", "recompiles", lambda e: replace(e, second_s=5.0), "warn"),
    Planted("no cold start", "cache-state-differs", compiling(CompileRecord(3, 4.0, 0, "hit")), "warn"),
    Planted(
        "tuned on one side",
        "tuning-differs",
        probe("flags", **{"inductor.max_autotune": True}),
        "warn",
        at="torch-compile",
    ),
    Planted("missing donation", "state-not-donated", probe("program", alias_bytes=0)),
    Planted(
        "different thread counts",
        "threads-differ",
        probe("threads", framework={"intra_op": 1, "inter_op": 1}),
        "warn",
        at="torch-compile",
    ),
    Planted(
        "shrunk affinity", "affinity-differs", probe("threads", affinity=[[0], [0, 1]], computing=[[0], [0]])
    ),
    Planted(
        "half of a pool on one core",
        "affinity-differs",
        probe("threads", affinity=[[0], [0, 1]], computing=[[0], [0], [0, 1]]),
    ),
    Planted(
        "a helper beside the declared cores", "affinity-differs", probe("threads", affinity=[[0, 1], [1, 2]])
    ),
    Planted(
        "a thread on one core, and nobody counted who computes",
        "affinity-differs",
        probe("threads", affinity=[[0], [0, 1]], computing=None),
    ),
    Planted("more threads", "more-cores-than-declared", probe("threads", framework={"intra_op": 4})),
    Planted("more cores busy", "more-cores-than-declared", probe("threads", busy=2.3)),
    Planted("other niceness", "priority-differs", probe("threads", niceness=[0, 10])),
    Planted("other scheduling policy", "priority-differs", probe("threads", policies=[3])),
    Planted("profiler on", "profiler-on", probe("host", profiler_active=True), "warn"),
    Planted("garbage collector on", "host-interruptions", probe("host", collector=True), "warn"),
    Planted("something on a rhythm", "host-interruptions", rhythm, "warn"),
    Planted(
        "two frameworks", "two-frameworks", probe("modules", frameworks=["torch", "jax"], foreign=["torch"])
    ),
    Planted("versions moved", "versions-drift", second_version),
    Planted("a probe that raised", "probe-failed", fails("threads")),
    Planted("a program that is not given away by an error", "probe-failed", fails("program")),
    Planted("survivors only", "survivors-only", some_fail),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_planted_fault_is_caught_and_its_neighbours_stay_clean(planted):
    result = judge(make_session(plant={planted.at: planted.change}, region=planted.region))
    found = loud(result, planted.at)
    assert planted.rule in found, found
    assert found[planted.rule].severity == planted.severity
    assert found[planted.rule].what
    others = [c.label for c in result.cells if c.label != planted.at]
    assert quiet(result, *others), {x: loud(result, x) for x in others}
    about = [v for v in result.verdicts if planted.at in (v.a, v.b)]
    assert about
    for verdict in about:
        assert (verdict.word == "VOID") == (planted.severity == "void"), verdict
        assert (verdict.ratio is None) == (planted.severity == "void")
    assert row(result, planted.at).status == ("void" if planted.severity == "void" else "ok")


@pytest.mark.parametrize("region", ["forward", "gradient", "train-step"])
def test_fair_session_has_no_finding(region):
    result = judge(make_session(region=region))
    assert quiet(result), [f for c in result.cells for f in c.findings if f.severity != "unchecked"]
    assert {c.status for c in result.cells} == {"ok"}
    assert {v.word for v in result.verdicts} <= {"FASTER", "SLOWER", "LEANS"}


@pytest.mark.parametrize(("flops", "fair"), [(0.96, True), (0.85, False)])
def test_what_a_causal_mask_hides_is_no_work(flops, fair):
    """Nine tenths of the closed form are what no implementation may leave out."""
    session = make_session(plant={"jax": probe("program", flops=int(flops * FLOPS))})
    settings = session.fingerprint.settings
    (group,) = settings["workloads"]
    costs = {**settings["workloads"][group], "least_flops": int(0.9 * FLOPS)}
    told = replace(session.fingerprint, settings={**settings, "workloads": {group: costs}})
    found = loud(judge(replace(session, fingerprint=told)), "jax")
    assert ("work-removed" not in found) is fair, found
    assert "work-removed" in loud(judge(session), "jax")


def test_a_probe_that_failed_in_one_process_of_five_voids_its_row():
    """A row could be honest in the one that answers."""
    count = iter(range(100))

    def once(evidence):
        return fails("threads")(evidence) if next(count) == 3 else evidence

    result = judge(make_session(plant={"jax": once}))
    assert "threads: ValueError" in loud(result, "jax")["probe-failed"].what
    assert row(result, "jax").status == "void" and quiet(result, "torch-eager", "torch-compile")


@pytest.mark.parametrize("key", ["peak", "flags", "executable"])
def test_a_probe_that_no_voiding_rule_reads_may_fail(key):
    result = judge(make_session(plant={"jax": fails(key)}))
    assert row(result, "jax").status == "ok" and "probe-failed" not in loud(result, "jax")


def test_the_probes_that_must_answer_are_those_that_voiding_rules_read():
    """``devices`` voids where outputs lie elsewhere, though its rule warns."""
    from detente.judge.rules.harness import VOIDING
    from detente.worker.probes import PROBES

    read = {
        key.partition(".")[0]
        for rule in RULES.values()
        if rule.check and rule.severity == "void"
        for said in (*rule.evidence, *rule.partly)
        for key in said.split("|")
    }
    assert read & set(PROBES) | {"devices"} == VOIDING


@pytest.mark.parametrize("computing", [[[0, 1], [0, 1]], [[0], [1]], [[0], [0, 1]]])
def test_a_thread_that_is_bound_to_a_core_of_the_rows_own_is_fair(computing):
    """A loader's that sleeps beside those that compute; a pool's threads each on a core of its own."""
    bound = probe("threads", affinity=[[0], [0, 1], [1]], computing=computing)
    assert quiet(judge(make_session(plant={"jax": bound})))


def test_input_pipeline_inside_is_a_warning_and_its_extra_region_is_not_void():
    inside = ["fetch", "backward", "optimizer"]
    found = loud(judge(make_session(plant={"jax": probe("region", inside=inside)})), "jax")
    assert {k: f.severity for k, f in found.items()} == {"input-pipeline-inside": "warn"}


def test_physically_impossible_is_void_by_the_peak_of_any_row():
    # 10 GFLOP at 4e11/s cannot take less than 25 ms.
    result = judge(make_session(steps={"torch-eager": 0.1, "jax": 0.015}))
    assert loud(result, "jax")["faster-than-physics"].severity == "void"
    assert row(result, "jax").status == "void"
    assert all(v.word == "VOID" and v.ratio is None for v in result.verdicts)


def test_a_busy_machine_is_a_warning_on_every_row():
    result = judge(make_session(foreign=0.4))
    assert {c.label for c in result.cells if "machine-shared" in loud(result, c.label)} == {
        c.label for c in result.cells
    }
    assert all(v.word != "VOID" for v in result.verdicts)


def test_programs_that_differ_between_processes_are_a_mixture():
    hashes = iter("cccddcccddcccdd" * 9)

    def lottery(evidence):
        tuned = probe("flags", XLA_FLAGS="--xla_x=1")(evidence)
        return probe("executable", hash=next(hashes) * 64)(tuned)

    found = loud(judge(make_session(plant={"jax": lottery})), "jax")
    assert found["autotune-lottery"].severity == "warn"


def test_one_stutter_of_the_machine_is_no_early_clock():
    count = iter(range(100))

    def stutter(evidence):
        return probe("slope", read_t_k=1.6)(evidence) if next(count) == 0 else evidence

    assert quiet(judge(make_session(plant={"jax": stutter})))


def test_one_stutter_within_a_process_is_no_early_clock_either():
    """One of three waits met a quiet moment that no read met; or the only reading of 2k steps met a busy one."""
    stutter = probe(
        "slope", t_k=0.8, waits=[0.8, 1.02, 1.01], read_t_k=1.0, reads=[1.0, 1.01, 1.03], doubles=[2.0, 2.1]
    )
    assert quiet(judge(make_session(plant={"jax": stutter})))
    neighbour = probe(
        "slope", t_k=1.0, waits=[1.0, 1.1], t_2k=2.9, doubles=[2.9], read_t_k=1.0, reads=[1.0, 1.1]
    )
    assert quiet(judge(make_session(plant={"jax": neighbour})))
    early = probe(
        "slope", t_k=0.8, waits=[0.8, 0.81, 0.8], read_t_k=1.0, reads=[1.0, 1.01, 1.03], doubles=[1.6, 1.6]
    )
    assert "clock-stops-early" in loud(judge(make_session(plant={"jax": early})), "jax")


def test_reading_itself_is_no_work_but_work_put_off_until_a_read_is():
    """Of a step of 40 microseconds, reading its loss is a fifth; reads that take more than a scalar's copy compute."""
    small = {"k": 64, "t_k": 0.0025, "t_2k": 0.005, "read_t_k": 0.003}
    assert "clock-stops-early" in loud(judge(make_session(plant={"jax": probe("slope", **small)})), "jax")
    assert quiet(judge(make_session(plant={"jax": probe("slope", **small, idle_t_k=0.0005)})))
    lazy = {"k": 64, "t_k": 0.0025, "t_2k": 0.005, "read_t_k": 0.1, "idle_t_k": 0.0975}
    assert "clock-stops-early" in loud(judge(make_session(plant={"jax": probe("slope", **lazy)})), "jax")


def test_samples_that_alternate_between_a_dispatch_and_a_full_queue_excuse_no_early_clock():
    """Their spread is the fault itself: it once hid reads that took three times as long as every wait."""

    def early(evidence):
        steps = [Sample(ms * 1_000_000, 1) for ms in (1, 1, 1, 1, 5, 20, 30, 30, 30)]
        slow = probe("slope", t_k=0.03, waits=[0.03, 0.033], read_t_k=0.1, reads=[0.1, 0.11], doubles=[0.06])
        return slow(replace(evidence, samples=tuple(steps)))

    assert "clock-stops-early" in loud(judge(make_session(plant={"jax": early})), "jax")


def test_what_the_recipe_declares_is_no_finding():
    changes = both(
        probe("observed", updated=WEIGHTS, eager_ops={"aten::add_": 148}),
        probe("declared", recipe="out-of-the-box"),
    )
    result = judge(make_session(plant={"torch-compile": changes}))
    assert quiet(result)
    assert row(result, "torch-compile").contract == "out-of-the-box"


def test_first_level_failure_is_void_even_where_the_timed_process_passes():
    session = make_session()
    wrong = tuple(replace(e, err=1e-4 * e.rms) for e in PROOF)
    moved = tuple(
        replace(p, evidence=replace(p.evidence, errors=wrong))
        if p.kind == "prove" and p.cell.stack == "jax"
        else p
        for p in session.processes
    )
    result = judge(replace(session, processes=moved))
    assert loud(result, "jax")["not-the-same-function"].severity == "void"
    parity = row(result, "jax").parity
    assert parity and (parity.same_function, parity.same_precision) == ("failed", "passed")
    assert parity.worst and (parity.worst.kind, parity.worst.name) == ("loss", "1")


@pytest.mark.parametrize(
    "key", ["slope", "weights", "observed", "program", "threads", "region", "waiting", "flags"]
)
def test_missing_evidence_is_not_checked_and_never_fine(key):
    result = judge(make_session(plant={"jax": without(key)}))
    expected = {
        r.code for r in RULES.values() if any(e.partition(".")[0] == key for e in r.evidence) and r.check
    }
    unchecked = {f.rule for f in row(result, "jax").findings if f.severity == "unchecked"}
    # Of a key that either of two probes may bring back, the other one stands in; a lottery needs two processes that
    # tune themselves.
    waived = {"observed": {"product-dtypes-differ", "modes-differ", "weights-baked-in"}}
    waived["observed"] |= {"steps-fused"}  # a queue of one step is no question
    waived["program"] = {"sums-narrow"}  # asked of narrow precisions alone: test_narrow_sums.py
    assert expected - waived.get(key, set()) - {"autotune-lottery"} <= unchecked
    assert row(result, "jax").status == "ok"


def test_a_probe_that_failed_is_not_checked_and_its_error_is_said():
    broken = lambda e: replace(e, probes={**e.probes, "slope": {"error": "ValueError: no clock"}})  # noqa: E731
    result = judge(make_session(plant={"jax": broken}))
    finding = next(f for f in row(result, "jax").findings if f.rule == "clock-stops-early")
    assert finding.severity == "unchecked" and "ValueError: no clock" in finding.what


def test_every_checked_rule_is_planted_somewhere():
    elsewhere = {"input-pipeline-inside", "faster-than-physics", "machine-shared", "autotune-lottery"}
    elsewhere |= {"peak-includes-compile"}  # test_judgement.py
    elsewhere |= {"window-not-proved", "handout-is-a-tell", "clock-not-covering"}  # test_window_rules.py
    elsewhere |= {"remembered-results", "told-out-of-order"}
    elsewhere |= {"losses-apart"}  # test_cut_proof.py
    elsewhere |= {"products-widened"}  # test_widened_products.py
    elsewhere |= {"sums-narrow"}  # test_narrow_sums.py
    planted = {p.rule for p in PLANTED} | elsewhere
    checked = {code for code, rule in RULES.items() if rule.check}
    assert planted <= checked
    assert planted | LIVE == checked


@pytest.mark.parametrize(
    ("at", "queue"),
    [
        ("jax", {"steps": 32, "launches": 33}),
        ("jax", {"steps": 32, "launches": 96}),  # a step that is several programs
        ("torch-compile", {"steps": 32, "regions": 64}),
        ("torch-eager", {"steps": 32, "operators": 32 * 58}),
    ],
)
def test_a_queue_of_steps_that_each_run_is_fair(at, queue):
    assert quiet(judge(make_session(plant={at: both(queued(32), probe("observed", queue=queue))})), at)


def test_a_queue_that_nobody_watched_is_not_checked():
    findings = row(judge(make_session(plant={"jax": queued(32)})), "jax").findings
    assert [f.severity for f in findings if f.rule == "steps-fused"] == ["unchecked"]


def test_operators_that_nobody_can_count_prove_nothing():
    few = probe("observed", flops=0.5 * FLOPS, opaque=["mine::product"])
    assert quiet(judge(make_session(plant={"torch-eager": few})))
    # Nor does another row's program, where the workload states no work: it may multiply for a sum.
    session = make_session(plant={"torch-eager": probe("observed", flops=0.5 * FLOPS)})
    group = next(iter(session.planned)).group
    assert quiet(judge(session, {group: {"flops": 0, "bytes": 0}}), "torch-eager")


def test_donation_of_an_eager_stack_is_no_question():
    assert quiet(judge(make_session(plant={"torch-eager": probe("region", state_bytes=9 * STATE)})))


def test_every_rule_marked_for_the_processor_has_a_check():
    assert [r.code for r in RULES.values() if r.cpu and r.check is None] == []
    assert [r.code for r in RULES.values() if r.check is None and not r.unchecked] == []
    assert find_rule("P2B").code == "work-on-another-stream"


def test_a_loader_is_inside_where_the_contract_says_so():
    session = make_session()
    inside = ["fetch", "place", "backward", "optimizer"]

    def fed(p):
        contract = replace(p.cell.contract, feed="loader")
        evidence = probe("region", inside=inside)(p.evidence) if p.kind == "time" else p.evidence
        return replace(p, cell=replace(p.cell, contract=contract), evidence=evidence)

    planned = tuple(replace(c, contract=replace(c.contract, feed="loader")) for c in session.planned)
    assert quiet(judge(replace(session, planned=planned, processes=tuple(map(fed, session.processes)))))


def test_how_precise_a_stack_is_is_no_tuning():
    assert quiet(judge(make_session(plant={"jax": probe("flags", TORCH_ALLOW_TF32_CUBLAS_matmul="1")})))


def test_what_a_stack_says_of_itself_is_heard_by_no_rule():
    """``facts`` was a key once: a stack that confessed was caught by its confession, and one that did not was not."""
    lies = {"optimizer_inside": False, "compiled_region": "model", "graph_breaks": 9, "donated_bytes": 0}
    told = probe("facts", **lies, dropout_active=True, product_dtypes={"bf16": 1}, tuning={"x": 1})
    assert quiet(judge(make_session(plant={"jax": told, "torch-compile": told})))


def test_one_loaded_reading_of_an_honest_row_is_no_void():
    """An honest torch-eager of one block, read while a neighbour came and went, was void, and the session with it."""
    met = probe("slope", t_k=1.0, waits=[1.0, 1.02], read_t_k=1.4, reads=[1.4, 1.5], t_2k=2.0, doubles=[2.0])
    finding = loud(judge(make_session(1, foreign=0.5, plant={"torch-eager": met})), "torch-eager")
    assert finding["clock-stops-early"].severity == "warn"
    quiet_machine = loud(judge(make_session(1, foreign=0.01, plant={"torch-eager": met})), "torch-eager")
    assert quiet_machine["clock-stops-early"].severity == "void"
    early = probe(
        "slope", t_k=0.1, waits=[0.1, 0.11], read_t_k=1.4, reads=[1.4, 1.5], t_2k=0.2, doubles=[0.2]
    )
    caught = loud(judge(make_session(1, foreign=0.5, plant={"torch-eager": early})), "torch-eager")
    assert caught["clock-stops-early"].severity == "void"


def test_what_a_second_look_does_not_see_is_no_void():
    """Of steps of two seconds there are four readings: a fair row was void when its machine went faster behind the
    window (twice the steps took 0.51 times as long), and another when it went slower. A clock that stops early does so
    in both looks."""
    steady = {"waits": [1.0, 1.02], "reads": [1.01, 1.0], "doubles": [2.0, 2.1]}
    faster = {"t_k": 5.0, "waits": [5.0, 5.6], "read_t_k": 1.4, "reads": [1.4, 1.5]}
    slower = {"t_k": 1.0, "waits": [1.0, 1.1], "read_t_k": 1.6, "reads": [1.6, 1.7]}
    early = {"waits": [0.1, 0.11], "reads": [1.0, 1.1], "doubles": [0.2, 0.21]}
    # Twice the steps take as long as the steps: nobody waits for either.
    flat = {"waits": [1.0, 1.1], "reads": [1.0, 1.1], "doubles": [1.0, 1.1]}
    for first, again in ((faster, flat), (slower, early)):
        looked = {"k": 1, "t_2k": 2.7, "doubles": [2.7], **first}
        once = probe("slope", **looked, again=steady)
        finding = loud(judge(make_session(plant={"jax": once})), "jax")["clock-stops-early"]
        assert finding.severity == "warn" and "looked at again, it did not" in finding.what
        lasting = probe("slope", **looked, again=again)
        finding = loud(judge(make_session(plant={"jax": lasting})), "jax")["clock-stops-early"]
        assert finding.severity == "void"


def test_no_majority_makes_an_honest_row_the_odd_one():
    """Two XLA-like rows that draw, and one torch-eager that does not: it was the eager row that was void."""
    drawing = probe("program", rng_ops=3)
    torch_draws = probe("observed", random_ops=3)
    result = judge(make_session(plant={"jax": drawing, "torch-compile": torch_draws}))
    assert "modes-differ" not in loud(result, "torch-eager")
    assert "modes-differ" in loud(result, "jax") and "modes-differ" in loud(result, "torch-compile")


def test_a_stack_of_two_threads_where_two_are_declared_has_room():
    assert quiet(judge(make_session(plant={"jax": probe("threads", busy=2.19)})))


def test_every_stack_on_a_cpu_is_no_fallback_and_one_beside_an_accelerator_is():
    def auto(session):
        planned = tuple(replace(c, device="auto") for c in session.planned)
        processes = tuple(replace(p, cell=replace(p.cell, device="auto")) for p in session.processes)
        return judge(replace(session, planned=planned, processes=processes))

    assert quiet(auto(make_session()))
    gpu = probe("devices", outputs=["cuda"], platform="cuda")
    result = auto(make_session(plant={"jax": gpu}))
    assert {c.label for c in result.cells if "silent-fallback" in loud(result, c.label)} == {
        "torch-eager",
        "torch-eager#aa",
        "torch-compile",
    }


def test_a_compiled_stack_that_gives_no_program_away_is_not_checked_for_baked_in_weights():
    findings = {
        f.rule: f.severity
        for f in row(judge(make_session(plant={"jax": without("program")})), "jax").findings
    }
    assert findings["weights-baked-in"] == "unchecked"


def test_the_numbers_of_an_optimizer_are_no_weights_of_a_toy():
    """A linear layer of 21 parameters, 84 bytes of them; its step of AdamW holds 92 bytes of scalars."""
    from detente.judge.rules.computed import constants_allowed

    assert constants_allowed(84) >= 92
    assert constants_allowed(100_000) == 25_000
    assert constants_allowed(2**30) == pytest.approx(2**30 / 10)
