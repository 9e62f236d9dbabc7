"""What may change between a session and its continuation."""

from __future__ import annotations

from typing import Any

from detente.records.session import Fingerprint
from detente.session.fingerprint import differences


def _asked(**settings: Any) -> Fingerprint:
    return Fingerprint(
        {"cores": 2}, {"blocks": None, "budget_s": 480.0, "memory": True, **settings}, "source"
    )


def test_a_larger_budget_continues():
    assert differences(_asked(), _asked(budget_s=1200.0, memory=False)) == []


def test_other_blocks_or_another_seed_do_not():
    assert differences(_asked(blocks=5), _asked(blocks=10)) == ["settings blocks: 5 -> 10"]
    assert differences(_asked(seed=1), _asked(seed=2)) == ["settings seed: 1 -> 2"]


def test_another_source_does_not():
    assert differences(_asked(), Fingerprint({"cores": 2}, _asked().settings, "other")) == [
        "detente's own source changed"
    ]
