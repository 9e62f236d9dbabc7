"""Where the proof of level one is cached: once per workload, stack and versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from detente.records.cell import Cell
from detente.records.codec import dumps, from_json
from detente.records.folders import cache_folder
from detente.records.limits import check_record
from detente.records.session import Process
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


def read_proof(file: Path) -> Process | None:
    """The proof in the cache; None when there is none, or when what is there is torn: it is then made again."""
    try:
        process = from_json(Process, json.loads(file.read_text()))
        check_record(process, "Process")
        return process
    except (OSError, ValueError, RecursionError):
        return None


def keep_proof(file: Path, process: Process) -> str:
    """Write a proof to the cache, whole or not at all. What fails only costs the next session a proof: it is
    returned in words."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(dumps(process))
        fresh.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        return f"the proof cannot be cached in {file.parent}: {os.strerror(error.errno or 0)}; the session has it"
    return ""


@cache
def _versions(python: str) -> list[str]:
    told = subprocess.run(
        [python, "-c", _ASK, *_DISTRIBUTIONS], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(told.stdout)
