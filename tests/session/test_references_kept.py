"""What rows are proved against is asked for again behind each process: no worker may write its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.fault import MachineFault
from detente.records.kinks import Kinks
from detente.session.references_kept import References
from detente.worker.prepared import is_made, write_batches, write_kinks, write_weights
from detente.worker.reference import (
    Trace,
    has_reference,
    make_reference,
    map_reference,
    reference_name,
    window_name,
    write_reference,
)

CELL = Cell("ffn", "tiny", "jax", CONTRACTS["gradient"], "cpu", "jax")
STEMS = (reference_name(CELL.contract), window_name(CELL.contract))


def write(folder: Path, error: float = 0.0) -> None:
    trace = Trace((1.0,), {}, {"w": np.arange(6.0)}, {}, {}, frozenset({"w"}))
    made = make_reference(trace)
    entries = {key: (n, size, error) for key, (n, size, _) in made.entries.items()}
    for stem in STEMS:
        write_reference(folder, stem, type(made)(made.sketches, entries))


def lets_anything_pass(folder: Path) -> None:
    """Whole, with a digest of its own."""
    write(folder, 1e6)


def removed(folder: Path) -> None:
    (folder / f"{STEMS[0]}.json").unlink()


def garbled(folder: Path) -> None:
    (folder / f"{STEMS[1]}.safetensors").write_bytes(b"")


@pytest.mark.parametrize("change", [lets_anything_pass, removed, garbled])
@pytest.mark.parametrize("kind", ["time", "prove"])
def test_another_reference_ends_the_session_and_is_removed(
    kind: str, change: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path)
    kept = References()
    kept.before(kind, CELL, tmp_path)
    kept.behind(kind, CELL, tmp_path)
    kept.before(kind, CELL, tmp_path)
    change(tmp_path)
    with pytest.raises(MachineFault, match="jax is proved against was changed while"):
        kept.behind(kind, CELL, tmp_path)
    assert not has_reference(tmp_path, CELL.contract), "the next session makes it again"


def test_who_prepares_may(tmp_path: Path) -> None:
    kept = References()
    write(tmp_path)
    kept.before("time", CELL, tmp_path)
    kept.before("prepare", CELL, tmp_path)
    write(tmp_path, 0.5)
    kept.behind("prepare", CELL, tmp_path)
    kept.before("time", CELL, tmp_path)
    kept.behind("time", CELL, tmp_path)
    assert max(e for _, _, e in map_reference(tmp_path, STEMS[0]).entries.values()) == 0.5


def test_where_there_is_none_nothing_is_asked(tmp_path: Path) -> None:
    kept = References()
    kept.before("time", CELL, tmp_path)
    write(tmp_path)
    kept.behind("time", CELL, tmp_path)
    assert json.loads((tmp_path / f"{STEMS[0]}.json").read_text())["digest"]


def _made(folder: Path) -> None:
    write_weights(folder, {"w": np.zeros(4, np.float32)})
    write_batches(folder, [{"x": np.ones(3, np.float32)}])
    write_kinks(folder, Kinks())


@pytest.mark.parametrize("name", ["weights.safetensors", "batches.safetensors", "kinks.json"])
@pytest.mark.parametrize("gone", [False, True])
def test_what_every_row_loads_is_what_was_prepared(tmp_path: Path, name: str, gone: bool) -> None:
    """A row that wrote other weights there had all rows behind it void, in every later session, too."""
    kept, file = References(), tmp_path / name
    _made(tmp_path)
    kept.before("time", CELL, tmp_path)
    file.touch()  # another time, and the same content
    kept.behind("time", CELL, tmp_path)
    kept.before("time", CELL, tmp_path)
    file.unlink() if gone else file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(MachineFault, match=name):
        kept.behind("time", CELL, tmp_path)
    assert not is_made(tmp_path), "the next session makes it again"


def test_who_makes_them_may_beside_others(tmp_path: Path) -> None:
    kept = References()
    _made(tmp_path)
    kept.before("prove", CELL, tmp_path)
    kept.before("prepare", CELL, tmp_path)
    kept.before("plan", CELL, tmp_path)
    write_weights(tmp_path, {"w": np.ones(4, np.float32)})
    for kind in ("plan", "prepare", "prove"):
        kept.behind(kind, CELL, tmp_path)
    kept.before("time", CELL, tmp_path)
    kept.behind("time", CELL, tmp_path)
