"""The page of the study's figures: three tables, from the lines that the command wrote."""

from __future__ import annotations

import statistics
import string
from collections.abc import Iterator, Sequence
from typing import Any

Line = dict[str, Any]
_UNTOLD = "not told"


def page(lines: Sequence[Line]) -> str:
    """Markdown."""
    size = lines[0]["size"]
    letters = dict(zip(dict.fromkeys(map(_machine, lines)), string.ascii_uppercase, strict=False))
    processors = "; ".join(f"{letter}, {name}" for (name, _), letter in letters.items())
    text = [
        "# A published study of ViT training, again",
        "",
        f"`python -m studies.vit_training`: ViT with {size['layers']} layers, pictures of {size['image']} x "
        f"{size['image']}, batch {size['batch']}, SGD. What it means is told in",
        "[studies/vit-training.md](../studies/vit-training.md); every figure is a line of `vit-training.jsonl`.",
        "",
        f"Machines: {processors}. No figure of one is compared with another's: processors of one name differ.",
    ]
    for part, tell in (("loop", _loop), ("exhibits", _exhibits), ("table", _table)):
        found = [line | {"on": letters[_machine(line)]} for line in lines if line["part"] == part]
        text += ["", *tell(found)] if found else []
    return "\n".join([*text, ""])


def _machine(line: Line) -> tuple[str, str]:
    """Its processor and which one; of older lines nobody knows."""
    return line["processor"], line.get("machine", "")


def _loop(lines: Sequence[Line]) -> Iterator[str]:
    yield from (
        "## The study's own loop",
        "",
        "*Told* is the mean over steps 11 to 50 of the time around the loop's body, the median over processes and, in",
        "brackets, the least and the most. *Waited* is the same with a wait behind the last step. *Loader* is the part",
        "of the loop's body that made pictures; *left* is what was still running when the loop ended.",
        "",
        "| on | mode | precision | processes | told, ms | waited, ms | loader, ms | left, ms | loss | cross entropy |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    )
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in lines:
        found = line["found"]
        rows.setdefault((line["on"], found["mode"], found["precision"]), []).append(found)
    for (on, mode, precision), runs in rows.items():
        told = [1e3 * run["told_s"] for run in runs]
        others = [1e3 * statistics.median(run[k] for run in runs) for k in ("waited_s", "loader_s", "left_s")]
        cells = [
            f"{statistics.median(told):.0f} ({min(told):.0f} to {max(told):.0f})",
            *(f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in others),
            f"{runs[0]['loss']:.4g}",
            f"{runs[0]['cross_entropy']:.4g}",
        ]
        yield f"| {on} | {mode} | {precision} | {len(runs)} | {' | '.join(cells)} |"


def _exhibits(lines: Sequence[Line]) -> Iterator[str]:
    yield from (
        "## What the audit says of it",
        "",
        "| exhibit | row | status | what is said |",
        "|---|---|---|---|",
    )
    for line in lines:
        for row in line["found"]["rows"]:
            said = "; ".join(
                f"`{rule}`: {text}" for rule, severity, text in row["findings"] if severity == "void"
            )
            yield f"| {line['key']} | {row['label']} | {row['status']} | {said or row['reason'] or 'nothing'} |"


def _table(lines: Sequence[Line]) -> Iterator[str]:
    yield from (
        "## The question, asked of rows that are proved",
        "",
        "Median of a step and its 95 % interval, ms. *Of the best torch*: the row's time over that of the faster of",
        "eager and compile, from the paired blocks of the same session where a verdict tells it.",
        "",
        "| on | attention, precision, feed | row | ms | of the best torch | status |",
        "|---|---|---|---:|---:|---|",
    )
    for line in lines:
        rows = line["found"]["rows"]
        torch = {
            r["label"]: r["steady_s"]["median"]
            for r in rows
            if r["label"] in ("torch-eager", "torch-compile") and r["status"] == "ok" and r["steady_s"]
        }
        best = min(torch, key=lambda label: torch[label], default="")
        for row in rows:
            if "#" in row["label"]:
                continue
            steady = row["steady_s"]
            ms = f"{1e3 * steady['median']:.0f}" if steady else ""
            if steady and steady["low"] is not None:  # one process has no interval
                ms += f" ({1e3 * steady['low']:.0f} to {1e3 * steady['high']:.0f})"
            told = row["status"] if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
            ratio = _of(row["label"], best, line["found"]["verdicts"])
            if ratio == _UNTOLD and best != "torch-eager":
                other = _of(row["label"], "torch-eager", line["found"]["verdicts"])
                ratio = other if other == _UNTOLD else f"of torch-eager {other}"
            yield f"| {line['on']} | {line['key']} | {row['label']} | {ms} | {ratio} | {told} |"


def _of(label: str, best: str, verdicts: Sequence[dict[str, Any]]) -> str:
    """The row's time over the best torch row's."""
    if label == best:
        return "1"
    for v in verdicts:
        if {v["a"], v["b"]} == {label, best} and None not in (v["ratio"], v["low"], v["high"]):
            low, middle, high = v["low"], v["ratio"], v["high"]
            if v["a"] != label:
                low, middle, high = 1 / high, 1 / middle, 1 / low
            return f"{middle:.2f} ({low:.2f} to {high:.2f}), {v['word']}"
    return _UNTOLD
