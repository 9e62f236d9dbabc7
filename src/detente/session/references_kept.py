"""The references of a session stay what they were when it first used them.

Every worker may write to the folder that its proof rests on, and what stands there is believed in this session and in
all later ones: an error of the reference's own, made a million times as large, lets anything pass. So the parent
remembers the digests of what it saw, and asks again behind each process. The same of the weights and batches that every
row loads, and of the kinks that say how the reference rounds: a process that wrote others there had every row behind it
void, in this session and in all later ones.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from detente.records.cell import Cell
from detente.records.fault import MachineFault
from detente.session.fingerprint import file_digest
from detente.worker.prepared import MADE
from detente.worker.reference import digests, reference_name, window_name

# Kinds of processes that make references.
_MAKING = frozenset({"prepare", "weights"})
# Larger files are not read through for it: the weights of 8 billion parameters take half a minute.
_LARGEST = 1 << 30


class References:
    """Of one session's workers: ``before`` and ``behind`` each."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str], tuple[str, ...]] = {}
        self._made: dict[Path, dict[str, str]] = {}
        self._being_made: set[Path] = set()

    def before(self, kind: str, cell: Cell, folder: Path) -> None:
        """Remember what is there; nothing where there is none."""
        contract = cell.contract.resident()
        key = folder, reference_name(contract)
        if kind in _MAKING:
            self._known.pop(key, None)
            self._made.pop(folder, None)
            self._being_made.add(folder)
            return
        if folder not in self._made and folder not in self._being_made:
            self._made[folder] = _made(folder)
        if key not in self._known and (there := digests(folder, contract)):
            self._known[key] = there

    def behind(self, kind: str, cell: Cell, folder: Path) -> None:
        """Raises MachineFault where it is another one, and removes it: it is then prepared again."""
        if kind in _MAKING:
            self._being_made.discard(folder)
            return
        contract = cell.contract.resident()
        known = self._known.get((folder, reference_name(contract)))
        other = _others(self._made.get(folder, {}), folder)
        if not other and (known is None or digests(folder, contract) == known):
            return
        stems = (reference_name(contract), window_name(contract))
        for name in (*other, *(f"{stem}.json" for stem in stems)):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        what = f"what rows load ({', '.join(other)})" if other else f"what {cell.label} is proved against"
        raise MachineFault(
            f"{what} was changed while the process of {cell.label} of kind {kind} ran, in {folder}",
            "it is removed, and the next session prepares it anew; look at what that row, or whoever else may write "
            "there, does to the folder",
        )


def _made(folder: Path) -> dict[str, str]:
    """What rows load, by name: a digest of each file. One that is as it was is not read again (``file_digest``)."""
    there = (folder / name for name in MADE)
    return {f.name: file_digest(f) for f in there if f.is_file() and f.stat().st_size <= _LARGEST}


def _others(before: dict[str, str], folder: Path) -> list[str]:
    """Which of these files are others now, or gone."""
    now = _made(folder) if before else {}
    return [name for name, digest in before.items() if now.get(name) != digest]
