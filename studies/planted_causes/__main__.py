"""Causes that were planted, and whether ``detente explain`` finds them: the proof of the second kind of answer.

    python -m studies.planted_causes                     # every exhibit under ten seeds: some six hours
    python -m studies.planted_causes --seeds 1           # every exhibit once, the control twice
    python -m studies.planted_causes --told-again        # the sessions that are still here, by today's rules
    python -m studies.planted_causes --only MissingDonation --seeds 1 --page /tmp/page.md

Each exhibit is JAX's own stack with one cause in it (stacks.py), explained against JAX's own. It is found where the bar
of its cause, switched from the planted stack to JAX's, is beyond noise and points the right way, and where its
difference is among the findings. A harmless one must end rejected, and a stack against itself must have no finding
and no bar, under twice as many seeds. One thread each: of steps of a millisecond, two threads that wait for each other
differ by half between processes of one program. Nothing is replayed: what is asked is not whether the rows train.
A run whose A/A pair says that the machine is too noisy decides nothing, whatever was planted: it is measured again
behind all others, up to three times in all, and the page says how often.
Writes docs/results/planted-causes.md and, beside it, a line of JSON for every run; interrupted, the same command goes
on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detente.records.folders import data_folder
from detente.session.fingerprint import machine
from studies.planted_causes.page import last_of, page, too_noisy

ROOT = Path(__file__).resolve().parents[2]
HERE = "studies/planted_causes/stacks.py"
PAGE = ROOT / "docs/results/planted-causes.md"
FIRST = 20260101
TRIES = 3


@dataclass(frozen=True)
class Exhibit:
    """``cause``: whose bar must be there; empty for what must have none. ``rule``: the finding that must be there.
    ``size``: of the workload, where what is planted costs a tenth of the step or more."""

    name: str
    cause: str
    rule: str
    size: str

    @property
    def control(self) -> bool:
        """Nothing is planted. What must never be found is looked for under twice as many seeds."""
        return not (self.cause or self.rule)


# What moves data or computes again costs where there are tokens, new memory where there are weights, and what comes
# once a step where a step is short.
_SHORT, _WIDER, _LONGER = "tiny", "tiny,hidden=128", "tiny,batch=4,sequence=32"
EXHIBITS = (
    Exhibit("ExtraTranspose", "program", "data-moved", _LONGER),
    Exhibit("WideIndices", "program", "wide-indices", _LONGER),
    Exhibit("DoubledLayerNorm", "program", "work-repeated", _LONGER),
    Exhibit("BrokenFusion", "program", "fusion-barrier", _LONGER),
    Exhibit("MissingDonation", "donation", "missing-donation", _WIDER),
    Exhibit("OptimizerOutside", "optimizer", "optimizer-outside", _SHORT),
    Exhibit("HostSync", "runtime", "", _SHORT),
    Exhibit("HarmlessBarrier", "", "fusion-barrier", _LONGER),
    Exhibit("HarmlessNumber", "", "wide-indices", _LONGER),
    Exhibit("Same", "", "", _LONGER),
)


def explained(exhibit: Exhibit, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """What ``detente explain`` says of an exhibit under a seed, as JSON."""
    return _told(
        exhibit.name,
        *("explain", given.workload, f"{HERE}:{exhibit.name}", "jax", "--size", exhibit.size),
        *("--no-arms", "--threads", "1", "--seed", str(seed), "--blocks", str(given.blocks)),
    )


def told_again(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The lines, each as today's rules tell its session; one whose session is not here as it stands."""
    exhibits = {exhibit.name: exhibit for exhibit in EXHIBITS}
    for line in lines:
        name, session = line["name"], line["session"]
        if not (data_folder() / "sessions" / f"{session}.jsonl").is_file():
            yield line
            continue
        yield line | found_of(exhibits[name], _told(name, "explain", "--session", session))


