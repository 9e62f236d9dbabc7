"""What an environment is made of, as a table."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from detente.records.fault import MachineFault, UsageFault
from detente.records.nearest import did_you_mean


@dataclass(frozen=True)
class Recipe:
    """An environment that ``detente stacks add`` can make.

    packages   exact pins of what we ask for; what they pull in is recorded, not pinned
    probe      modules that must import before the environment counts as made
    size       bytes on disk when it is made (measured on Linux x86-64, Python 3.11)
    download   bytes fetched when nothing is cached (measured)
    pythons    minor versions of Python 3 for which every package has a wheel
    systems    (operating system, processor) pairs likewise
    note       one sentence for a user who wonders about the size
    alone      without what the packages depend on: plug-ins of libraries that lie in detente's own environment, whose
               workers look for them in this one
    """

    name: str
    what: str
    packages: tuple[str, ...]
    probe: tuple[str, ...]
    size: int
    download: int
    pythons: tuple[int, ...]
    systems: tuple[tuple[str, str], ...]
    note: str = ""
    alone: bool = False


RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe(
            "torch-xla",
            "PyTorch/XLA for the stacks torch-xla and torch-xla-compile",
            # torch_xla is built against one torch; the last pair that both publish is 2.9.0.
            (
                "torch==2.9.0",
                "torch_xla==2.9.0",
                "transformers==5.23.0",
                "numpy==2.4.6",
                "safetensors==0.8.0",
                "psutil==7.2.2",
            ),
            ("torch", "torch_xla", "transformers", "numpy", "safetensors"),
            size=7_700_000_000,
            download=3_600_000_000,
            pythons=(11, 12, 13),
            systems=(("Linux", "x86_64"),),
            note="most of it is CUDA libraries that torch 2.9.0 depends on; no GPU is needed",
        ),
        Recipe(
            "jax-0.7.1",
            "the JAX of torch_xla 2.9's age, for rows under the arm compiler=0.7.1",
            # torch_xla 2.9.0's own metadata asks for this jax (its extra `pallas`).
            (
                "jax==0.7.1",
                "jaxlib==0.7.1",
                "flax==0.12.0",
                "optax==0.2.8",
                "numpy==2.4.6",
                "safetensors==0.8.0",
                "psutil==7.2.2",
            ),
            ("jax", "flax", "optax", "numpy", "safetensors"),
            size=740_000_000,
            download=230_000_000,
            pythons=(11, 12, 13),
            systems=(("Linux", "x86_64"),),
        ),
        Recipe(
            "chips",
            "compilers for TPUs and NVIDIA GPUs that are not here, for `detente fits --chip`",
            # Plug-ins of one jax; libtpu as that jax asks for it (its extra `tpu`).
            ("libtpu==0.0.42.1", "jax-cuda12-pjrt==0.10.2", "jax-cuda12-plugin==0.10.2"),
            ("libtpu", "jax_cuda12_plugin"),
            size=1_250_000_000,
            download=320_000_000,
            pythons=(11, 12, 13),
            systems=(("Linux", "x86_64"),),
            note="no CUDA library, no driver and no TPU is needed",
            alone=True,
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """Raises UsageFault with the nearest name when there is none."""
    if name in RECIPES:
        return RECIPES[name]
    raise UsageFault(
        f"no environment is called {name!r}" + did_you_mean(name, RECIPES),
        f"these can be added: {', '.join(RECIPES)}",
    )


def check_machine(
    recipe: Recipe,
    minor: int = sys.version_info.minor,
    system: tuple[str, str] | None = None,
) -> None:
    """Raises MachineFault where the recipe's packages publish nothing for this Python or this machine."""
    found = system or (platform.system(), platform.machine())
    if found not in recipe.systems:
        wanted = ", ".join(f"{s} on {m}" for s, m in recipe.systems)
        raise MachineFault(
            f"{recipe.name} cannot be added: its packages exist for {wanted}, this is {found[0]} on {found[1]}",
            "measure it on such a machine and bring the session here: detente export, detente import",
        )
    if minor not in recipe.pythons:
        wanted = ", ".join(f"3.{m}" for m in recipe.pythons)
        raise MachineFault(
            f"{recipe.name} cannot be added: its packages exist for Python {wanted}, this is 3.{minor}",
            "run detente under one of those versions; the environment takes its Python from detente's",
        )
