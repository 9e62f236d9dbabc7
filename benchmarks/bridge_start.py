"""How long the bridge takes to its first loss on GPT-2 Small: by certificate, with an empty cache and with a full one.

python benchmarks/bridge_start.py [rounds]        # prints the table; writes docs/results/bridge-start.md

Every figure is a fresh process; `cold` begins with an empty cache folder, `warm` with what the cold one left there.
The clock starts at a built model (imports and weights are there) and stops when the first loss is a Python float.
The second step is timed too, because a full certificate is made beside it and ends before it returns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs/results/bridge-start.md"
CERTIFICATES = ("none", "short", "full")
COLUMNS = ("first loss", "second loss", "export", "lower", "compile")


def measure(certificate: str) -> dict[str, float]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import detente

    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ids = torch.randint(0, 50257, (2, 64))
    import jax

    jax.devices()  # the runtime's own start is no part of the bridge

    start = time.perf_counter()
    step = detente.compile(
        model,
        lambda m, b: m(input_ids=b, labels=b).loss,
        optimizer,
        example_batch=ids,
        certificate=certificate,
    )
    float(step(ids))
    first = time.perf_counter()
    float(step(ids))
    second = time.perf_counter()
    seconds = step.programs[0].seconds
    return {"first loss": first - start, "second loss": second - first} | {
        name: seconds[name] for name in COLUMNS if name in seconds
    }


def fresh(certificate: str, cache: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", certificate],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "DETENTE_BRIDGE_CACHE": cache,
            "OMP_NUM_THREADS": "2",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(rounds: int) -> None:
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for certificate in CERTIFICATES:
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    found.setdefault((certificate, state), []).append(fresh(certificate, cache))
    lines = [
        "# From a built model to the first loss",
        "",
        f"`python benchmarks/bridge_start.py {rounds}`: GPT-2 Small with dropout, batch 2 x 64, AdamW, fp32, two CPU "
        f"threads; medians of {rounds} fresh processes each, in turns, in seconds. A warm process takes the program, "
        "and its certificate, from the cache: the times of its export and compilation are those of the process that "
        "made them.",
        "",
        "| certificate | cache | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---:|" * len(COLUMNS),
    ]
    for (certificate, state), runs in found.items():
        cells = [f"{statistics.median(run.get(name, 0.0) for run in runs):.2f}" for name in COLUMNS]
        lines.append(f"| {certificate} | {state} | " + " | ".join(cells) + " |")
    middle = {key: statistics.median(run["first loss"] for run in runs) for key, runs in found.items()}
    lines += ["", "Warm over cold, first loss: "]
    lines[-1] += ", ".join(f"{c} {middle[c, 'warm'] / middle[c, 'cold']:.2f}" for c in CERTIFICATES) + "."
    text = "\n".join(lines) + "\n"
    print(text)
    OUT.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