def _told(name: str, *command: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = (*command, "--format", "json", "--html", str(Path(folder) / "why.html"))
        done = subprocess.run(
            [sys.executable, "-m", "detente", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
                "DETENTE_REPLAY": "0",
            },
        )
    if not done.stdout.strip():
        raise SystemExit(f"{name}: `detente {' '.join(command)}` told nothing: exit code {done.returncode}")
    return json.loads(done.stdout)


def found_of(exhibit: Exhibit, told: dict[str, Any]) -> dict[str, Any]:
    """What a run says of its exhibit."""
    if "error" in told:
        raise SystemExit(f"{exhibit.name}: {told['error']['message']}")
    fall = told["waterfall"]
    bars = {
        bar["cause"]: {
            "step": math.exp(bar["effect"]["mean"]),
            "between": _between(bar["effect"]),
            "below_noise": bar["below_noise"],
        }
        for bar in (fall["bars"] if fall else ())
    }
    arms = {
        f"{arm['row']} against {arm['against']}": {
            "state": arm["state"],
            "step": math.exp(arm["effect"]["mean"]) if arm["effect"] else None,
            "between": _between(arm["effect"]),
        }
        for arm in told["arms"]
    }
    verdict = told["verdict"] or {}
    findings = [[f["rule"], f["arm"], f["state"]] for f in told["findings"]]
    return {
        "session": told["session"],
        "word": verdict.get("word"),
        "ratio": verdict.get("ratio"),
        "reason": told["reason"],
        "bars": bars,
        "arms": arms,
        "dropped": told["dropped"],
        "findings": findings,
        "good": good(exhibit, bars, findings),
    }


def left(
    lines: Sequence[dict[str, Any]], exhibits: Sequence[Exhibit], seeds: int, tries: int
) -> list[tuple[Exhibit, int]]:
    """What is measured as the ``tries``-th time: at first everything, then what the machine was too noisy for."""
    wanted = [
        (exhibit, seed)
        for seed in range(FIRST, FIRST + 2 * seeds)
        for exhibit in exhibits
        if exhibit.control or seed < FIRST + seeds
    ]
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines:
        runs.setdefault((line["name"], line["seed"]), []).append(line)

    def open_still(exhibit: Exhibit, seed: int) -> bool:
        mine = runs.get((exhibit.name, seed), [])
        return len(mine) < tries and all(too_noisy(line) for line in mine)

    return [(exhibit, seed) for exhibit, seed in wanted if open_still(exhibit, seed)]


def _between(effect: dict[str, Any] | None) -> list[float] | None:
    """The ends of an effect's interval, as a step's time over what it was: by them a harmless one ends rejected."""
    ends = effect["interval"] if effect else None
    return None if ends is None else [math.exp(ends["low"]), math.exp(ends["high"])]


def good(exhibit: Exhibit, bars: dict[str, Any], findings: list[list[str]]) -> bool:
    """Whether the exhibit ended as it must."""
    rules = {rule: state for rule, _, state in findings}
    if exhibit.cause:
        bar = bars.get(exhibit.cause)
        seen = bar is not None and not bar["below_noise"] and bar["step"] < 1
        return seen and (not exhibit.rule or exhibit.rule in rules)
    clear = all(bar["below_noise"] for bar in bars.values())
    if exhibit.rule:
        return clear and rules.get(exhibit.rule) == "rejected"
    return clear and not findings


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help=f"by comma: {', '.join(e.name for e in EXHIBITS)}")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--workload", default="gpt2")
    parser.add_argument(
        "--told-again", action="store_true", help="measure nothing: what is stored, by the rules of now"
    )
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    names = given.only.split(",") if given.only else [e.name for e in EXHIBITS]
    wrong = [n for n in names if n not in {e.name for e in EXHIBITS}]
    if wrong:
        parser.error(f"no exhibit is called {wrong[0]!r}: there are {', '.join(e.name for e in EXHIBITS)}")
    lines = given.page.with_suffix(".jsonl")
    if given.again:
        lines.unlink(missing_ok=True)
    there = [json.loads(text) for text in lines.read_text().splitlines()] if lines.exists() else []
    if given.told_again:
        there = list(told_again(there))
        lines.write_text("".join(json.dumps(line) + "\n" for line in there))
        given.page.write_text(page(there))
        return 0 if all(line["good"] for line in last_of(there)) else 1
    processor = machine()["processor"]
    exhibits = [exhibit for exhibit in EXHIBITS if exhibit.name in names]
    for tries in range(1, TRIES + 1):
        for exhibit, seed in left(there, exhibits, given.seeds, tries):
            found = found_of(exhibit, explained(exhibit, seed, given))
            line = {"name": exhibit.name, "cause": exhibit.cause, "rule": exhibit.rule, "seed": seed}
            there.append(
                {
                    **line,
                    "processor": processor,
                    "workload": f"{given.workload} {exhibit.size}",
                    "blocks": given.blocks,
                    **found,
                }
            )
            with lines.open("a") as out:
                out.write(json.dumps(there[-1]) + "\n")
            given.page.write_text(page(there))
            print(
                f"{exhibit.name}, seed {seed}: {'as it must' if found['good'] else 'NOT as it must'}",
                flush=True,
            )
    return 0 if all(line["good"] for line in last_of(there)) else 1


if __name__ == "__main__":
    sys.exit(main())
