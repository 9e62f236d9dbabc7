"""Tuned choices, kept between processes: one small JSON file per program and machine."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jaxlib

from detente.bridge.choose.choice import Choice, Considered
from detente.bridge.folder import VARIABLE, trusted, write
from detente.bridge.graph import Graph

SCHEMA = "detente/choice/1"


def fingerprint(graph: Graph, extra: Any = None, device: Any = None) -> str:
    """Equal for the same program on the same kind of device with the same compiler; constants count by name and
    shape. What the batch calls its leaves does not count, so a choice that the command line made of a model serves the
    user's own program. ``extra`` is whatever else changes the executable (optimizer, precision); its ``repr`` must be
    stable."""
    device = device or jax.devices()[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    where = (device.platform, device.device_kind, cores, jax.__version__, jaxlib.__version__)
    inputs = [replace(i, name="") if i.kind == "batch" else i for i in graph.inputs]
    nodes = [(n.id, n.op, n.args, n.kwargs, n.out, n.draw, n.marks) for n in graph.nodes]
    text = repr((where, inputs, nodes, graph.outputs, extra))
    return hashlib.sha256(text.encode()).hexdigest()


def recall(folder: Path | None, key: str) -> Choice | None:
    """The choice that was tuned for this program here, or None. An unreadable file is no choice."""
    if folder is None:
        return None
    try:
        stored = json.loads((folder / f"{key}.json").read_text())
        if stored.pop("schema") != SCHEMA:
            return None
        rows = tuple(Considered(**row) for row in stored.pop("considered"))
        stored["iterations"] = tuple(stored["iterations"])
        stored["beside"] = tuple((str(name), float(s)) for name, s in stored.get("beside", ()))
        return Choice(considered=rows, **stored)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(folder: Path | None, key: str, choice: Choice) -> None:
    """Store a tuned choice. The file appears whole or not at all; where there is no room for it a warning says so, and
    training goes on."""
    if folder is None:
        return
    try:
        if (folder.parent.is_dir() or trusted(folder.parent)) and trusted(folder):
            write(folder, f"{key}.json", json.dumps({"schema": SCHEMA, **asdict(choice)}, indent=1).encode())
            return
        why = "it cannot be made, or is not this user's alone"
    except OSError as error:
        why = error.strerror or str(error)
    warnings.warn(
        f"the form that was measured ({choice.form}) is not kept in {folder} ({why}): the next process measures again; "
        f"form={choice.form!r} runs in it at once, and {VARIABLE} names another folder",
        stacklevel=2,
    )
