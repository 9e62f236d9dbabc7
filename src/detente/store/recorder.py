"""The database as a recorder, where SQLAlchemy is installed; measuring alone needs none."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from detente.records.folders import data_folder

if TYPE_CHECKING:
    from detente.store.sessions import Store


def open_recorder() -> Store | None:
    """The store in the user's data folder; None without SQLAlchemy. Raises StoreFault (see database.connect)."""
    if importlib.util.find_spec("sqlalchemy") is None:
        return None
    from detente.store.sessions import open_store

    return open_store(data_folder())
