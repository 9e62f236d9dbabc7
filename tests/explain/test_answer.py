"""A whole answer out of a session: verdict, bars, parts, findings, and the page that tells it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from detente.explain.answer import Answer, _aligned, answer
from detente.explain.ask_and_answer import stored
from detente.explain.causes import known_path
from detente.explain.question import Question, arms_beside, ask, of_explained, of_result, single_arms
from detente.judge import judge
from detente.records.codec import dumps
from detente.records.evidence import Evidence
from detente.records.fault import UsageFault
from detente.records.session import Process, Session
from detente.report.why_html import _label, render_why
from detente.report.why_page import SCHEMA, why_document, why_lines
from tests.explain.golden import evidence, side
from tests.judge.planted_sessions import make_session
from tests.programs.test_golden import golden as golden_program

CHROMIUM = next((p for n in ("chromium", "chromium-browser") if (p := shutil.which(n))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: scripts/ci-packages.sh installs it")


def question(a: str = "detente", b: str = "jax", **more: bool) -> Question:
    return Question("gpt2", "paper", "train-step", "fp32", "cpu", a, b, **more)


def session(folder: Path, ratio: float = 0.8, captures: bool = True, blocks: int = 8) -> Session:
    """torch-eager under the bridge's name: the made-up sessions do not know its rows."""
    made = make_session(blocks, steps={"torch-eager": 0.1, "jax": 0.1 * ratio})

    def named(cell):
        stack = "detente" if cell.stack == "torch-eager" else cell.stack
        return replace(cell, stack=stack, label=cell.label.replace("torch-eager", "detente"))

    cells = tuple(named(c) for c in made.planned)
    ran = tuple(replace(p, cell=named(p.cell)) for p in made.processes)
    found = replace(made, planned=cells, processes=ran, aa=("detente", "detente#aa"))
    if not captures:
        return found
    programs = {"detente": evidence(folder, "torch-xla"), "jax": evidence(folder, "jax")}
    kept = tuple(
        Process(c, "capture", -1, 0, 1.0, 1.0, 0.0, programs[c.stack]) for c in cells if "#" not in c.label
    )
    return replace(found, processes=(*kept, *found.processes))


@pytest.fixture
def whole(tmp_path: Path) -> Answer:
    return answer(question(), session(tmp_path), tmp_path)


def test_the_gap_goes_to_what_was_switched(whole: Answer) -> None:
    fall = whole.explanation.waterfall
    assert fall is not None and [b.cause for b in fall.bars] == ["program"]
    assert fall.bars[0].effect.mean == pytest.approx(math.log(0.8), abs=0.02)
    assert fall.explained and abs(fall.residual.mean) < 1e-9


def test_findings_of_a_program_that_matters_stay_untested(whole: Answer) -> None:
    rules = {f.rule for f in whole.findings}
    assert {"layernorm-as-batch-norm", "wide-indices"} <= rules
    assert {f.state for f in whole.findings if f.arm == "program"} == {"untested"}


def test_what_the_budget_left_out_is_why_a_difference_is_untested(tmp_path: Path) -> None:
    found = answer(question(), session(tmp_path, 1.0), tmp_path, {"program": "with it 5 blocks take 481 s"})
    assert {f.said for f in found.findings if f.arm == "program"} == {"with it 5 blocks take 481 s"}


def test_what_the_budget_left_out_is_told_again_of_a_stored_session(tmp_path: Path) -> None:
    """It stood on the page of the process that measured and on no later one, as if nothing had been left out."""
    why = "with it 5 blocks take 1972 s, and the budget is 1800 s"
    made = replace(session(tmp_path), command=("detente", "explain", "gpt2", "detente", "jax"))
    asked = {**made.fingerprint.settings, "left_out": {"jax[donation=off]": why, "no words": 7}}
    kept = replace(made, fingerprint=replace(made.fingerprint, settings=asked))
    found = stored(kept, tmp_path, question())
    assert found.untested == {"jax[donation=off]": why}
    assert why in "\n".join(why_lines(found, "md")) and why in render_why(found)
    assert why_document(found)["untested"] == found.untested
    # Of another question than the one that was measured nothing is known, and a list is no table.
    assert not stored(kept, tmp_path, question("jax", "detente")).untested
    assert not stored(made, tmp_path, question()).untested
    broken = replace(kept, fingerprint=replace(kept.fingerprint, settings={**asked, "left_out": ["x"]}))
    assert not stored(broken, tmp_path, question()).untested


