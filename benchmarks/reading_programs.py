"""How long it takes to read a large program, to divide it into parts, and to lay two side by side.

    python benchmarks/reading_programs.py            # two minutes; writes docs/results/reading-programs.md
    python benchmarks/reading_programs.py --layers 4 --page /tmp/page.md

GPT-2 of 48 layers, of the size `tiny` otherwise, as JAX and the bridge hand it to XLA: read, divided, folded, aligned
and matched by what `detente explain` uses. Nothing is run but a capture of each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detente.explain.align import align
from detente.explain.captured_parts import read
from detente.explain.match import match
from detente.explain.side import Side
from detente.programs.count import read_program
from detente.programs.fold import fold
from detente.programs.live_memory import read_live_memory
from detente.programs.parts import parts, sites
from detente.session.capturing import Captured, capture_programs
from detente.session.fingerprint import machine
from detente.session.request import Request

PAGE = Path(__file__).resolve().parent.parent / "docs/results/reading-programs.md"
REPEATS = 3


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """(median over some calls, the last result)."""
    found, spent = None, []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        found = call()
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent), found


def of_one(one: Captured) -> list[tuple[str, str, str]]:
    """Rows of one stack: what, how much of it, seconds."""
    label, rows = one.cell.label, []
    for form in ("hlo", "hlo-optimised", "stablehlo"):
        program = next(p for p in one.evidence.programs if p.form == form)
        data = read(program, one.artefacts)
        spent, module = seconds(lambda data=data, form=form: read_program(data, form))
        rows.append((f"{label}: read {form}", f"{module.lines:,} lines", f"{spent:.2f}"))
        if form == "hlo":
            spent, table = seconds(lambda module=module: parts(sites(module)))
            rows.append((f"{label}: divide it into parts", f"{len(table):,} parts", f"{spent:.2f}"))
            spent, folded = seconds(lambda table=table: fold(table))
            most = max(len(row.members) for row in folded)
            rows.append(
                (
                    f"{label}: fold equal layers",
                    f"{len(folded)} rows, the largest of {most} layers",
                    f"{spent:.2f}",
                )
            )
        if form == "hlo-optimised":
            spent, live = seconds(lambda data=data: read_live_memory(data))
            known = f"{len(live.operations):,} operations" if live is not None else "none told"
            rows.append((f"{label}: its memory, operation by operation", known, f"{spent:.2f}"))
    return rows


def side_by_side(a: Captured, b: Captured) -> list[tuple[str, str, str]]:
    """Aligning and matching, of what was read before."""
    one, two = Side(a.cell.label, a.evidence, a.artefacts), Side(b.cell.label, b.evidence, b.artefacts)
    members = [[p for row in s.table.rows for p in row.members] for s in (one, two) if s.table is not None]
    mine, theirs = members
    spent, aligned = seconds(lambda: align(mine, theirs, one.anchors, two.anchors, ()))
    rows = [("align the parts of both", f"{len(aligned)} pairs", f"{spent:.2f}")]
    pairs = [(one.of(x.a), two.of(x.b)) for x in aligned]
    spent, matched = seconds(lambda: [match(x, y) for x, y in pairs])
    same = sum(len(m.same) for m in matched)
    rows.append(
        ("match the operations of both", f"{same:,} the same with the same neighbours", f"{spent:.2f}")
    )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    request = Request(("gpt2",), ("jax", "detente"), f"tiny,layers={given.layers}", threads=1)
    captured = capture_programs(request, lambda event: None)
    for one in captured:
        if one.evidence.status != "ok":
            raise SystemExit(f"{one.cell.label} is {one.evidence.status}: {one.evidence.reason}")
    rows = [row for one in captured for row in of_one(one)] + side_by_side(*captured)
    command = " ".join(["python benchmarks/reading_programs.py", *sys.argv[1:]])
    text = [
        "# How long reading a large program takes",
        "",
        f"`{command}`. Processor: {machine()['processor']}. GPT-2 of {given.layers} layers, `tiny` otherwise;",
        f"median of {REPEATS}, one thread.",
        "",
        "| what | how much | seconds |",
        "|---|---|---:|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    given.page.write_text("\n".join(text))
    print("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
