"""What the benchmarks of GPT-2's step share: the model, a process per figure, the cells in turns, the page.

A figure comes from a process of its own (the script itself with ``--one CELL``, which prints one line of JSON). The
cells take turns in a new random order in every round, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "docs/results"


@dataclass(frozen=True)
class Size:
    """A GPT-2 but for its depth, and its batch."""

    hidden: int
    heads: int
    vocab: int
    tokens: int
    batch: int

    def model(self, layers: int) -> tuple[Any, Any]:
        """``transformers``' GPT-2 in training mode with seeded weights, and token ids ``[batch, tokens]``."""
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=layers,
            n_embd=self.hidden,
            n_head=self.heads,
            vocab_size=self.vocab,
            n_positions=self.tokens,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = transformers.GPT2LMHeadModel(config).train()
        return model, torch.randint(0, self.vocab, (self.batch, self.tokens))

    def __str__(self) -> str:
        batch = f"batch {self.batch} x {self.tokens} tokens"
        return f"{self.heads} heads, vocabulary {self.vocab}, {batch}, AdamW, dropout."


def small(batch: int = 2, tokens: int = 64) -> Size:
    """GPT-2 Small's width."""
    return Size(768, 12, 50257, tokens, batch)


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--json", type=Path, help="write the rows here")
    made.add_argument(
        "--no-page", action="store_true", help="print, and leave the page in docs/results as it is"
    )
    made.add_argument("--one", nargs="+", metavar="CELL", help=argparse.SUPPRESS)
    return made


def figures(
    script: str, cells: Sequence[tuple[Any, ...]], rounds: int, options: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """A row per cell and round, as they come; exits with the end of what a failed process said."""
    order = random.Random(0)
    for number in range(rounds):
        for cell in order.sample(list(cells), len(cells)):
            command = [sys.executable, script, "--one", *map(str, cell), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(map(str, cell))} failed:\n{done.stderr[-3000:]}")
            yield {"round": number, **json.loads(done.stdout.splitlines()[-1])}


def command_line(script: str) -> str:
    """The command that makes a page, and what it ran on."""
    import jax
    import torch

    words = " ".join(["python", f"benchmarks/{Path(script).name}", *sys.argv[1:]])
    return f"`{words}`\n(jax {jax.__version__}, torch {torch.__version__}, {os.cpu_count()} CPU cores; "


def publish(
    given: argparse.Namespace, name: str, lines: Sequence[str], rows: Sequence[dict[str, Any]]
) -> None:
    """Print the page, and write it to ``docs/results/NAME.md``; the rows too, where a file was named."""
    text = "\n".join(lines)
    print(text)
    if given.json:
        given.json.write_text(json.dumps({"schema": f"detente/{name}/1", "rows": list(rows)}, indent=1))
    if not given.no_page:
        (RESULTS / f"{name}.md").write_text(text)
