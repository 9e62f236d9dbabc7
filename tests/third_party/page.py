"""The page of the third-party models, from the records alone."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.commit_of import told
from tests.third_party.classes import KINDS, classed
from tests.third_party.row import Row

OUTCOMES = ("equal", "refused", "uncertified", "wrong", "crashed", "outside")
COLUMNS = (*OUTCOMES, "not tried")

HEAD = """# Third-party models through the bridge

Made by `make test-third-party-models` (`python -m tests.third_party.models`); the records are beside this page. The
models are rows of tables, a file for each domain in `tests/third_party/models`: a class, what builds it small, shapes
of its inputs, a loss. One recipe for all (`recipe.py`): a seed, new inputs each step, {steps} steps of SGD with
momentum in float32 (in float64 where plain PyTorch does not run in float32), the model's own loss or the mean of
squares of its results, in a process of its own. No row is taken out for what it does, and which rows are tried follows
from their order alone: the first row of every package in the order of the tables, then the second of every package that
has two, and so on (`--first N`), and those that an earlier page has. A model whose state one rounding of the beginning
moves by a tenth of what the whole training does, or more, is *outside*: PyTorch itself has no answer there.

**equal**: the losses, every parameter and every buffer after the steps are those of a plain PyTorch loop that shares no
code with the bridge but the random numbers; a tensor may be off by 1e-4 of what the training moved it, or by ten times
what PyTorch itself moves when every parameter begins one rounding away. **refused**: the bridge said no.
**uncertified**: its certificate failed and the step raised. **wrong**: certified, and not equal. **crashed**: anything
else. **outside**: plain PyTorch does not train the model here, with what it says. **not tried**:
the run was stopped before.

A refusal is *justified*, *missing* or has a *wrong line* by the rules of `classes.py`, which know codes and words and
no names. A commit with `+` had other changes of the bridge beside it.

minGPT's own code is not on the package index, so it is no package here; GPT of its shape is in
`tests/conformance/models`. torchvision and torchaudio have no CPU build that fits the pinned torch: they are stood in
for (`stand_in.py`), and what uses them is *outside*.
"""


def page(rows: list[dict[str, Any]], listed: Sequence[Row]) -> str:
    from tests.third_party.recipe import STEPS

    known = {(r["package"], r["name"]): r for r in rows}
    inside = [r for r in rows if r["outcome"] != "outside"]
    equal = sum(r["outcome"] == "equal" for r in inside)
    stacks = sorted({f"torch {r['torch']}, jax {r['jax']}" for r in rows})
    versions = {r["package"]: r["version"] for r in rows}
    text = [
        HEAD.format(steps=STEPS),
        f"{len(listed)} models of {len({r.package for r in listed})} packages listed, {len(rows)} tried, "
        f"{len(inside)} in the run. {told(r['commit'] for r in rows)} {'; '.join(stacks)}; {_processor()}.",
        "",
        f"Equal: {equal} of {len(inside)}, {100 * equal / max(len(inside), 1):.1f} %. The goal is 84 %.",
        "",
        "| domain | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]

    def counted(name: str, of: Sequence[Row]) -> str:
        seen = Counter(known.get((r.package, r.name), {"outcome": "not tried"})["outcome"] for r in of)
        return f"| {name} | " + " | ".join(str(seen[c]) for c in COLUMNS) + " |"

    text.append(counted("all", listed))
    text += [
        counted(domain, [r for r in listed if r.domain == domain])
        for domain in sorted({r.domain for r in listed})
    ]
    refused = [(classed(r), r) for r in rows if r["outcome"] == "refused"]
    kinds = Counter(kind for (kind, _), _ in refused)
    text += ["", "## What was refused", "", ", ".join(f"{kinds[k]} {k}" for k in KINDS) + ".", ""]
    text += ["| class | why | models |", "|---|---|---:|"]
    reasons = Counter(pair for pair, _ in refused)
    text += [f"| {kind} | {why} | {n} |" for (kind, why), n in reasons.most_common()]
    text += ["", "| model | class | where | what |", "|---|---|---|---|"]
    text += [
        f"| {r['package']} {r['name']} | {kind} | {_cell(r.get('where', ''))} | {_cell(r.get('detail', ''))} |"
        for (kind, _), r in sorted(refused, key=lambda x: (KINDS.index(x[0][0]), x[1]["package"]))
    ]
    text += ["", "## What was uncertified, wrong or crashed", ""]
    bad = [r for r in rows if r["outcome"] in ("uncertified", "wrong", "crashed")]
    text += ["| model | outcome | where | what |", "|---|---|---|---|"] if bad else ["Nothing."]
    text += [
        f"| {r['package']} {r['name']} | {r['outcome']} | {_cell(r.get('where', ''))} | {_cell(r.get('detail', ''))} |"
        for r in sorted(bad, key=lambda r: (OUTCOMES.index(r["outcome"]), r["package"]))
    ]
    text += [
        "",
        "## Outside: plain PyTorch does not train it here",
        "",
        "| model | what it says |",
        "|---|---|",
    ]
    text += [
        f"| {r['package']} {r['name']} | {_cell(r.get('detail', ''))} |"
        for r in rows
        if r["outcome"] == "outside"
    ]
    text += [
        "",
        "## Packages",
        "",
        "| package | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    for package in sorted({r.package for r in listed}):
        title = f"{package} {versions.get(package, '')}".strip()
        text.append(counted(title, [r for r in listed if r.package == package]))
    text += [
        "",
        "## Equal",
        "",
        ", ".join(f"{r['package']} {r['name']}" for r in rows if r["outcome"] == "equal") + ".",
    ]
    return "\n".join(text) + "\n"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())[:260]
