"""The small MLP of every tutorial in every library: one table, each row proved beside PyTorch eager.

    python benchmarks/mlp_libraries.py      # 20 minutes on two quiet cores; writes docs/results/mlp-libraries.md
    python benchmarks/mlp_libraries.py --libraries nnx,keras --blocks 1 --page /tmp/page.md

Each library is a pair with the torch model (``examples/mlp``) and a session of its own, so that every JAX row stands
beside an eager row that was measured in turns with it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from asked import ROOT, asked

from detente.session.fingerprint import machine

PAGE = ROOT / "docs/results/mlp-libraries.md"
LIBRARIES = ("nnx", "linen", "equinox", "haiku", "keras")
# The other torch stacks stand beside the first library alone; the same rows again would say the same.
FIRST, OTHERS = "torch-eager,torch-compile,jax,detente", "torch-eager,jax"


def measured(target: str, stacks: str, blocks: int) -> dict[str, Any]:
    return asked("compare", target, "--stacks", stacks, "--blocks", str(blocks), "--no-memory")


def lines(name: str, found: dict[str, Any]) -> list[str]:
    told = []
    for cell in found["cells"]:
        steady, label = cell["steady_s"], cell["label"]
        if label.endswith("#aa"):
            continue
        against = next((v for v in found["verdicts"] if {v["a"], v["b"]} == {label, "torch-eager"}), None)
        ratio = "1" if label == "torch-eager" else "not told"
        if against and against["ratio"]:
            value = against["ratio"] if against["a"] == label else 1 / against["ratio"]
            ratio = f"{value:.2f}, {against['word']}"
        ms = f"{1e3 * steady['median']:.3f}" if steady else ""
        proof = f"{cell['parity']['same_function']}, {cell['parity']['same_precision']}"
        status = cell["status"] if cell["status"] == "ok" else f"{cell['status']}: {cell['reason']}"
        told.append(f"| {name} | {label} | {ms} | {ratio} | {proof} | {status} |")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    command = " ".join(["python benchmarks/mlp_libraries.py", *sys.argv[1:]])
    text = [
        "# The small MLP of every tutorial, in every library",
        "",
        f"`{command}`: `examples/mlp`, 64 rows through",
        f"32 x 64, 64 x 64 and 64 x 10, AdamW, fp32; each library a pair with the torch model, {given.blocks} blocks.",
        "*Of eager*: time over that of torch-eager in the same session. *Proof*: in float64, and at fp32. Processor:",
        f"{machine()['processor']}.",
        "",
        "| pair | row | step, ms | of eager | proof | status |",
        "|---|---|---:|---|---|---|",
    ]
    for k, library in enumerate(given.libraries.split(",")):
        target = f"examples/mlp/in_torch.py:make,examples/mlp/in_{library}.py:make"
        text += lines(f"torch, {library}", measured(target, OTHERS if k else FIRST, given.blocks))
        given.page.write_text("\n".join([*text, ""]))
    text += lines(
        "lightning", measured("examples/mlp/in_lightning.py:make", "torch-eager,detente", given.blocks)
    )
    given.page.write_text("\n".join([*text, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
