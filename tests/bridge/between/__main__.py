"""Every loop, then the fuzzer; writes docs/results/bridge-between.md: ``python -m tests.bridge.between --minutes 60``.

A loop's outcome is what was seen: *equal* where its losses, parameters and buffers were held against eager PyTorch's
and fit, *refused* where the bridge said no and its test wanted that, *different* where its test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import jax
import torch

from tests.bridge.between.loops import SEEN
from tests.commit_of import commit_of_bridge, told

LOOPS = ("test_loops.py", "test_further_loops.py", "test_reads_after_a_change.py")
# The kinds that must train equal, and parts of the names of their loops.
SIX = {
    "mean teacher": ("test_a_mean_teacher",),
    "clipping through `.data`": ("clips_through_data",),
    "annealed dropout and loss weights": ("test_annealed_dropout", "test_the_loss_holds_a_weight"),
    "counters and schedules in attributes": ("test_a_counter_in_forward", "moves_an_attribute"),
    "BatchNorm's momentum": ("schedules_momentum",),
    "unfreezing layer by layer": ("thaws_layer_by_layer",),
}
PAGE = Path("docs/results/bridge-between.md")
HEAD = """# Loops that change something between the bridge's steps

Made by `make test-between` (`python -m tests.bridge.between`). Each loop is written once and run twice, by eager
PyTorch and through the bridge; neither knows which. **equal**: losses, parameters and buffers agree; **refused**: the
bridge said no, by name, and the loop's test wants that; **held**: the test compares something else (what a reader saw,
that nothing was compiled again), and passed; **different**: the test failed.
"""


def loops() -> dict[str, str]:
    """Every loop's outcome, by the name of its test."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        seen, result = Path(folder, "seen"), Path(folder, "junit.xml")
        seen.touch()
        words = ["-q", "-n", "2", "--dist", "load", "-m", "between or not between", f"--junitxml={result}"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *words, *(str(here / name) for name in LOOPS)],
            env=os.environ | {SEEN: str(seen)},
            check=False,
        )
        said = [json.loads(line) for line in seen.read_text().splitlines()]
        cases = list(ElementTree.parse(result).getroot().iter("testcase"))
    by_test: dict[str, set[str]] = {}
    for record in said:
        by_test.setdefault(record["test"], set()).add(record["outcome"])
    found = {}
    for case in cases:
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcomes = by_test.get(name, set())
        failed = any(child.tag in ("failure", "error") for child in case)
        skipped = any(child.tag == "skipped" for child in case)
        if failed or skipped:
            found[name] = "different" if failed else "skipped"
        else:
            found[name] = next((o for o in ("refused", "equal") if o in outcomes), "held")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bridge.between")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = loops()
    words = ["--minutes", str(asked.minutes), "--seed", str(asked.seed)]
    fuzz = subprocess.run(
        [sys.executable, "-m", "tests.bridge.between.fuzz", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(fuzz.stdout)
    counts = Counter(found.values())
    text = [
        HEAD,
        f"{told([commit_of_bridge()])} torch {torch.__version__}, jax {jax.__version__}.",
        "",
        f"{len(found)} loops: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()) + ".",
        "",
        "| kind that must train equal | loops of it |",
        "|---|---|",
    ]
    for kind, parts in SIX.items():
        mine = Counter(outcome for name, outcome in found.items() if any(part in name for part in parts))
        text.append(f"| {kind} | {', '.join(f'{n} {o}' for o, n in mine.items()) or 'none'} |")
    text += [
        "",
        "## The fuzzer",
        "",
        f"`--minutes {asked.minutes:g} --seed {asked.seed}`; its last lines:",
        "",
        "```",
    ]
    text += [
        *fuzz.stdout.strip().splitlines()[-2:],
        "```",
        "",
        "## Every loop",
        "",
        "| loop | outcome |",
        "|---|---|",
    ]
    text += [f"| {name.replace('|', '/')} | {outcome} |" for name, outcome in sorted(found.items())]
    PAGE.write_text("\n".join(text) + "\n")
    return 1 if fuzz.returncode or counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
