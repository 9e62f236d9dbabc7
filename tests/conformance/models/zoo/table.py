"""The page of the coverage run, from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tests.commit_of import told
from zoo.architectures import TASKS, Architecture

OUTCOMES = ("passed", "refused", "uncertified", "wrong", "crashed")
COLUMNS = (*OUTCOMES, "outside", "not tried")

HEAD = """# The bridge on transformers' architectures

Made by `make coverage` (`python -m zoo`, `tests/conformance/models/zoo`); the records are beside this page.
The list is generated from transformers' auto mappings ({tasks}); every model class counts once and no name is
taken out by hand. One rule on attribute names shrinks every configuration (`zoo/shrink.py`): widths are divided
by one number, depths and vocabularies capped, what Python's or numpy's generator would decide in forward
(layer drop, SpecAugment) set to zero; dropout stays on; matrices that start as zeros are drawn, because a
router of zeros ties all experts. An architecture is *in the run* when one of the rule's
sizes builds under 30 M parameters and trains one step in eager PyTorch, batch of two, within 40 s.

**passed**: `detente.compile(..., certificate="full")` certified the step (loss, every gradient, every buffer,
every update) and a second comparison with eager PyTorch, which shares no code with the certificate, agrees (both
look again from weights that are one rounding away where the first look fails).
**refused**: the bridge said no, with the user's file and line. **uncertified**: the certificate failed and the
step raised. **wrong**: certified, and the second comparison disagrees. **crashed**: anything else. **outside**: not in
the run, with the reason below. **not tried**: the run was stopped before.

Versions: {versions}. One process per architecture, CPU, float32, LLVM's optimisation of XLA's programs off.
A record's `commit` is the last that changed the bridge (`+`: with other changes of it beside).
"""


def page(rows: list[dict[str, Any]], listed: Sequence[Architecture]) -> str:
    """Markdown: counts, counts by task, what did not pass with the reason, what was outside, what was not tried, what
    passed. ``rows`` are the records so far, ``listed`` every architecture of the run."""
    inside = [r for r in rows if r["outcome"] != "outside"]
    outside = [r for r in rows if r["outcome"] == "outside"]
    known = {row["name"]: row["outcome"] for row in rows}
    untried = [a.name for a in listed if a.name not in known]
    counts = Counter(known.get(a.name, "not tried") for a in listed)
    packages = ("torch", "jax", "transformers")
    text = [
        HEAD.format(
            tasks=", ".join(task.name for task in TASKS),
            versions=", ".join(f"{name} {version(name)}" for name in packages),
        ),
        f"{len(listed)} classes listed, {len(rows)} tried, {len(outside)} outside the run, {len(inside)} in it. "
        + told(r.get("commit", "") for r in rows),
        *(
            ["", "**The run is unfinished: these counts are of a sample.** `make coverage` goes on."]
            if untried
            else []
        ),
        "",
        "| | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
        _row("all", counts),
    ]
    text += [
        _row(task.name, Counter(known.get(a.name, "not tried") for a in listed if a.task is task))
        for task in TASKS
    ]
    share = counts["passed"] / len(inside) if inside else 0.0
    text += ["", f"Passed: {counts['passed']} of {len(inside)}, {100 * share:.1f} %. The goal is 98 %.", ""]
    text += ["## What did not pass", "", "| class | outcome | where | what |", "|---|---|---|---|"]
    for row in sorted(inside, key=lambda r: (OUTCOMES.index(r["outcome"]), r["name"])):
        if row["outcome"] != "passed":
            place = row.get("where") or row.get("trace", "").split(" < ")[0]
            text.append(f"| {row['name']} | {row['outcome']} | {_cell(place)} | {_cell(row['detail'])} |")
    text += ["", "## Outside the run", "", "No size of the rule builds and trains in eager PyTorch.", ""]
    text += ["| class | why |", "|---|---|"]
    text += [f"| {r['name']} | {_cell(r['detail'])} |" for r in sorted(outside, key=lambda r: r["name"])]
    if untried:
        text += ["", "## Not tried", "", ", ".join(sorted(untried)) + "."]
    text += [
        "",
        "## What passed",
        "",
        "| class | task | widths / | parameters | nodes | random calls | form |",
    ]
    text += ["|---|---|---:|---:|---:|---:|---|"]
    text += [
        f"| {r['name']} | {r['task']} | {r['divide']} | {r['parameters']:,} | {r['nodes']} | {r['draws']} "
        f"| {r['form']} |"
        for r in sorted(inside, key=lambda r: r["name"])
        if r["outcome"] == "passed"
    ]
    return "\n".join(text) + "\n"


def _row(name: str, counts: Counter[str]) -> str:
    return f"| {name} | " + " | ".join(str(counts[o]) for o in COLUMNS) + " |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())[:240]
