"""The tables, a file for each domain. A row is added where it belongs; none is taken out for what it does here."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

from tests.third_party.row import Row


def _rows() -> tuple[Row, ...]:
    """Packages in turn, in the order in which the tables name them, and of each package its rows in the tables' order:
    the first row of every package, then the second of every one that has two. An interrupted run, or one of the
    first so many, has chosen nothing."""
    packages: dict[str, list[Row]] = {}
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        if found.name.startswith("_"):
            continue
        for row in importlib.import_module(f"{__name__}.{found.name}").ROWS:
            own = packages.setdefault(row.package, [])
            own.append(dataclasses.replace(row, domain=found.name.replace("_", " ")))
    most = max(map(len, packages.values()), default=0)
    rows = tuple(own[i] for i in range(most) for own in packages.values() if i < len(own))
    names = [(row.package, row.name) for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"rows of one name: {twice}")
    return rows


ROWS = _rows()
