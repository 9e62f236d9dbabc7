"""The page that tells why, in its three forms: each ratio beside its own interval, everyone's words as they are, and
what is not known said as such."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detente.explain.align import Match, align
from detente.explain.answer import Answer, answer
from detente.explain.arm_effects import ArmEffect
from detente.explain.captured_parts import Divided
from detente.explain.question import Question
from detente.explain.side import Side
from detente.explain.waterfall import Bar, Effect
from detente.judge.statistics import Interval
from detente.programs.module import Computation, Dot
from detente.programs.part_table import part_table
from detente.programs.parts import Site, parts, sites
from detente.records.evidence import Evidence
from detente.records.program import Program
from detente.records.session import Session
from detente.report import why_html
from detente.report.parts_page import coverage_line
from detente.report.text import capital
from detente.report.why_html import first_layers, render_why
from detente.report.why_page import (
    bar_remarks,
    effect_words,
    left_remark,
    rerun,
    verdict_line,
    why_document,
    why_lines,
)
from tests.explain.golden import evidence, golden
from tests.explain.test_answer import question, session
from tests.explain.test_findings import chain, effect
from tests.programs.build import parameter, program
from tests.programs.test_parts import op


@pytest.fixture
def whole(tmp_path: Path) -> Answer:
    return answer(question(), session(tmp_path), tmp_path)


def captured(made: Session, stack: str, found: Evidence) -> Session:
    """With this as what the capture of a stack brought."""
    return replace(
        made,
        processes=tuple(
            replace(p, evidence=found) if p.kind == "capture" and p.cell.stack == stack else p
            for p in made.processes
        ),
    )


def told(found: Answer, style: str) -> str:
    return render_why(found) if style == "html" else "\n".join(why_lines(found, style))


STYLES = ("text", "md", "html")


@pytest.mark.parametrize(("a", "b", "word"), [("detente", "jax", "slower"), ("jax", "detente", "faster")])
def test_a_ratio_lies_within_the_interval_beside_it(whole: Answer, a: str, b: str, word: str) -> None:
    """'1.54x faster (95 % interval of the ratio 0.613 to 0.688)'."""
    verdict = whole.explanation.verdict
    assert verdict is not None and verdict.ratio and verdict.low and verdict.high
    if word == "faster":
        turned = {"ratio": 1 / verdict.ratio, "low": 1 / verdict.high, "high": 1 / verdict.low}
        verdict = replace(verdict, a=a, b=b, word="FASTER", **turned)
    line = verdict_line(replace(whole, explanation=replace(whole.explanation, verdict=verdict)))
    found = re.fullmatch(rf"{a} is ([\d.]+)x {word} than {b} \(95 % interval ([\d.]+) to ([\d.]+)\)\.", line)
    assert found is not None, line
    ratio, low, high = map(float, found.groups())
    assert low <= ratio <= high


def test_no_figure_is_written_with_an_exponent(whole: Answer) -> None:
    a = whole.sides[0]
    assert a is not None and a.table is not None
    table = replace(a.table, of_time={"name": 1.0, "flow": 0.0, "guess": 0.0, "none": 0.0}, step_s=2.89)
    a.__dict__["_divided"] = Divided(table)
    a.__dict__["seconds"] = {"plain": 1.234, "profiled": 2.345}
    for style in STYLES:
        assert not re.search(r"\de[+-]\d", told(whole, style).partition('id="data"')[0])
        assert "of 2.89 s in kernels" in told(whole, style)
    assert "a step took 1.23 s, and 2.35 s under the profiler" in render_why(whole)
    verdict = whole.explanation.verdict
    assert verdict is not None
    slow = replace(whole.explanation, verdict=replace(verdict, ratio=1234.5, low=1200.0, high=1250.0))
    assert "1230x slower" in verdict_line(replace(whole, explanation=slow))


def test_names_stay_what_they_are(whole: Answer) -> None:
    assert capital("no kernel reaches across; XLA's compiler for CPUs drops it").endswith(
        "XLA's compiler for CPUs drops it"
    )
    assert capital("MyStack[fusion=off] is 1.2x of JAX") == "MyStack[fusion=off] is 1.2x of JAX"
    said = replace(whole.findings[0], said="the PyTorch's BLAS of OpenBLAS", why="PyTorch's BLAS")
    page = render_why(replace(whole, findings=(said,)))
    assert "PyTorch&#39;s BLAS." in page and "The PyTorch&#39;s BLAS of OpenBLAS." in page


def test_an_interaction_is_said_beside_what_is_below_noise(whole: Answer) -> None:
    fall = whole.explanation.waterfall
    assert fall is not None
    cancels = Bar("program", effect(0.0), (-0.5, 0.5), True, True)
    assert bar_remarks(cancels) == ("below noise", "interaction")
    both = replace(whole, explanation=replace(whole.explanation, waterfall=replace(fall, bars=(cancels,))))
    for style in STYLES:
        assert re.search("below noise[,;] interaction", told(both, style)), style


def test_what_is_left_is_explained_only_where_something_could_be_left(whole: Answer) -> None:
    fall = whole.explanation.waterfall
    assert fall is not None and fall.by_construction
    assert left_remark(fall) == "by construction: one bar is the whole gap"
    for style in STYLES:
        assert "by construction: one bar is the whole gap" in told(whole, style), style
    open_ = replace(fall, residual=effect(0.2))
    assert left_remark(open_) == "not explained"
    apart = replace(whole, explanation=replace(whole.explanation, waterfall=open_))
    assert "not explained" in render_why(apart) and why_document(apart)["explained"] is False
    assert why_document(apart)["left"] == "not explained" and why_document(whole)["left"] is None
    assert why_document(whole)["explained"] is None
    assert effect_words(fall.residual)[0] == "1.000x"


def test_the_rerun_asks_what_was_asked(tmp_path: Path) -> None:
    made = session(tmp_path)
    typed = tuple(shlex.split("detente explain gpt2 detente jax --size paper --no-arms --threads 1 --seed 7"))
    assert rerun(answer(question(), replace(made, command=typed), tmp_path)) == " ".join(typed)
    # Of another command, or a stranger's, what the session was run with; quoted, as a name may be anybody's word.
    settings = {**made.fingerprint.settings, "threads": 1, "seed": 7, "blocks": 8}
    ran = replace(
        made, command=("detente", "compare"), fingerprint=replace(made.fingerprint, settings=settings)
    )
    found = answer(question(), ran, tmp_path)
    assert {"--threads 1", "--seed 7", "--blocks 8", "--device cpu"} <= {
        f"{x} {y}" for x, y in zip(rerun(found).split(), rerun(found).split()[1:], strict=False)
    }
    # Explain's own number of blocks is none that was typed; a budget was, and a stranger's may be no number.
    for budget_s, says in (
        (1800.0, True),
        (None, False),
        (math.inf, False),
        ("1; rm", False),
        (-1, False),
    ):
        own = {**settings, "blocks": 5, "blocks_at_most": 15, "budget_s": budget_s}
        asked = rerun(
            replace(found, session=replace(ran, fingerprint=replace(ran.fingerprint, settings=own)))
        )
        assert "--blocks" not in asked and ("--budget 1800s" in asked) == says == ("--budget" in asked), asked
    evil = replace(found, question=replace(found.question, workload="gpt2; touch /tmp/owned #"))
    assert shlex.split(rerun(evil))[2] == "gpt2; touch /tmp/owned #"
    imported = replace(found, session=replace(ran, command=typed, imported=1.0))
    assert "--no-arms" not in rerun(imported)


def test_programs_that_are_not_there_are_not_of_another_kind(tmp_path: Path) -> None:
    """'The two hand over no programs of one kind' was said of a session whose programs were not imported."""
    gone = replace(session(tmp_path, captures=False), imported=1.0)
    found = answer(question(), gone, tmp_path)
    for style in STYLES:
        page = told(found, style).replace("\\", "")
        assert (
            "programs of different kinds" not in page
            and "No rule compares their text: detente: no program of it" in page
        ), style
        assert "mported, not measured here" in page, style
    assert why_document(found)["compared"] is None and "jax: no program" in why_document(found)["uncompared"]
    assert why_document(found)["imported"] is True


def test_why_the_bridge_cannot_stand_between_them_is_said(tmp_path: Path) -> None:
    made = session(tmp_path)

    def eager(cell):  # the bridge's rows as eager PyTorch's: the bridge itself was not captured
        stack = "torch-eager" if cell.stack == "detente" else cell.stack
        return replace(cell, stack=stack, label=cell.label.replace("detente", "torch-eager"))

    operators = {
        "schema": "detente/operators/1",
        "name": "step",
        "operations": [
            {"op": "aten.mm", "results": [["float32", [2]]], "operands": [], "path": "a", "direction": "forward",
             "flops": 1, "seconds": None}
        ],
    }  # fmt: skip
    kept = evidence(tmp_path, "torch-eager", {"operators": json.dumps(operators).encode()})
    mixed = replace(
        made,
        planned=tuple(map(eager, made.planned)),
        processes=tuple(replace(p, cell=eager(p.cell)) for p in made.processes),
        aa=("torch-eager", "torch-eager#aa"),
    )
    found = answer(question("torch-eager"), captured(mixed, "torch-eager", kept), tmp_path)
    assert found.compared is None and found.findings == ()
    assert found.uncompared == (
        "the two hand over programs of different kinds; detente, which would stand between them: no program of it was "
        "captured in this session"
    )


def test_the_bar_of_a_runtime_is_not_who_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From eager PyTorch to JAX the text is the bridge's, and the runtime's bar is PyTorch's."""
    asked: list[str] = []

    def caught(findings, effects, explained, stood_for=""):
        asked.append(stood_for)
        return ()

    monkeypatch.setattr("detente.explain.answer.settled", caught)
    made = session(tmp_path)
    eager = tuple(
        replace(c, stack="torch-eager", label="torch-eager") for c in made.planned if c.label == "detente"
    )
    ran = [p for p in made.processes if p.cell.label == "detente"]
    operators = b'{"schema": "detente/operators/1", "name": "step", "operations": []}'
    kept = evidence(tmp_path, "torch-eager", {"operators": operators})
    more = tuple(replace(p, cell=eager[0], evidence=kept if p.kind == "capture" else p.evidence) for p in ran)
    both = replace(made, planned=(*made.planned, *eager), processes=(*made.processes, *more))
    found = answer(question("torch-eager"), both, tmp_path)
    assert found.compared == ("detente", "jax") and asked == ["torch-eager"]
    answer(question(), made, tmp_path)
    assert asked[1:] == [""]


