"""The profiles of one step in the bridge and in eager PyTorch, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detente.programs.shown_profile import profile_lines
from detente.programs.step_profile import StepProfile
from detente.report.text import clean

SCHEMA = "detente/bridge-profile/1"


def profile_page(
    model: str, size: str, found: Mapping[str, StepProfile], missing: Mapping[str, str]
) -> list[str]:
    """Lines of text. ``missing``: why a side is not there."""
    lines = [
        f"{clean(model)}, {clean(size)}: a few watched steps of each; no verdict, `detente compare` gives one"
    ]
    lines += [f"{label} is not here: {clean(why)}" for label, why in missing.items()]
    return [*lines, *profile_lines(found)]


def profile_document(
    model: str, size: str, found: Mapping[str, StepProfile], missing: Mapping[str, str]
) -> dict[str, Any]:
    """As JSON: seconds."""
    return {
        "schema": SCHEMA,
        "model": model,
        "size": size,
        "sides": {label: _side(one) for label, one in found.items()},
        "missing": dict(missing),
    }


def _side(one: StepProfile) -> dict[str, Any]:
    return {
        "step_s": one.step_s,
        "watched_s": one.watched_s,
        "cpu_s": one.cpu_s,
        "idle_s": one.idle,
        "threads": one.threads,
        "dispatch_s": one.dispatch,
        "covered": one.covered,
        "by_work": one.by_work(),
        "by_direction": one.by_direction(),
        "by_part": [
            {"path": part.path, "direction": part.direction, "seconds": seconds}
            for part, seconds in sorted(one.by_part().items(), key=lambda item: -item[1])
        ],
    }
