"""What the update inside the backward loop is for: nothing that the step is given exists twice while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from detente import bridge
from detente.bridge.choose.memory import memory

LAYERS, HIDDEN = 6, 128
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "Adam with the largest": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
}


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=HIDDEN, n_head=4, vocab_size=64, n_positions=16, bos_token_id=None, eos_token_id=None
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).train()


_DAILY = ("AdamW",)


@pytest.mark.parametrize(
    "name", [n if n in _DAILY else pytest.param(n, marks=pytest.mark.long) for n in OPTIMIZERS]
)
def test_no_stack_is_copied(name: str) -> None:
    """A copy of one stack of the feed-forward network would be more than what is allowed here."""
    trained = model()
    ids = torch.randint(0, 64, (1, 8))
    step = bridge.compile(
        trained,
        lambda m, b: m(input_ids=b, labels=b).loss,
        OPTIMIZERS[name](trained.parameters()),
        example_batch=ids,
        certificate="full",
        form="inside",
        cache=False,
    )
    planned = memory(step.programs[0].compiled.executable)
    assert planned is not None
    one_stack = LAYERS * 4 * HIDDEN * HIDDEN * 4
    # A layer's gradients, its slices of weights and state, and what is computed of one token after the other; and what
    # those slices were, for a step that raises and updates nothing (of RMSprop 1.4 layers more, of AdamW 0.7).
    one_layer = 12 * HIDDEN * HIDDEN * 4
    assert planned.temp < one_stack + (4 if name in ("SGD with momentum", "AdamW") else 5.5) * one_layer
    assert planned.argument > 2 * one_stack
    for _ in range(2):
        step(ids)
    assert step.certificate is not None and step.certificate.ok