def test_where_the_program_costs_nothing_its_differences_are_rejected(tmp_path: Path) -> None:
    found = answer(question(), session(tmp_path, 0.97), tmp_path)
    assert found.explanation.verdict is not None
    if found.explanation.waterfall is not None and found.explanation.waterfall.bars[0].below_noise:
        assert {f.state for f in found.findings if f.arm == "program"} == {"rejected"}


def test_an_open_gap_has_no_bars_and_says_so(tmp_path: Path) -> None:
    found = answer(question(), session(tmp_path, 1.0), tmp_path)
    assert found.explanation.waterfall is None
    text = "\n".join(why_lines(found, "text"))
    assert "No bars" in text and "below noise" not in text
    assert all(f.said for f in found.findings)


def test_the_parts_hold_every_operation_of_both(whole: Answer) -> None:
    a, b = whole.sides
    assert a is not None and b is not None
    assert sum(p.operations[0] for p in whole.parts) == len(a.sites)
    assert sum(p.operations[1] for p in whole.parts) == len(b.sites)


def test_a_loop_over_layers_has_the_operations_that_a_step_runs(tmp_path: Path) -> None:
    """Of jax-scan beside jax every layer once had half of the other's operations: its body is written once."""
    a, b = (side(tmp_path, stack, {"hlo": golden_program(stack, "hlo")}) for stack in ("jax-scan", "jax"))
    parts, _ = _aligned(a, b, ())
    ran = [sum(p.operations[k] for p in parts) for k in (0, 1)]
    assert ran == [sum(s.runs for s in one.sites) for one in (a, b)]
    assert len(a.sites) < 0.8 * ran[1] and ran[0] == pytest.approx(ran[1], rel=0.2)


def test_text_markdown_and_json_say_the_same(whole: Answer) -> None:
    text, md = ("\n".join(why_lines(whole, style)) for style in ("text", "md"))
    document = json.loads(dumps(why_document(whole), SCHEMA))
    assert document["schema"] == SCHEMA and document["verdict"]["word"] == "SLOWER"
    for words in (
        "1.25x slower",
        "the text of the program",
        "transformer.h.*.attn",
        "layernorm-as-batch-norm",
    ):
        assert words in text and words in md.replace("\\", ""), words
    assert document["waterfall"]["bars"][0]["cause"] == "program"
    # One bar between the two rows themselves is the gap: nothing is explained by it.
    assert document["explained"] is None and "by construction" in text
    assert len(document["parts"]) == len(whole.parts)
    assert document["rerun"] in text


def test_the_rerun_is_what_the_user_typed(tmp_path: Path) -> None:
    found = answer(question(swapped=True), session(tmp_path), tmp_path)
    assert "detente explain gpt2 jax detente --size paper" in "\n".join(why_lines(found, "text"))


