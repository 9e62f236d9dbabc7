"""The semantics suite on torchax, beside Détente: which cases each gets right, and what it says or does instead.

    PYTHONPATH=src:tests/bridge/semantics python benchmarks/semantics_torchax.py --torchax FOLDER --commit HASH
    PYTHONPATH=src:tests/bridge/semantics python benchmarks/semantics_torchax.py --only "BatchNorm in eval"

FOLDER holds the package ``torchax`` (a checkout, or a site-packages); without it an installed one is taken. Every case
runs in a process of its own with a time limit, on torchax with its defaults, and where that does not pass in its
accuracy mode, too (64 bits, full-precision products, torch's result dtypes). Writes
docs/results/semantics-torchax.md, and beside it the records that it is made of; with ``--only`` those of the other
cases are kept. No timing is taken.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path

from suite.case import Case
from suite.judge import Outcome, outcome
from suite.subjects import subject
from suite.table import BY_NAME, CASES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "semantics-torchax.md"
RECORDS = PAGE.with_suffix(".jsonl")
LIMIT_S = 120


@dataclass(frozen=True)
class Column:
    """``mode`` is what a subject that has modes is asked for."""

    subject: str
    title: str
    mode: str = ""


COLUMNS = (
    Column("detente", "Détente"),
    Column("torchax", "torchax", "defaults"),
    Column("torchax", "torchax, the better of both modes", "accuracy"),
)
SIGNS = {"same": "right", "refused": "refused", "wrong": "WRONG", "fails": "error"}


def _child(pipe: Connection, name: str, column: Column) -> None:
    import os

    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    case = BY_NAME[name]
    theirs = [subject("torch")(case, run) for run in case.runs]
    if column.mode:
        from suite.subjects import interceptor

        interceptor.configure(column.mode)
    ours = [subject(column.subject)(case, run) for run in case.runs]
    pipe.send(outcome(case, theirs, ours))
    pipe.close()


def asked(case: Case, column: Column) -> Outcome:
    """The outcome of one case in a process of its own. What kills the process is an outcome, too."""
    context = multiprocessing.get_context(
        "fork"
    )  # the frameworks are imported once; nothing has run in them yet
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, case.name, column))
    process.start()
    there.close()
    try:
        if not here.poll(LIMIT_S):
            process.kill()
            return Outcome("fails", f"no answer within {LIMIT_S} s")
        return here.recv()
    except EOFError:
        process.join()
        return Outcome("fails", f"the process ended with code {process.exitcode}")
    finally:
        process.join()


def _shown(found: Outcome) -> Outcome:
    """Without the folders of this machine, and no longer than a cell."""
    why = re.sub(r"(/[\w.+-]+){2,}/", "", found.why).replace("|", "/").replace("\n", " ").strip()
    return Outcome(found.kind, why if len(why) <= 110 else why[:107] + "...")


def _stored() -> dict[tuple[str, Column], Outcome]:
    """The records of the last run, of the cases that still exist."""
    by_title = {column.title: column for column in COLUMNS}
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    return {
        (row["case"], by_title[row["column"]]): Outcome(row["kind"], row["why"])
        for row in rows
        if row["case"] in BY_NAME
    }


def _store(found: dict[tuple[str, Column], Outcome]) -> None:
    rows = [
        {"case": case.name, "column": column.title, "kind": known.kind, "why": known.why}
        for case in CASES
        for column in COLUMNS
        if (known := found.get((case.name, column)))
    ]
    RECORDS.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _cell(found: Outcome) -> str:
    why = found.why
    sign = SIGNS[found.kind]
    return sign if found.kind == "same" or not why else f"{sign}: {why}"


def page(found: dict[tuple[str, Column], Outcome], cases: Sequence[Case], note: str) -> str:
    """The result page."""

    def score(column: Column, group: str = "") -> str:
        chosen = [c for c in cases if group in ("", c.group)]
        return f"{sum(found[c.name, column].passed for c in chosen)} of {len(chosen)}"

    silent = [
        sum(all(found[c.name, k].kind == "wrong" for k in COLUMNS if k.subject == "torchax") for c in cases),
        sum(found[c.name, COLUMNS[0]].kind == "wrong" for c in cases),
    ]
    lines = [
        "# The semantics suite on torchax",
        "",
        "`benchmarks/semantics_torchax.py` runs every case of `tests/bridge/semantics/suite` against eager PyTorch,",
        "each in a process of its own. A case passes when loss, results, every gradient and every buffer are PyTorch's",
        "(*right*), or when it is one that no program with static shapes can run and the bridge says so (*refused*).",
        "*WRONG* is another number, or (checkpoint, GroupNorm) another program than was asked for, without a word;",
        "*error* is an exception where PyTorch runs.",
        "",
        note,
        "",
        "| | " + " | ".join(c.title for c in COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
        *(
            f"| {group} | " + " | ".join(score(c, group) for c in COLUMNS) + " |"
            for group in dict.fromkeys(c.group for c in cases)
        ),
        "| **all** | " + " | ".join(f"**{score(c)}**" for c in COLUMNS) + " |",
        "",
        f"Silently wrong, in both of its modes: {silent[0]} of {len(cases)}; Détente: {silent[1]}.",
    ]
    for group in dict.fromkeys(c.group for c in cases):
        lines += [
            "",
            f"## {group}",
            "",
            "| case | PyTorch | " + " | ".join(c.title for c in COLUMNS) + " |",
            "|---|---|" + "---|" * len(COLUMNS),
        ]
        for case in (c for c in cases if c.group == group):
            cells = " | ".join(_cell(found[case.name, column]) for column in COLUMNS)
            lines.append(f"| {case.name.replace('|', '/')} | {case.torch} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Exit code 1 when Détente does not pass a case: it has to pass all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torchax", type=Path, help="folder that holds the package torchax")
    parser.add_argument("--commit", default="", help="of that checkout, for the page")
    parser.add_argument("--only", nargs="+", choices=sorted(BY_NAME), metavar="CASE")
    given = parser.parse_args()
    if given.torchax is not None:
        sys.path.insert(0, str(given.torchax))
    subject("detente"), subject("torchax")  # imported before the first fork
    import torchax

    cases = [c for c in CASES if given.only is None or c.name in given.only]
    found = _stored() if given.only else {}
    for number, case in enumerate(cases):
        for column in COLUMNS:
            known = found.get((case.name, COLUMNS[1])) if column == COLUMNS[2] else None
            found[case.name, column] = known if known and known.passed else _shown(asked(case, column))
        cells = "; ".join(f"{k.title}: {_cell(found[case.name, k])}" for k in COLUMNS)
        print(f"{number + 1}/{len(cases)} {case.name} | {cells}", flush=True)
    version = f"torchax {torchax.__version__}" + (f" (commit {given.commit})" if given.commit else "")
    others = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "jax", "transformers"))
    note = f"{version}, {others}, Python {platform.python_version()}, CPU. {NOTE}"
    _store(found)
    done = [c for c in CASES if all((c.name, column) in found for column in COLUMNS)]
    PAGE.write_text(page(found, done, note))
    bad = [c.name for c in cases if not found[c.name, COLUMNS[0]].passed]
    print(f"Détente: {len(cases) - len(bad)} of {len(cases)}" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


NOTE = """\
torchax is used as its own training examples use it: `torch.func.functional_call` under `interop.jax_value_and_grad`
under `interop.jax_jit`. What does not pass with its defaults runs again in its accuracy mode (64 bits, full-precision
products, PyTorch's result dtypes). Where there is a choice it is made in torchax's favour: tensors that a model makes
without naming a device are made on torchax's device, the seed is given to torchax's generator, too, a gradient of
zeros counts as PyTorch's None, int32 counts as int64 where the values are equal, and no case asks for PyTorch's own
random numbers. Its newest release, 0.0.13, does not import with this torch (`aten.prod` has no overload
`dim_Dimname`), so this is its main branch, unchanged. No code of torchax is used in Détente."""


if __name__ == "__main__":
    sys.exit(main())
