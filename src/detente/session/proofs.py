"""Where the proof of level one is cached: once per workload, stack, environment and machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

from detente.records.cell import Cell
from detente.records.codec import dumps, from_json
from detente.records.folders import cache_folder
from detente.records.limits import check_record
from detente.records.session import Process
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
            cell.arm.name,
            installed_hash(str(python_for(entry, cell.arm) or sys.executable)),
            machine()["processor"],
            source_hash(),
            hash_files(own.files),
            hash_files(data_of(cell.workload)),
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
