"""Where the prepared weights, batches and references of a workload lie, and whether they are there."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path

from detente.records.cell import Cell
from detente.records.contract import Contract
from detente.records.folders import cache_folder
from detente.session.fingerprint import hash_files
from detente.worker.reference import reference_name


def prepared_folder(cell: Cell, seed: int, batches: int) -> Path:
    """A folder named by everything that its content depends on: workload, size, seed, the versions that make the
    weights, and the source of the workload and of the reference."""
    root = Path(__file__).resolve().parent.parent
    files = [
        *(root / "workloads").rglob("*.py"),
        root / "worker/reference.py",
        root / "worker/sketch.py",
        root / "worker/jobs/prepare.py",
        root / "stacks/torch_eager.py",
        root / "stacks/torch_undrawn.py",
    ]
    own = cell.workload.rpartition(":")[0]
    if own.endswith(".py") and Path(own).is_file():
        files.append(Path(own))
    if cell.workload.startswith("hf:"):
        # A configuration file, or a checkpoint's folder: its content decides, not its path.
        named = Path(cell.workload.removeprefix("hf:").partition("?")[0])
        files += [named] if named.is_file() else sorted(p for p in named.rglob("*") if p.is_file())
    key = json.dumps(
        [
            cell.workload,
            cell.size,
            seed,
            batches,
            cell.device,
            _version("torch"),
            _version("transformers"),
            hash_files(files),
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() else "-" for c in cell.workload)[-40:]
    return cache_folder() / "prepared" / f"{name}-{cell.size}-{digest}"


def is_prepared(folder: Path, contract: Contract) -> bool:
    """Whether the folder holds this contract's reference; the JSON is written last."""
    return (folder / f"{reference_name(contract)}.json").exists() and (
        folder / "weights.safetensors"
    ).exists()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
