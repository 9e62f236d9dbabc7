"""Where the prepared weights, batches and references of a workload lie, and whether they are there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from detente.records.cell import Cell
from detente.records.contract import Contract
from detente.records.folders import cache_folder
from detente.records.precision import drawn_at
from detente.session.fingerprint import hash_files
from detente.session.sources import Sources, sources_of
from detente.stacks.catalogue import find_entry, maker_of
from detente.worker.maker import MAKERS
from detente.worker.prepared import is_made
from detente.worker.reference import has_reference
from detente.worker.run import JOBS
from detente.workloads.catalogue import find_workload, is_own, spec_of
from detente.workloads.own.spec import functions_of


def prepared_folder(cell: Cell, seed: int, batches: int) -> Path:
    """A folder named by everything that its content depends on: workload, size, seed, the source that makes it, and
    the versions of what that source imports. Another workload's files are no part of it."""
    made = sources_of_making(cell.workload)
    key = json.dumps(
        [
            cell.workload,
            cell.size,
            seed,
            batches,
            cell.device,
            drawn_at(cell.contract.precision),
            made.versions(),
            hash_files(made.files),
            hash_files(data_of(cell.workload)),
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() else "-" for c in cell.workload)[-40:]
    # Of a size with many overrides no more than a file's name holds: the digest knows it whole.
    return cache_folder() / "prepared" / f"{name}-{cell.size[:60]}-{digest}"


def sources_of_making(workload: str) -> Sources:
    """What runs when the weights, batches and references of a workload are made: the job, the workload's description
    and its definition, a model file of the user's, and whatever these import."""
    found = find_workload(workload)
    maker = maker_of(found)
    modules = (
        JOBS["prepare"],
        MAKERS[maker],
        spec_of(workload),
        found.definitions[find_entry(maker).definition],
    )
    return sources_of(modules, own_files(workload))


def own_files(workload: str) -> tuple[Path, ...]:
    """The user's files that a workload is named by."""
    if not is_own(workload):
        return ()
    files = [Path(side.rpartition(":")[0]).expanduser() for side in functions_of(workload).values()]
    return tuple(file for file in files if file.suffix == ".py" and file.is_file())


def data_of(workload: str) -> tuple[Path, ...]:
    """Files that are read rather than imported: a configuration, or a checkpoint's folder. Its content decides, not its
    path."""
    side = functions_of(workload).get("torch", "") if is_own(workload) else ""
    if not side.startswith("hf:"):
        return ()
    named = Path(side.removeprefix("hf:").partition("?")[0]).expanduser()
    return (named,) if named.is_file() else tuple(sorted(p for p in named.rglob("*") if p.is_file()))


def is_prepared(folder: Path, contract: Contract) -> bool:
    """Whether the folder holds this contract's reference and the weights."""
    return has_reference(folder, contract) and has_weights(folder)


def has_weights(folder: Path) -> bool:
    """Whether a model was built there, for whatever contract."""
    return is_made(folder)