def test_a_strangers_words_steer_no_page(tmp_path: Path) -> None:
    evil = "out of \x1b]0;owned\x07\x1b[2Jmemory\n\n# A heading <img src=x onerror=alert(1)> [click](javascript:x)"
    found = answer(
        question(), captured(session(tmp_path), "jax", Evidence("failed", "first", evil)), tmp_path
    )
    for style in STYLES:
        page = told(found, style)
        assert "\x1b" not in page and "\x07" not in page, style
        assert style == "html" or "\n# A heading" not in page, style
    assert "<img" not in told(found, "html")
    assert not re.search(r"(?<!\\)<img|(?<!\\)\[click", told(found, "md"))


def test_a_step_in_several_executables_is_said_to_be_the_first(tmp_path: Path) -> None:
    made = session(tmp_path)
    two = evidence(tmp_path, "jax")
    more = evidence(tmp_path, "torch-xla", {"hlo": golden("torch-xla")})
    found = answer(
        question(), captured(made, "jax", replace(two, programs=(*two.programs, *more.programs))), tmp_path
    )
    for style in STYLES:
        assert "a step is 2 executables, and parts, times and differences are of the first alone" in told(
            found, style
        )
    known = why_document(found)["coverage"]
    assert {label: one["executables"] for label, one in known.items()} == {"detente": 1, "jax": 2}


