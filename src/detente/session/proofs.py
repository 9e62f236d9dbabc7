"""Where the proof of level one is cached: once per workload, stack and versions."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

from detente.records.cell import Cell
from detente.records.folders import cache_folder
from detente.session.fingerprint import source_hash
from detente.session.layout import python_for
from detente.stacks.catalogue import find_entry

# What a stack of any framework may compute with.
_DISTRIBUTIONS = ("torch", "torch_xla", "transformers", "jax", "jaxlib", "flax", "optax", "numpy")
_ASK = (
    "import importlib.metadata as m, json, sys\n"
    "have = {d.metadata['Name'].lower().replace('-', '_'): d.version for d in m.distributions()}\n"
    "print(json.dumps([have.get(n, '') for n in sys.argv[1:]]))"
)


def proof_file(cell: Cell) -> Path:
    """The cached proof of a cell. Its name holds everything the proof depends on, a stack's own file included, so that
    a changed version or source makes a new one."""
    entry = find_entry(cell.stack)
    own = entry.target.rpartition(":")[0]
    file = Path(own).read_text() if own.endswith(".py") else ""
    model = cell.workload.rpartition(":")[0]
    model_file = Path(model).read_text() if model.endswith(".py") else ""
    key = json.dumps(
        [
            cell.key,
            cell.stack,
            _versions(str(python_for(entry) or sys.executable)),
            source_hash(),
            file,
            model_file,
        ]
    )
    return cache_folder() / "proofs" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


@cache
def _versions(python: str) -> list[str]:
    told = subprocess.run(
        [python, "-c", _ASK, *_DISTRIBUTIONS], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(told.stdout)
