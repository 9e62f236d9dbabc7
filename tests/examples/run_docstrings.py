"""``run_docstrings.py MODULE...``: run the examples of these modules; the last line says how many of each."""

from __future__ import annotations

import doctest
import importlib
import json
import sys
from typing import Any

FRAMEWORKS = {"torch", "jax", "flax", "optax", "transformers", "tensorflow"}


def given(module: str) -> dict[str, Any]:
    """The model, loss and batch that the bridge's two doors speak of."""
    if module not in (
        "detente.bridge.doors.entry",
        "detente.bridge.doors.pure",
        "detente.bridge.doors.extension",
    ):
        return {}
    import jax
    import torch

    import detente

    torch.manual_seed(0)
    return {
        "detente": detente,
        "torch": torch,
        "jax": jax,
        "model": torch.nn.Linear(3, 1),
        "loss": lambda model, batch: model(batch["x"]).square().mean(),
        "batch": {"x": torch.ones(2, 3)},
    }


def main(names: list[str]) -> None:
    ran = {}
    for name in names:
        module = importlib.import_module(name)
        space = {**vars(module), **given(name)}
        found = doctest.DocTestFinder(exclude_empty=True).find(module, name, globs=space)
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        for test in found:
            runner.run(test)
        done = runner.summarize(verbose=False)
        ran[name] = (sum(len(t.examples) for t in found), done.attempted, done.failed)
    print(json.dumps({"ran": ran, "frameworks": sorted(FRAMEWORKS & sys.modules.keys())}))


if __name__ == "__main__":
    main(sys.argv[1:])
