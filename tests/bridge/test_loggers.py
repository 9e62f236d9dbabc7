"""A logger leads to every other one; what is written to it decides no number."""

from __future__ import annotations

import logging

import torch
from torch import nn

import detente
from tests.bridge.between.loops import eager

logger = logging.getLogger(__name__)
told = logging.LoggerAdapter(logger, {})


class Talking(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logger.debug("a pass over %s", tuple(x.shape))
        told.debug("by %s", logger.manager)
        return super().forward(x)


def test_a_module_that_logs_trains_as_eager_does() -> None:
    torch.manual_seed(0)
    batch, losses = torch.randn(4, 3), []
    for compiled in (True, False):
        torch.manual_seed(1)
        model = Talking(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(m: nn.Module, b: torch.Tensor) -> torch.Tensor:
            return m(b).square().mean()

        step = eager(model, loss, optimizer)
        if compiled:
            step = detente.compile(model, loss, optimizer, example_batch=batch, cache=False)
        for turn in range(4):
            logging.getLogger(f"{__name__}.{compiled}.{turn}").addFilter(lambda record: True)
            losses.append(float(step(batch)))
    torch.testing.assert_close(losses[:4], losses[4:])