def test_a_match_that_matches_nothing_is_told(tmp_path: Path) -> None:
    found = answer(question(), session(tmp_path), tmp_path, None, [Match("h.*.mpl", "h.*.mlp")])
    for style in STYLES:
        page = told(found, style).replace("\\", "").replace("&#39;", "'")
        assert "detente has no part 'h.*.mpl', which --align names" in page, style
    assert len(why_document(found)["unmatched"]) == 1


def side_of(*origins: str) -> Side:
    module = program([parameter(0, 4, 4), *(op("tanh", k, origin=o) for k, o in enumerate(origins))])
    kept = (Program("hlo", "step", "0" * 64, "", 1),)
    anchors = {f"{m}.weight": m for m in ("h.0.mlp", "h.1.mlp", "head")}
    made = Side("x", Evidence("ok", "done", programs=kept, probes={"anchors": anchors}), Path())
    table = part_table(module, None, {})
    made.__dict__.update(handed=module, compiled=None, sites=sites(module), _divided=Divided(table))
    return made


def test_the_code_of_a_part_is_all_of_it_but_equal_layers() -> None:
    """An aligned part holds more than layers: an activation lies in the module above it, and was never shown."""
    a = side_of(
        *(f"jit(f)/jvp(h.{k}.mlp{rest})/tanh" for k in (0, 1) for rest in ("", ".act", ".act", ".drop"))
    )
    (part,) = align(parts(a.sites), parts(a.sites), a.anchors, a.anchors)
    assert part.path == "h.*.mlp" and len(a.of(part.a)) == 8
    shown = [site.part.path for site in first_layers(a, part.a)]
    assert shown == ["h.0.mlp", "h.0.mlp.act", "h.0.mlp.act", "h.0.mlp.drop"]


def test_no_bar_of_a_loss_names_products_that_nobody_calls() -> None:
    asked = Question("gpt2", "tiny", "forward", "fp32", "cpu", "torch-eager", "jax")
    assert asked.path.causes[0].title == "PyTorch's runtime, or one program of XLA's"


