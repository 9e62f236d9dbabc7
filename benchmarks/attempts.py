"""Dated attempts at a page that needs a quiet machine: what each found, kept beside the page, told on it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from detente.judge.statistics import MARGIN_CAP
from detente.records.codec import from_json

# So many attempts, and a page may say that a quiet machine was not to be had.
WANTED = 3


@dataclass(frozen=True)
class Attempt:
    """``bound``: how far the A/A pair may differ, the median over the sessions of the attempt; ``load``: share of the
    machine's CPU time that others used; None where nobody knows. ``result``: one clause."""

    day: str
    processor: str
    command: str
    bound: float | None
    load: float | None
    result: str

    @property
    def quiet(self) -> bool:
        return self.bound is not None and self.bound < MARGIN_CAP


def today() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def remember(page: Path, attempt: Attempt) -> list[Attempt]:
    """Append to the page's list (the same name, ``.attempts.jsonl``) and return all of it."""
    path = page.with_suffix(".attempts.jsonl")
    with path.open("a") as out:
        out.write(json.dumps(asdict(attempt)) + "\n")
    return [from_json(Attempt, json.loads(line)) for line in path.read_text().splitlines()]


def told(attempts: list[Attempt]) -> list[str]:
    """The lines of a page: whether the last attempt had a quiet machine, and every attempt with its date and bound."""
    last = attempts[-1]
    limit = f"{100 * MARGIN_CAP:g} %"
    if last.quiet:
        said = f"The machine was quiet enough: its A/A bound of {share(last.bound)} is under {limit}."
    elif len(attempts) >= WANTED and not any(a.quiet for a in attempts):
        said = f"A machine with an A/A bound under {limit} was not to be had in {len(attempts)} attempts."
    elif last.bound is None:
        said = "**Not quiet, or not known to be**: the A/A pair has too few blocks for a bound. Run it again elsewhere."
    else:
        said = f"**Not quiet**: the A/A bound of {share(last.bound)} is not under {limit}. Run it again elsewhere."
    rows = [
        f"| {a.day} | {a.processor} | {share(a.bound)} | {share(a.load)} | {a.result} | `{a.command}` |"
        for a in attempts
    ]
    return [
        said,
        "",
        "| attempt | processor | A/A bound | load of others | result | command |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


def share(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:.1f} %"
