"""A page per rule, made from its record: what ``detente rule CODE`` prints and what lies in docs/rules.

python -m detente.judge.rules.pages docs/rules            # writes every page and the index
python -m detente.judge.rules.pages docs/rules --check    # exit 1 and a list where a page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from detente.judge.rules import RULES, find_rule
from detente.judge.rules.planting import counts, planting
from detente.judge.rules.rule import Rule

FAMILIES = {
    "clock": "Clock and synchronisation",
    "numerics": "Numerics",
    "computed": "What is actually computed",
    "warmup": "Warm-up and compilation",
    "hardware": "State of the hardware",
    "memory": "Memory",
    "harness": "Host and harness",
}
_SEVERITY = {
    "void": "**void**: no ratio with such a row is printed",
    "warn": "**warn**: said on the row, which is still compared",
}


def rule_page(code: str) -> str:
    """The page of a rule in Markdown, by code or number (``clock-stops-early``, ``P1``).

    Raises UsageFault with the nearest name when there is no such rule.

    >>> rule_page("P1").splitlines()[0]
    '# clock-stops-early (P1): The clock stops before the work is done'
    """
    rule = find_rule(code)
    lines = [
        f"# {rule.code} ({rule.alias}): {rule.title}",
        "",
        f"{FAMILIES[rule.family]}. Severity: {_SEVERITY[rule.severity]}.",
        "",
        rule.what,
        "",
        "## Why it matters",
        "",
        rule.why,
        "",
        "## How it is detected",
        "",
        rule.detected,
        "",
        f"Evidence: {', '.join(_key(key) for key in rule.evidence)}. {_checked(rule)}",
        "",
        "## How to fix it",
        "",
        rule.fix,
        "",
        "## When to waive it",
        "",
        rule.waive,
        "",
        "## Example",
        "",
        "```python",
        rule.example,
        "```",
        "",
    ]
    return "\n".join(lines)


def _key(key: str) -> str:
    return " or ".join(f"`{one}`" for one in key.split("|"))


def _checked(rule: Rule) -> str:
    if rule.check is None:
        return (
            f"**Not checked** at present: {rule.unchecked}. Rows of such a device print it as `not checked`."
        )
    where = "Checked on every device" if rule.cpu else "Checked where the evidence is there"
    return f"{where}; a row without the evidence prints `not checked`. {_TRIED[planting(rule.code)]}"


_TRIED = {
    "live": "Planted **live**: a benchmark with this fault runs in the museum (tests/museum) and must be caught.",
    "simulated": "Planted **simulated**: made-up records with this fault must be caught (tests/judge); no benchmark "
    "that has it runs in the museum.",
}


def index_page() -> str:
    """The table of all rules in Markdown."""
    lines = [
        "# The audit rules",
        "",
        "Generated from the records in `src/detente/judge/rules` by `python -m detente.judge.rules.pages docs/rules`; "
        "edit those.",
        "`detente rule CODE` prints a page, `detente audit SESSION` applies the rules to a stored session again.",
        "",
        f"{counts()} (`python -m detente.judge.rules.planting`).",
        "",
        "No rule asks a stack about itself. What a rule reads comes from the harness: the captured program, the",
        "framework's own profiler and counters, the kernel, and the clock.",
        "",
        "**Out of scope** is a row whose code patches `detente` itself or the interpreter (functions of these modules",
        "replaced, memory written through `ctypes`), that reads the harness's variables or writes its evidence: it",
        "runs in the process that measures it, and no check there can hold out. What the parent measures from outside,",
        "the time of the window and of the processor, still stands.",
    ]
    for family, title in FAMILIES.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| rule | number | severity | checked | planted | what |",
            "|---|---|---|---|---|---|",
        ]
        for rule in RULES.values():
            if rule.family == family:
                checked = "no" if rule.check is None else "everywhere" if rule.cpu else "with evidence"
                lines.append(
                    f"| [{rule.code}]({rule.code}.md) | {rule.alias} | {rule.severity} | {checked} | "
                    f"{planting(rule.code)} | {rule.title} |"
                )
    return "\n".join([*lines, ""])


def all_pages() -> dict[str, str]:
    """File name -> text of everything in docs/rules."""
    return {"README.md": index_page(), **{f"{code}.md": rule_page(code) for code in RULES}}


def stale_pages(folder: Path) -> list[str]:
    """Names of pages in ``folder`` that are missing, differ from their record, or belong to no rule."""
    pages = all_pages()
    there = {path.name for path in folder.glob("*.md")}
    wrong = [
        n for n, text in pages.items() if n not in there or (folder / n).read_text(encoding="utf-8") != text
    ]
    return sorted({*wrong, *(there - pages.keys())})


def main(arguments: list[str]) -> int:
    """The command of the module's text; returns its exit code."""
    folders = [a for a in arguments if not a.startswith("-")]
    if len(folders) != 1 or set(arguments) - {*folders, "--check"}:
        print("usage: python -m detente.judge.rules.pages FOLDER [--check]", file=sys.stderr)
        return 2
    folder = Path(folders[0])
    if "--check" in arguments:
        stale = stale_pages(folder)
        print("\n".join(f"out of date: {folder / name}" for name in stale), end="\n" if stale else "")
        return 1 if stale else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in stale_pages(folder):
        page = all_pages().get(name)
        if page is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(page, encoding="utf-8")
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
