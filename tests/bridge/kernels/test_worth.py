"""What is timed to find out what is worth a call, and what is kept of it."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest

from detente.bridge.kernels import build, worth
from detente.bridge.kernels.products import BF16, F32
from detente.bridge.kernels.trials import ATTENTION, CONVOLUTIONS, DECIDED, trials


@pytest.fixture(autouse=True)
def loaded() -> None:
    build._loaded()


@pytest.mark.parametrize("of", [F32, BF16, CONVOLUTIONS, ATTENTION])
def test_both_ways_of_a_trial_compute_the_same(of: str) -> None:
    """Or one of them is faster because it does less."""
    seen = 0
    for kind, plain, called, operands in trials(of):
        assert plain.as_text().count("detente_") == 0, kind
        assert called.as_text().count("detente_") > 0, kind
        results = (jax.tree.leaves(way(*operands)) for way in (plain, called))
        for pair in zip(*results, strict=True):
            a, b = (np.asarray(x, np.float64) for x in pair)
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=0, atol=(2e-2 if of == BF16 else 1e-4) * np.abs(a).max())
        seen += 1
    assert seen


@pytest.mark.parametrize("of", [F32, BF16, CONVOLUTIONS, ATTENTION])
def test_everything_that_is_decided_is_measured_once_and_remembered(
    of: str, monkeypatch: Any, tmp_path: Any
) -> None:
    """A form that no trial has would be left to XLA for ever, and nobody would know."""
    found = worth.leads(tmp_path, of)
    assert set(found) == set(DECIDED[of]) and all(lead > 0 for lead in found.values())
    (known,) = tmp_path.glob(f"leads-{of}-*.json")
    monkeypatch.setattr(worth, "_ratio", lambda *_: pytest.fail("measured again"))
    assert worth.leads(tmp_path, of) == found
    monkeypatch.setattr(worth, "_ratio", lambda *_: 1.5)
    for damaged in (
        "{",
        "[]",
        "{}",
        json.dumps({"leads": [1.0]}),
        '{"leads": {}}',
        json.dumps({"leads": {"x": None}}),
    ):
        known.write_text(damaged)
        assert worth.leads(tmp_path, of) == dict.fromkeys(DECIDED[of], pytest.approx(1.5)), damaged


def test_a_folder_that_takes_nothing_is_measured_in_each_time(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(worth, "_ratio", lambda *_: 1.5)
    found = worth.leads(tmp_path / "not there", ATTENTION)
    assert found == {ATTENTION: pytest.approx(1.5)} and not list(tmp_path.iterdir())


def test_the_first_to_be_timed_is_either_in_turns() -> None:
    """Who comes behind the other one finds the cores warm."""
    said: list[str] = []
    worth._ratio(lambda: said.append("plain"), lambda: said.append("called"), ())
    assert said[:4] in (["called", "plain", "plain", "called"], ["plain", "called", "called", "plain"])
    assert said.count("plain") == said.count("called") == worth.ROUNDS


def test_attention_is_taken_where_attention_leads_whatever_products_do(monkeypatch: Any) -> None:
    """It was called where products lead, and on an AMD it is a half faster without."""
    from detente.bridge.lower.backwards import backwards
    from detente.bridge.lower.ops.fused_attention import is_taken

    a = jax.ShapeDtypeStruct((1, 4, 128, 64), np.float32)
    for products, attention in ((0.9, 1.4), (1.4, 0.9)):
        leads = {F32: products, BF16: products, CONVOLUTIONS: products, ATTENTION: attention}
        monkeypatch.setattr(build, "decided", lambda of, leads=leads: dict.fromkeys(DECIDED[of], leads[of]))
        build.kernels.cache_clear()
        build._won.cache_clear()
        with backwards(), build.calling():
            assert is_taken(a, a, a, None, 0.0) is (attention > 1)


def test_what_was_measured_in_the_middle_of_a_step_is_measured_anew_by_who_has_time(
    monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.setattr(worth, "_ratio", lambda *rest: 1.5 if rest[-1] == 1 else 1.2)
    for patience, again, lead in ((1, False, 1.5), (8, False, 1.2), (1, False, 1.2), (1, True, 1.5)):
        found = worth.leads(tmp_path, ATTENTION, patience, again)
        assert found == {ATTENTION: pytest.approx(lead)}, (patience, again)
    assert worth.leads(None, ATTENTION, 8) == {ATTENTION: pytest.approx(1.2)}, "remembered nowhere"
    assert len(list(tmp_path.iterdir())) == 1
