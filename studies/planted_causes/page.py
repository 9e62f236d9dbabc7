"""The page of the planted causes: a row for each exhibit, from the lines that the command wrote."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Line = dict[str, Any]


def page(lines: Sequence[Line]) -> str:
    """Markdown."""
    processors = ", ".join(sorted({line["processor"] for line in lines}))
    blocks = sorted({line["blocks"] for line in lines})
    many = f"{blocks[0]} to {blocks[-1]}" if len(blocks) > 1 else f"{blocks[0]}"
    text = [
        "# Causes that were planted, and what `detente explain` says of them",
        "",
        f"`python -m studies.planted_causes`: each against JAX's own stack, one thread, {many} blocks. {processors}.",
        "An exhibit ends *as it must* where the bar of its cause is beyond noise, points the right way and its",
        "difference is among the findings; a harmless one where its difference is rejected and no bar is beyond noise;",
        "the control where there is neither finding nor bar. A run whose A/A pair says that the machine is too noisy",
        "decides nothing and is measured again behind all others, up to three times in all; the last one counts. Every",
        "run is a line of `planted-causes.jsonl`.",
        "",
        "| planted | workload | cause | its finding | as it must | run again | step, of JAX's | bar of its cause |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    last = last_of(lines)
    for name in dict.fromkeys(line["name"] for line in lines):
        runs = [line for line in last if line["name"] == name]
        again = sum(line["name"] == name for line in lines) - len(runs)
        ratios = [run["ratio"] for run in runs if run["ratio"]]
        bars = [run["bars"][run["cause"]]["step"] for run in runs if run["cause"] in run["bars"]]
        told = runs[0]
        text.append(
            f"| {name} | {told['workload']} | {told['cause'] or 'none'} | {told['rule'] or 'none'} | {_count(runs)} | "
            f"{again} | {_median(ratios)} | {_median(bars)} |"
        )
    wrong = [line for line in last if not line["good"]]
    if wrong:
        text += ["", "Not as it must:", ""]
        text += [f"- {line['name']}, seed {line['seed']}: {_why(line)}" for line in wrong]
    return "\n".join([*text, ""])


def too_noisy(line: Line) -> bool:
    """Whether the run decided nothing because of the machine, whatever was planted."""
    return "too noisy" in line["reason"]


def last_of(lines: Sequence[Line]) -> list[Line]:
    """Of every exhibit and seed its last run, in the order in which they were first measured."""
    return list({(line["name"], line["seed"]): line for line in lines}.values())


def _count(runs: Sequence[Line]) -> str:
    """A pair whose gap is not settled has no bars: the control passes by it, so it is said."""
    good, unsettled = (
        sum(run["good"] for run in runs),
        sum(run["word"] not in ("FASTER", "SLOWER", "SAME") for run in runs),
    )
    return f"{good} of {len(runs)}" + (f", {unsettled} not settled" if unsettled else "")


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}" if values else ""


def _why(line: Line) -> str:
    bars = ", ".join(
        f"{cause} {bar['step']:.3f}x{' (noise)' if bar['below_noise'] else ''}"
        for cause, bar in line["bars"].items()
    )
    dropped = "; ".join(f"{cause}: {why}" for cause, why in line["dropped"].items())
    findings = ", ".join(f"{rule} {state}" for rule, _, state in line["findings"])
    said = [line["word"] or "no verdict", line["reason"], bars and f"bars {bars}", dropped, findings]
    return "; ".join(filter(None, said))