@pytest.mark.parametrize("other", ["float64", "another workload"])
def test_another_captures_of_the_same_stacks_are_no_side(tmp_path: Path, other: str) -> None:
    """A session holds more than the question's rows: the float64 programs that a proof on another's runtime takes, and
    other workloads. Neither is what was timed."""

    def elsewhere(cell):
        if other == "float64":
            return replace(cell, contract=replace(cell.contract, precision="fp64"))
        return replace(cell, workload="bert")

    made = session(tmp_path)
    swapped = {"detente": evidence(tmp_path, "jax"), "jax": evidence(tmp_path, "torch-xla")}
    # The proof's captures alone, and all of another workload, which was planned and timed as well.
    strange = [
        replace(
            p, cell=elsewhere(p.cell), evidence=swapped[p.cell.stack] if p.kind == "capture" else p.evidence
        )
        for p in made.processes
        if p.kind == "capture" or other == "another workload"
    ]
    rows = tuple(elsewhere(c) for c in made.planned) if other == "another workload" else ()
    whole = answer(question(), made, tmp_path)
    for processes in ((*made.processes, *strange), (*strange, *made.processes)):
        # In front too: bert is sorted before gpt2.
        mixed = replace(made, planned=(*rows, *made.planned), processes=processes)
        found = answer(question(), mixed, tmp_path)
        assert [s.evidence for s in found.sides if s] == [s.evidence for s in whole.sides if s]
        # Another workload is another pair that a report corrects for: the figures are those of wider intervals.
        assert found.explanation.waterfall is not None
        assert [replace(f, said="") for f in found.findings] == [replace(f, said="") for f in whole.findings]


def test_a_session_without_these_rows_or_programs(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="no rows of torch-xla and tf"):
        answer(question("torch-xla", "tf"), session(tmp_path), tmp_path)
    found = answer(question(), session(tmp_path, captures=False), tmp_path)
    assert set(found.missing) == {"detente", "jax"} and not found.parts
    assert "no program of it was captured" in "\n".join(why_lines(found, "text"))
    render_why(found)


@pytest.mark.parametrize("damage", ["gone", "broken"])
def test_a_program_that_is_gone_or_broken_is_told(tmp_path: Path, damage: str) -> None:
    made = session(tmp_path)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.unlink() if damage == "gone" else file.write_bytes(b"\xff\xff")
    found = answer(question(), made, tmp_path)
    words = "not there any more" if damage == "gone" else "cannot be read"
    assert all(words in why for why in found.missing.values()) and len(found.missing) == 2


def test_a_program_over_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    made = session(tmp_path)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            os.truncate(file, 1_100_000_000)
    found = answer(question(), made, tmp_path)
    assert all("--layers 2" in why for why in found.missing.values()) and len(found.missing) == 2


def test_a_capture_that_failed_says_why(tmp_path: Path) -> None:
    made = session(tmp_path)
    gone = tuple(
        replace(p, evidence=Evidence("oom", "first", "out of memory")) if p.kind == "capture" else p
        for p in made.processes
    )
    found = answer(question(), replace(made, processes=gone), tmp_path)
    assert found.missing["jax"] == "its capture is oom: out of memory"


# What is asked ------------------------------------------------------------------------------------------------------


def test_the_last_session_is_asked_for_its_ends() -> None:
    made = make_session(8, steps={"torch-eager": 0.1, "jax": 0.08, "torch-compile": 0.12})
    found = of_result(judge(made))
    assert (found.a, found.b) == ("torch-compile", "jax") and not found.swapped


def test_a_session_that_explain_measured_is_asked_what_it_was_asked(tmp_path: Path) -> None:
    """From eager PyTorch to JAX the bridge stands between them, and was the fastest: its question was told."""
    made = make_session(8, steps={"torch-eager": 0.1, "jax": 0.12, "torch-compile": 0.08})
    ends = of_result(judge(made))
    assert {ends.a, ends.b} == {"jax", "torch-compile"}
    found = of_explained(replace(made, command=("detente", "explain", "gpt2", "torch-eager", "jax")))
    assert found is not None and (found.a, found.b) == ("torch-eager", "jax")
    assert of_explained(replace(made, command=("detente", "compare", "gpt2"))) is None
    assert of_explained(replace(made, planned=made.planned[:1], command=("detente", "explain"))) is None


def test_one_row_is_no_question() -> None:
    with pytest.raises(UsageFault, match="1 rows that can be compared"):
        of_result(judge(make_session(8, steps={"jax": 0.1})))


