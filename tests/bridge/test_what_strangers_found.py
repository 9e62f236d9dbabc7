"""Findings of the review that stand in no list of their own: each loop as its finder wrote it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge.refusal import Refused
from detente.bridge.step.certifier import Certifier

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def compiled(model: nn.Module, loss: Any = loss_of, rate: float = 0.1, **options: Any) -> Any:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    return detente.compile(model, loss, optimizer, example_batch=X, cache=False, quiet=True, **options)


def test_generate_reads_what_was_trained() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    def made() -> GPT2LMHeadModel:
        torch.manual_seed(0)
        sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 20, "n_positions": 16}
        dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        return GPT2LMHeadModel(GPT2Config(**sizes, **dropouts, bos_token_id=0, eos_token_id=None))

    def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, labels=ids).loss

    ids = torch.arange(12).reshape(2, 6)
    ours, eager = made(), made()
    optimizer = torch.optim.SGD(ours.parameters(), lr=1.0)
    step = detente.compile(ours, loss, optimizer, example_batch=ids, cache=False, quiet=True)
    other = torch.optim.SGD(eager.parameters(), lr=1.0)
    for _ in range(8):
        step(ids)
        other.zero_grad()
        loss(eager, ids).backward()
        other.step()
    found, wanted, first = (
        m.generate(ids[:, :2], max_new_tokens=4, do_sample=False, pad_token_id=0)
        for m in (ours, eager, made())
    )
    assert torch.equal(found, wanted) and not torch.equal(wanted, first)


def test_compiling_again_after_a_layer_was_frozen_begins_with_what_was_trained() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    step = compiled(model)
    for _ in range(20):
        last = float(step(X))
    model[0].requires_grad_(False)
    assert float(compiled(model)(X)) < last


NET = nn.Linear(3, 3)


def of_a_global(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return NET(x).square().mean()


def test_a_loss_that_names_a_global_model_trains() -> None:
    step = compiled(NET, of_a_global)
    losses = [float(step(X)) for _ in range(4)]
    assert step.certificate.ok and losses == sorted(losses, reverse=True)


def test_a_module_outside_of_the_model_that_the_step_writes_is_named() -> None:
    beside = nn.BatchNorm1d(3)

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return beside(model(x)).square().mean() + 0.1 * model(x).square().mean()

    with pytest.raises(Refused) as told:
        compiled(nn.Linear(3, 3), loss)(X)
    text = str(told.value)
    assert "lifted" not in text and "BatchNorm" in text, text


def test_batch_norm_in_a_checkpoint_is_refused_with_its_reason() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    with pytest.raises(Refused, match="twice") as told:
        compiled(Checkpointed())(X)
    assert "report" not in str(told.value)


def test_a_flag_that_is_true_already_is_no_question() -> None:
    class Flagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.register_buffer("started", torch.tensor(True))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if self.started else self.layer(x) * 0

    step = compiled(Flagged())
    losses = [float(step(X)) for _ in range(3)]
    assert step.certificate.ok and losses[2] < losses[0]


def test_a_certificate_that_could_not_be_made_is_made_of_a_later_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory ran out in it, say: whoever called hears of it, and what follows is not taken for certified."""
    plain, asked = Certifier.settle, []

    def settle(self: Certifier, *args: Any) -> Any:
        asked.append(1)
        if len(asked) == 1:
            raise MemoryError("no room for the copy")
        return plain(self, *args)

    monkeypatch.setattr(Certifier, "settle", settle)
    step = compiled(nn.Linear(3, 1))
    step(X)
    with pytest.raises(MemoryError, match="no room"):
        step(X)
    assert step.certificate is None
    step(X), step(X)
    assert len(asked) == 2 and step.certificate.ok
