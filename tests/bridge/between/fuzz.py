"""Draws plans of changes between steps and runs each in eager PyTorch and through the bridge.

PYTHONPATH=src:. python -m tests.bridge.between.fuzz [--minutes 60] [--seed 0]

A plan is equal (losses, what was read, parameters, buffers), refused, or different. A different one is shrunk by
hypothesis to the shortest plan that is, and printed as it is drawn. Ends with 1 where one was different, or where less
than 70 % of the plans were equal.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st

from detente import bridge
from tests.bridge.between.changes import CHANGES, Fuzzed, criterion
from tests.bridge.between.loops import World, batches, run

STEPS = 6
# At least so many plans of a hundred are equal; the others are refused.
EQUAL = 70
ROUND = 20
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "sgd": lambda p: torch.optim.SGD(p, lr=5e-2, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}
# (before which step, which change, its number); in the order of the steps.
Plan = list[tuple[int, str, float]]
PLANS = st.lists(
    st.tuples(
        st.integers(1, STEPS - 1), st.sampled_from(sorted(CHANGES)), st.sampled_from([0.0, 0.3, 0.7, 1.0])
    ),
    min_size=1,
    max_size=8,
)


def at(change: tuple[int, str, float]) -> int:
    """Before which step; those before the same one stay in the order in which they were drawn."""
    return change[0]


def outcome(plan: Plan, optimizer: str) -> str:
    """``equal``, ``refused``, or what is different."""

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(STEPS)):
            world.more["batch"] = batch
            for at, name, value in plan:
                if at == i:
                    losses += CHANGES[name](world, value) or []
            losses.append(world.step(batch))
        return losses

    how: dict[str, Any] = {"build": Fuzzed, "loss": criterion, "optimizer": OPTIMIZERS[optimizer]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Fuzzed.scale = 1.0
        wanted, state, _ = run(loop, bridge=False, **how)
        Fuzzed.scale = 1.0
        try:
            found, mine, _ = run(loop, bridge=True, **how)
        except bridge.Refused:
            return "refused"
        except Exception as error:
            return f"it raised {type(error).__name__}: {error}"
    if not torch.allclose(torch.tensor(found), torch.tensor(wanted), rtol=1e-3, atol=1e-4, equal_nan=True):
        return f"losses {found} and not {wanted}"
    far = [n for n in state if not torch.allclose(mine[n], state[n], rtol=1e-3, atol=2e-4, equal_nan=True)]
    return f"{', '.join(far)} at the end" if far else "equal"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bridge.between.fuzz")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    until, number = time.monotonic() + 60 * asked.minutes, asked.seed
    seen: Counter[str] = Counter()
    different: list[str] = []
    while time.monotonic() < until and not different:

        @hypothesis.seed(number)
        @hypothesis.settings(max_examples=ROUND, deadline=None, database=None, print_blob=False)
        @hypothesis.given(PLANS, st.sampled_from(sorted(OPTIMIZERS)))
        def trial(plan: Plan, optimizer: str) -> None:
            told = outcome(sorted(plan, key=at), optimizer)
            seen[told if told in ("equal", "refused") else "different"] += 1
            assert told in ("equal", "refused"), f"{optimizer} {sorted(plan, key=at)}: {told}"

        try:
            trial()
        except AssertionError as error:
            different.append(str(error))
        number += 1
        print(f"{dict(seen)} after {number - asked.seed} rounds", flush=True)
    for what in different:
        print(f"DIFFERENT (seed {number - 1}): {what}")
    plans = seen["equal"] + seen["refused"]
    share = 100 * seen["equal"] / max(1, plans)
    print(f"{plans} plans: {share:.0f} % equal, {seen['refused']} refused, {seen['different']} different")
    return 1 if different or share < EQUAL else 0


if __name__ == "__main__":
    sys.exit(main())