def test_the_one_that_has_arms_stands_behind() -> None:
    found = ask("gpt2", "paper", "train-step", "fp32", "cpu", "jax", "torch-eager")
    assert (found.a, found.b, found.swapped) == ("torch-eager", "jax", True)
    assert known_path("jax", "torch-eager").causes == ()


def test_single_arms_are_those_of_the_stack() -> None:
    assert "jax[donation=off]" in single_arms("jax", "train-step")
    assert "jax[loop=unrolled]" not in single_arms("jax", "train-step")
    assert "jax-scan[loop=scan]" not in single_arms("jax-scan", "train-step")
    assert single_arms("detente", "train-step") == (
        "detente[fusion=off]",
        "detente[torch-kernels=off]",
        "detente[library-kernels=off]",
    )
    assert not [a for a in single_arms("jax", "forward") if "optimizer" in a]
    of_torch = ("torch-eager[layout=channels-last]", "torch-eager[attention=decomposed]")
    assert single_arms("torch-eager", "train-step") == of_torch


def test_what_a_model_has_none_of_is_not_switched() -> None:
    built = {"attention_calls": 12, "convolutions": 0, "channels_last": 0}
    assert single_arms("torch-eager", "train-step", built) == ("torch-eager[attention=decomposed]",)
    asked = ask("gpt2", "paper", "train-step", "fp32", "cpu", "torch-eager", "jax")
    beside = arms_beside(asked, "train-step", {"torch-eager": built})
    assert beside[-1] == "torch-eager[attention=decomposed]" and "jax[donation=off]" in beside
    # What both can switch is switched once, where the waterfall ends.
    loops = ask("gpt2", "paper", "train-step", "fp32", "cpu", "jax-scan", "jax")
    assert not [name for name in arms_beside(loops, "train-step", {}) if name.startswith("jax-scan")]


def test_a_bar_is_called_after_what_it_holds_besides(whole: Answer) -> None:
    # Of this session no row says what the bridge's kernels are worth.
    assert "torch-kernels" in whole.explanation.dropped
    assert whole.titles["program"] == "the text of the program; " + whole.titles["torch-kernels"]
    (line,) = [line for line in why_lines(whole, "md") if line.startswith("| the text of the program")]
    assert "PyTorch's products" in line
    fall = whole.explanation.waterfall
    assert fall is not None
    bars = (*fall.bars, replace(fall.bars[0], cause="torch-kernels"))
    apart = replace(whole, explanation=replace(whole.explanation, waterfall=replace(fall, bars=bars)))
    assert apart.titles["program"] == "the text of the program"


# The page -----------------------------------------------------------------------------------------------------------


PATHS = [("torch-eager", "jax"), ("torch-compile", "detente"), ("torch-xla", "jax"), ("jax", "jax-scan")]


@pytest.mark.parametrize(("a", "b"), PATHS)
def test_a_bars_title_fits_beside_the_bars(a: str, b: str) -> None:
    """Seen in a screenshot: the bars covered half of a title."""
    titles = [c.title for c in known_path(a, b).causes]
    kernels = known_path("torch-eager", "jax").causes[2].title
    for title in (*titles, f"the text of the program; {kernels}"):
        lines = _label(title)
        assert " ".join(lines) == title, "the title is cut off"
        assert len(lines) == 1 <= len(title) <= 36 or (max(map(len, lines)) <= 44 and len(lines) == 2)


def test_the_page_fetches_nothing(whole: Answer) -> None:
    page = render_why(whole)
    assert not re.search(r'(src|href)="|url\(|@import|https?://(?!www\.w3\.org)', page)
    assert "default-src 'none'" in page
    assert page.count("<script") == 2 and len(page) < 1_000_000


def test_what_a_program_calls_itself_ends_no_script(tmp_path: Path) -> None:
    made = session(tmp_path)
    evil = answer(question(), made, tmp_path)
    evil = replace(evil, findings=tuple(replace(f, what="</script><b>x") for f in evil.findings))
    page = render_why(evil)
    assert "</script><b>x" not in page


