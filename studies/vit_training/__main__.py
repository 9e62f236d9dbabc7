"""A published study of ViT training, again: its own loop as an exhibit, then its question asked of the referee.

    python -m studies.vit_training                       # some three hours on two quiet cores
    python -m studies.vit_training --parts loop          # loop, exhibits, table
    python -m studies.vit_training --batch 32            # on a GPU
    python -m studies.vit_training --layers 2 --image 32 --rounds 1 --blocks 1 --page /tmp/page.md

Writes docs/results/vit-training.md and, beside it, a line of JSON for every figure. Interrupted, the same command goes
on where it ended; ``--again`` measures everything anew. docs/studies/vit-training.md tells what it means.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detente.session.fingerprint import machine
from studies.vit_training.page import page

ROOT = Path(__file__).resolve().parents[2]
HERE = "studies/vit_training"
PAGE = ROOT / "docs/results/vit-training.md"
MODES = ("torch-eager", "torch-compile", "jax")
STACKS = "torch-eager,torch-compile,jax,detente"
# Its rows are void (docs/torch-xla.md) and a second a step: they are told once, and so is the session's own noise.
ONCE = f"{STACKS},torch-xla"
Found = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """``key`` names it among the lines; ``take`` measures it."""

    part: str
    key: str
    take: Callable[[], Found]


def this_machine() -> str:
    """Which machine this is, since it was started. Processors of one name differ: on one Xeon a bf16 step of this model
    took 3.1 s and on another 0.67. No figure of one is compared with the other's."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8] if sys.platform == "linux" else "one"


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    # A row that is void ends a comparison with 1, and is a figure; a comparison that was interrupted is none.
    if not done.stdout.strip() or done.returncode not in (0, 1):
        raise SystemExit(
            f"{' '.join(command)} ended with exit code {done.returncode} and is not stored: "
            "the same command of the study goes on from here"
        )
    return done.stdout


def loop(given: argparse.Namespace) -> Iterator[Figure]:
    """The study's loop, a process per figure, the modes in turns."""
    sizes = ("--batch", str(given.batch), "--layers", str(given.layers), "--image", str(given.image))
    for number, precision, mode in itertools.product(range(given.rounds), ("fp32", "bf16"), MODES):
        command = ("studies.vit_training.loop", mode, *sizes, "--precision", precision)

        def take(command: tuple[str, ...] = command) -> Found:
            return json.loads(run(*command).splitlines()[-1])

        yield Figure("loop", f"{mode} {precision} {number}", take)


def compare(given: argparse.Namespace, pair: str, stacks: str, *more: str) -> Found:
    """What ``detente compare`` found: its command, rows and verdicts."""
    sizes = ("--batch", str(given.batch), "--layers", str(given.layers), "--set", f"image={given.image}")
    command = ("compare", pair, "--stacks", stacks, *sizes, "--no-memory", *more)
    found = json.loads(run("detente", *command, "--format", "json"))
    if not any(cell["steady_s"] for cell in found["cells"]):
        told = "; ".join(f"{cell['label']}: {cell['reason']}" for cell in found["cells"])
        raise SystemExit(f"{' '.join(command)} measured nothing, and is not stored ({told})")
    keys = ("label", "status", "reason", "steady_s", "parity")
    return {
        "command": " ".join(["detente", *command]),
        "rows": [
            {k: cell[k] for k in keys}
            | {"findings": [[f["rule"], f["severity"], f["what"]] for f in cell["findings"]]}
            for cell in found["cells"]
        ],
        "verdicts": [
            {k: v[k] for k in ("a", "b", "word", "ratio", "low", "high")} for v in found["verdicts"]
        ],
    }


def pair(torch: str, jax: str) -> str:
    return f"{HERE}/in_torch.py:{torch},{HERE}/in_nnx.py:{jax}"


def exhibits(given: argparse.Namespace) -> Iterator[Figure]:
    """What the audit says of the study's loss, and of a loop that waits for nothing."""
    once = ("--blocks", "1", "--no-aa")
    waits = f"{HERE}/unsynchronised_torch.py:NeverWaits,{HERE}/unsynchronised_jax.py:NeverWaits"
    for key, models, stacks in (
        ("loss", pair("written", "as_published"), "jax"),
        ("synchronise", pair("written", "written"), waits),
    ):
        yield Figure(
            "exhibits", key, lambda models=models, stacks=stacks: compare(given, models, stacks, *once)
        )


def table(given: argparse.Namespace) -> Iterator[Figure]:
    """The study's question, asked of rows that are proved."""
    feeds = {
        "resident": (),
        "loader": ("--feed", "loader"),
        "loader, 1 worker": ("--feed", "loader", "--loader-workers", "1"),
    }
    asked = [
        *itertools.product(("resident",), ("written", "fused"), ("fp32", "bf16")),
        # What a loader adds is its own matter, not attention's.
        *itertools.product(("loader",), ("written",), ("fp32", "bf16")),
        ("loader, 1 worker", "written", "fp32"),
    ]
    for number, (feed, attention, precision) in enumerate(asked):
        options = ("--blocks", str(given.blocks), "--precision", precision, *feeds[feed])
        stacks = STACKS if number else ONCE
        options += ("--no-aa",) if number else ()
        yield Figure(
            "table",
            f"{attention}, {precision}, {feed}",
            lambda a=attention, s=stacks, o=options: compare(given, pair(a, a), s, *o),
        )


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Figure]]] = {
    "loop": loop,
    "exhibits": exhibits,
    "table": table,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"by comma: {', '.join(PARTS)}")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each mode of the study's loop")
    parser.add_argument("--blocks", type=int, default=5, help="processes of each row of the tables")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    wrong = [p for p in given.parts.split(",") if p not in PARTS]
    if wrong:
        parser.error(f"no part is called {wrong[0]!r}: there are {', '.join(PARTS)}")
    lines = given.page.with_suffix(".jsonl")
    if given.again:
        lines.unlink(missing_ok=True)
    size = {k: getattr(given, k) for k in ("batch", "layers", "image")}
    there = [json.loads(text) for text in lines.read_text().splitlines()] if lines.exists() else []
    other = next((line["size"] for line in there if line["size"] != size), None)
    if other is not None:
        parser.error(f"{lines} holds figures of {other}, not of {size}: name another --page, or --again")
    known = {(line["part"], line["key"]) for line in there}
    for part in given.parts.split(","):
        for figure in PARTS[part](given):
            if (part, figure.key) in known:
                continue
            line = {"part": part, "key": figure.key, "size": size, "processor": machine()["processor"]}
            line["machine"] = this_machine()
            there.append(line | {"found": figure.take()})
            with lines.open("a") as out:
                out.write(json.dumps(there[-1]) + "\n")
            given.page.write_text(page(there))
            print(f"{part}: {figure.key}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
