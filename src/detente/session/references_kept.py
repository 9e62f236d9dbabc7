"""The references of a session stay what they were when it first used them.

Every worker may write to the folder that its proof rests on, and what stands there is believed in this session and in
all later ones: an error of the reference's own, made a million times as large, lets anything pass. So the parent
remembers the digests of what it saw, and asks again behind each process.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from detente.records.cell import Cell
from detente.records.fault import MachineFault
from detente.worker.reference import digests, reference_name, window_name

# Kinds of processes that make references.
_MAKING = frozenset({"prepare", "weights"})


class References:
    """Of one session's workers: ``before`` and ``behind`` each."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str], tuple[str, ...]] = {}

    def before(self, kind: str, cell: Cell, folder: Path) -> None:
        """Remember what is there; nothing where there is none."""
        contract = cell.contract.resident()
        key = folder, reference_name(contract)
        if kind in _MAKING:
            self._known.pop(key, None)
        elif key not in self._known and (there := digests(folder, contract)):
            self._known[key] = there

    def behind(self, kind: str, cell: Cell, folder: Path) -> None:
        """Raises MachineFault where it is another one, and removes it: it is then prepared again."""
        contract = cell.contract.resident()
        known = self._known.get((folder, reference_name(contract)))
        if kind in _MAKING or known is None or digests(folder, contract) == known:
            return
        for stem in (reference_name(contract), window_name(contract)):
            with contextlib.suppress(OSError):
                (folder / f"{stem}.json").unlink()
        raise MachineFault(
            f"what {cell.label} is proved against was changed while its process of kind {kind} ran, in {folder}",
            "it is removed, and the next session prepares it anew; look at what that row, or whoever else may write "
            "there, does to the folder",
        )
