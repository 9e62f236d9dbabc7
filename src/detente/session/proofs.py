"""Where the proof of level one is cached: once per workload, stack, environment and machine."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from detente.records.cell import Cell
from detente.records.folders import cache_folder
from detente.session.fingerprint import hash_files, machine, source_hash
from detente.session.installed import installed_hash
from detente.session.layout import python_for
from detente.session.prepared import data_of, own_files
from detente.session.sources import sources_of
from detente.stacks.catalogue import find_entry


def proof_file(cell: Cell) -> Path:
    """The cached proof of a cell. Its name holds everything the proof depends on, so that whatever changes makes a new
    one: the cell, our source, everything that is installed where the stack runs, its interpreter, the processor, and
    the user's own files with what they import."""
    entry = find_entry(cell.stack)
    stack_file = Path(entry.target.rpartition(":")[0])
    own = sources_of(files=[*([stack_file] if stack_file.suffix == ".py" else []), *own_files(cell.workload)])
    key = json.dumps(
        [
            cell.key,
            cell.stack,
            installed_hash(str(python_for(entry) or sys.executable)),
            machine()["processor"],
            source_hash(),
            hash_files(own.files),
            hash_files(data_of(cell.workload)),
        ]
    )
    return cache_folder() / "proofs" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
