"""The tables, a file for each domain. A row is added where it belongs; none is taken out for what it does here."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

from tests.third_party.row import Row


def _rows() -> tuple[Row, ...]:
    """Domains in turn, so that an interrupted run has seen all of them."""
    tables = []
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        if found.name.startswith("_"):
            continue
        table = importlib.import_module(f"{__name__}.{found.name}").ROWS
        tables.append([dataclasses.replace(row, domain=found.name.replace("_", " ")) for row in table])
    most = max(map(len, tables), default=0)
    rows = tuple(table[i] for i in range(most) for table in tables if i < len(table))
    names = [(row.package, row.name) for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"rows of one name: {twice}")
    return rows


ROWS = _rows()
