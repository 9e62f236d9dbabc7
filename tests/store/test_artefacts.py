"""Artefacts are kept once, whole or not at all, and are checked when they are read."""

from __future__ import annotations

import hashlib

import pytest

from detente.records.fault import StoreFault
from detente.store.artefacts import Artefacts


def test_kept_once_by_content(tmp_path):
    artefacts = Artefacts(tmp_path / "artefacts")
    name = artefacts.add(b"module {}")
    assert name == hashlib.sha256(b"module {}").hexdigest() == artefacts.add(b"module {}")
    assert artefacts.read(name) == b"module {}"
    assert [p.name for p in (tmp_path / "artefacts").rglob("*") if p.is_file()] == [name]


def test_damage_is_found(tmp_path):
    artefacts = Artefacts(tmp_path)
    name = artefacts.add(b"module {}")
    artefacts.path(name).write_bytes(b"module []")
    with pytest.raises(StoreFault, match="is damaged"):
        artefacts.read(name)
    # A torn copy (another length) is replaced when the same bytes come again.
    artefacts.path(name).write_bytes(b"mod")
    artefacts.add(b"module {}")
    assert artefacts.read(name) == b"module {}"


def test_absent_and_impossible_names(tmp_path):
    artefacts = Artefacts(tmp_path)
    with pytest.raises(StoreFault, match="cannot read"):
        artefacts.read("0" * 64)
    with pytest.raises(StoreFault, match="is not the SHA-256"):
        artefacts.read("../../etc/passwd")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFault, match="cannot write"):
        Artefacts(tmp_path / "file").add(b"x")
