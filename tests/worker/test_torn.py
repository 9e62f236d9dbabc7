"""A machine that goes down, or a disk that is full, while something is prepared: what is torn is none, and is made
again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from detente.records.contract import CONTRACTS
from detente.records.kinks import Kinks
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
from detente.worker.tensorfile import is_whole, write_tensors

CONTRACT = CONTRACTS["gradient"]
STEMS = (reference_name(CONTRACT), window_name(CONTRACT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trace = Trace((1.0, 0.9, 0.8), {}, {"w": np.arange(6.0)}, {}, {}, frozenset({"w"}))
    for stem in STEMS:
        write_reference(tmp_path, stem, make_reference(trace))
    write_batches(tmp_path, [{"x": np.ones((2, 3), np.float32)}])
    write_kinks(tmp_path, Kinks())
    write_weights(tmp_path, {"w": np.arange(6, dtype=np.float32)})
    return tmp_path


def cut(file: Path, bytes_left: int) -> None:
    file.write_bytes(file.read_bytes()[:bytes_left])


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("kind", ["json", "safetensors"])
@pytest.mark.parametrize("left", [0, 5, 100])
def test_a_reference_that_is_cut_is_none(folder: Path, stem: str, kind: str, left: int) -> None:
    assert has_reference(folder, CONTRACT)
    cut(folder / f"{stem}.{kind}", left)
    assert not has_reference(folder, CONTRACT)
    with pytest.raises(ValueError):
        map_reference(folder, stem)


def test_one_that_says_something_else_is_none(folder: Path) -> None:
    """An error of the reference's own, a million times as large, would let anything pass."""
    file = folder / f"{STEMS[0]}.json"
    kept = json.loads(file.read_text())
    key = next(iter(kept["reference"]["entries"]))
    kept["reference"]["entries"][key][2] = 1e6
    file.write_text(json.dumps(kept))
    assert not has_reference(folder, CONTRACT)


def test_tensors_of_the_right_length_and_other_numbers_are_none(folder: Path) -> None:
    file = folder / f"{STEMS[1]}.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    assert not has_reference(folder, CONTRACT)


@pytest.mark.parametrize("name", ["weights.safetensors", "batches.safetensors", "kinks.json"])
@pytest.mark.parametrize("left", [0, 5, 40])
def test_weights_beside_something_torn_are_made_again(folder: Path, name: str, left: int) -> None:
    assert is_made(folder)
    cut(folder / name, left)
    assert not is_made(folder)


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    for tensors in ({}, {"a": np.ones(0)}, {"a": np.ones((2, 3)), "b": np.float32(1)}):
        write_tensors(tmp_path / "x", {n: np.asarray(a) for n, a in tensors.items()})
        assert is_whole(tmp_path / "x")
    assert not is_whole(tmp_path / "y")


def test_what_cannot_be_written_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / f"{STEMS[0]}.json"
    before = file.read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError):
        write_reference(folder, STEMS[0], make_reference(Trace((2.0,), {}, {}, {}, {}, frozenset())))
    assert file.read_text() == before and not [f for f in folder.iterdir() if f.name.startswith("tmp")]
    assert sorted(f.name for f in folder.iterdir()) == sorted(
        [
            *(f"{s}.{k}" for s in STEMS for k in ("json", "safetensors")),
            "batches.safetensors",
            "kinks.json",
            "weights.safetensors",
        ]
    )
