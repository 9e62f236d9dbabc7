"""What it costs, before every step, to know that nothing was changed: microseconds, the best of some hundred looks.

python benchmarks/bridge_watch.py        # prints the table; writes docs/results/bridge-watch.md

Two models: one of 40 modules, and one of 200 parameters, 500 modules, 900 attributes and 600 tensors of optimizer
state that a loop has read once, and holds on to or not. What a step asks is timed alone (``Step._take_over`` with
nothing changed, and the mode of every module), and the whole call beside it. The limits are 50 and 200 us.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import detente
from detente.session.fingerprint import machine

PAGE = Path(__file__).resolve().parent.parent / "docs/results/bridge-watch.md"
LOOKS, ROUNDS = 200, 7


class Part(nn.Module):
    """One product and numbers that forward reads; ``wide`` adds modules and attributes around it."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4) / 4), nn.Parameter(torch.zeros(4))
        self.scale, self.shift, self.power = 1.0, 0.5, 1
        self.cfg = {"a": 1.0, "b": 2.0}
        self.rest = nn.Sequential(*(nn.Identity() for _ in range(wide)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ self.weight * self.scale + self.bias * self.cfg["a"] / self.cfg["b"]
        return self.rest(out) * self.power + self.shift


def model(parts: int, wide: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Part(wide) for _ in range(parts)))


# Name, model, whether the loop holds on to the moments that it read, limit in microseconds.
CASES: tuple[tuple[str, Callable[[], nn.Module], bool, float], ...] = (
    ("40 modules", lambda: model(13, 1), False, 50.0),
    ("40 modules, the moments held", lambda: model(13, 1), True, 50.0),
    ("200 parameters, 500 modules", lambda: model(100, 3), False, 200.0),
    ("200 parameters, 500 modules, the moments held", lambda: model(100, 3), True, 200.0),
)


def best_us(look: Callable[[], Any]) -> float:
    """The best round's mean."""
    found = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(LOOKS):
            look()
        found.append((time.perf_counter() - begun) / LOOKS)
    return 1e6 * min(found)


def measure(make: Callable[[], nn.Module], keeps: bool) -> dict[str, float]:
    module, batch = make(), torch.randn(4, 4)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    step = detente.compile(
        module, lambda m, b: m(b).square().mean(), optimizer, example_batch=batch, cache=False
    )
    for _ in range(3):
        float(step(batch))
    # A loop has read every moment, and holds them on or does not: those that it holds are watched.
    read = [list(held.values()) for held in optimizer.state.values()]
    if not keeps:
        del read
    float(step(batch))
    found = step._around._sources
    looked_at = len(found.slots) + len(found.cells) + len(found.hooks)
    moments = sum(isinstance(v, torch.Tensor) for held in dict.values(optimizer.state) for v in held.values())
    held_on = len(step._held_moments)
    assert held_on == moments if keeps else held_on <= 1, (held_on, moments, keeps)
    return {
        "modules": len(list(module.modules())),
        "parameters": len(list(module.parameters())),
        "values of Python": looked_at,
        "state": moments,
        "us": best_us(lambda: (step._take_over(), step._mode)),
        "step": best_us(lambda: float(step(batch))),
    }


def main() -> int:
    warnings.simplefilter("ignore")
    lines = [
        "# What it costs to see that nothing was changed",
        "",
        f"`python benchmarks/bridge_watch.py`, best of {ROUNDS} rounds of {LOOKS}. "
        f"Processor: {machine()['processor']}; torch {torch.__version__}.",
        "",
        "| model | modules | parameters | state tensors | values of Python | watch, us | limit | whole step, us |",
        "|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for name, make, keeps, limit in CASES:
        found = measure(make, keeps)
        good &= found["us"] <= limit
        lines.append(
            f"| {name} | {found['modules']:.0f} | {found['parameters']:.0f} | {found['state']:.0f} | "
            f"{found['values of Python']:.0f} | {found['us']:.0f} | {limit:.0f} | {found['step']:.0f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    PAGE.write_text(text, encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