def test_what_was_not_proved_is_not_called_proved(whole: Answer, tmp_path: Path) -> None:
    """'... are proved to compute the same' stood wherever there was a verdict."""
    assert "are proved to compute the same; every arm was proved" in render_why(whole)
    bare = replace(
        session(tmp_path), processes=tuple(p for p in session(tmp_path).processes if p.kind != "prove")
    )
    found = answer(question(), bare, tmp_path)
    assert found.unproved == dict.fromkeys(("detente", "jax"), "not proved in float64 at a small size")
    for style in STYLES:
        page = told(found, style)
        assert "Not wholly proved to compute the same: detente (not proved in float64" in page, style
        assert "are proved to compute" not in page, style
    assert why_document(found)["unproved"] == found.unproved
    early = replace(whole, early=("jax",))
    assert "are proved to compute the same in their first steps; what was timed after them" in render_why(
        early
    )


def test_an_interval_stands_beside_its_level(whole: Answer) -> None:
    """'95 % interval' stood above six arms whose intervals are at 99.2 %."""

    def at(level: float) -> Effect:
        return replace(effect(0.2), interval=Interval(0.1, 0.3, level))

    arms = tuple(
        ArmEffect(f, f"jax[{f}=off]", "jax", "measured", at(1 - 0.05 / 6)) for f in ("fusion", "loop")
    )
    fall = whole.explanation.waterfall
    assert fall is not None
    bars = tuple(Bar(cause, at(0.975), (0.2, 0.2), False) for cause in ("program", "runtime"))
    two = replace(fall, bars=bars, gap=at(0.95), residual=at(0.95))
    found = replace(whole, effects=arms, explanation=replace(whole.explanation, waterfall=two))
    for style in STYLES:
        page = told(found, style).replace("\\", "")
        assert "Intervals are at 99.17 % each: 95 % for all of them together" in page, style
        assert "are at 95 %, the verdict" in page and "those of the bars at 97.5 % each" in page, style
    assert "95 % interval</th>" not in render_why(found)
    assert "Intervals are at 98.33 %, the verdict's level." in told(whole, "text")
    # What a bar is below stands beside the word, and nowhere else.
    below = replace(two, bars=(replace(bars[0], below_noise=True), bars[1]), noise=math.log(1.2))
    found = replace(found, explanation=replace(whole.explanation, waterfall=below))
    for page in (*(told(found, style) for style in STYLES), render_why(found)):
        assert "Below noise: not wholly beyond 0.833x to 1.200x" in page
    assert "Below noise" not in told(replace(found, explanation=whole.explanation), "text")


def test_a_kernel_of_several_parts_is_counted_with_its_largest_product() -> None:
    """'... counted with their result's' was said: it is their largest product's."""
    inner = Computation(
        "fused",
        (
            parameter(0, 4, 4),
            replace(op("dot", 0, 0, origin="jit(s)/transpose(jvp(a))/dot_general"), detail=Dot((1,))),
            op("add", 1, 0, origin="jit(s)/optimizer/add"),
        ),
        2,
    )
    fusion = replace(op("fusion", 0, called=("fused",), origin="jit(s)/optimizer/add"), name="fusion.1")
    module = program([parameter(0, 4, 4), fusion], inner)
    table = part_table(module, module, {"fusion.1": 1.0})
    assert {r.path: r.seconds for r in table.rows if r.seconds} == {"a": 1.0}
    assert "each counted with one: that of their largest product, or of their result" in coverage_line(table)


def shown(a: Sequence[Site], b: Sequence[Site], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Both sides of a part as the page holds them."""
    monkeypatch.setattr(why_html, "first_layers", lambda side, parts: side)
    aligned = SimpleNamespace(a=(), b=(), path="root", direction="backward")
    part = SimpleNamespace(aligned=aligned, matched=True)
    (row,) = why_html._programs(SimpleNamespace(sides=(a, b), parts=(part,)))  # type: ignore[arg-type]
    return row


def test_a_line_whose_partner_is_not_shown_is_nobodys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an update of 2,736 and 7,548 operations nearly every line was red: its partner stood behind line 400."""
    a = sites(program(chain("log", *["sine"] * 300)))
    b = sites(program(chain("log", *["tanh"] * 500, *["sine"] * 300)))
    row = shown(a, b, monkeypatch)
    assert len(row["b"]) == 401 and row["b"][-1] == "... and 401 more"
    assert not row["own"][0] and {x for x, _, _ in row["pairs"]} == set(range(301))
    # The lines in the middle, which A has not, are its own.
    assert row["own"][1] == list(range(1, 400))


def test_a_part_that_one_side_has_alone_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    a = sites(program(chain("log", "transpose", "sine")))
    for row, which in ((shown(a, [], monkeypatch), 0), (shown([], a, monkeypatch), 1)):
        # What only moves data is unmarked.
        assert row["own"][which] == [0, 2] and row["own"][1 - which] == [] == row["pairs"]