CLICK = """<script>addEventListener("load", () => {
  const button = [...document.querySelectorAll("button.part")].find(b => b.textContent.endsWith("h.*.attn"));
  button.click();
  const lit = document.querySelector("#code-a li.same");
  lit.dispatchEvent(new MouseEvent("mouseenter"));
  const out = {hidden: document.getElementById("code").hidden, a: document.querySelectorAll("#code-a li").length,
    b: document.querySelectorAll("#code-b li").length, same: document.querySelectorAll("#code-a li.same").length,
    own: document.querySelectorAll("#code-b li.own").length, lit: document.querySelectorAll("li.lit").length,
    focus: document.activeElement.id, wide: document.documentElement.scrollWidth - innerWidth};
  document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
  out.closed = document.getElementById("code").hidden; out.back = document.activeElement === button;
  document.body.dataset.out = JSON.stringify(out);
});</script></body>"""


def opened(tmp_path: Path, page: str, *flags: str) -> str:
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", *flags,
        file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@browser
def test_a_click_opens_both_programs_and_escape_closes_them(tmp_path: Path, whole: Answer) -> None:
    page = render_why(whole).replace("</body>", CLICK)
    dom = opened(tmp_path, page, "--window-size=1200,900", "--dump-dom")
    found = re.search(r'data-out="([^"]*)"', dom)
    assert found is not None
    out = json.loads(found[1].replace("&quot;", '"'))
    assert out["hidden"] is False and out["a"] > 20 and out["b"] > 20 and out["same"] > 3 and out["own"] >= 1
    assert out["lit"] == 2 and out["focus"] == "code-title"
    assert out["closed"] is True and out["back"] is True and out["wide"] <= 0


@browser
def test_it_prints(tmp_path: Path, whole: Answer) -> None:
    opened(tmp_path, render_why(whole), "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'why.pdf'}")
    assert (tmp_path / "why.pdf").read_bytes().startswith(b"%PDF")


LINES = """<script>addEventListener("load", () => {
  document.querySelector("button.part").click();
  const classes = (list, first, last) =>
    [...new Set([...document.querySelectorAll(`#code-${list} li`)].slice(first, last).map(l => l.className))];
  const out = {a: classes("a", 0, 301), b: classes("b", 1, 400), unmarked: classes("a", 301, 302)};
  const more = [...document.querySelectorAll("#code-b li")].at(-1);
  document.querySelectorAll("#code-a li")[200].dispatchEvent(new MouseEvent("mouseenter"));
  document.body.dataset.out = JSON.stringify({...out, more: more.className, text: more.textContent});
});</script></body>"""


@browser
def test_lines_behind_the_last_that_is_shown_are_partners_too(
    tmp_path: Path, whole: Answer, monkeypatch
) -> None:
    row = {
        "title": "update",
        "a": ["sine(x)"] * 301 + ["copy(x)"],
        "b": ["sine(x)"] + ["tanh(x)"] * 399 + ["... and 401 more"],
        "pairs": [[0, 0, 0], [1, 500, 1], *([k, k + 500, 2] for k in range(2, 301))],
        "own": [[], list(range(1, 400))],
    }
    monkeypatch.setattr("detente.report.why_html._programs", lambda found: [row] * len(found.parts))
    dom = opened(
        tmp_path, render_why(whole).replace("</body>", LINES), "--window-size=1200,900", "--dump-dom"
    )
    found = re.search(r'data-out="([^"]*)"', dom)
    assert found is not None
    out = json.loads(found[1].replace("&quot;", '"'))
    assert out["a"] == ["same", "displaced", "alike"] and out["b"] == ["own"] and out["unmarked"] == [""]
    # What stands for all that is not shown lights up for a partner among it, and has no colour of its own.
    assert out["more"] == "lit" and out["text"] == "... and 401 more"
