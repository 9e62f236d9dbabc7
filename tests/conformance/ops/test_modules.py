"""Every module of torch.nn, on the samples of PyTorch's own tests: compiled, stepped and certified against eager.

Up to three samples of each, spread over all that torch has, in training mode and float32 (`make test-ops`). The inputs
pass through a parameter, so that modules without any have a gradient, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from detente import bridge
from tests.unfrozen import unfreeze

unfreeze()

SAMPLES = 3
INFOS = {info.name: info for info in module_db}
NOT_THERE = {
    "nn.FractionalMaxPool2d": "torch's sample fixes random numbers in another dtype than its input",
    "nn.FractionalMaxPool3d": "torch's sample fixes random numbers in another dtype than its input",
}


class Scaled(nn.Module):
    def __init__(self, inner: nn.Module, first_alone: bool) -> None:
        super().__init__()
        self.inner, self.first_alone = inner, first_alone
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, args: Any, named: Any) -> Any:
        if self.first_alone:  # a loss: its target is no function of a parameter
            return self.inner(args[0] * self.scale, *args[1:], **named)
        args, named = pytree.tree_map(self._scaled, (args, named))
        return self.inner(*args, **named)

    def _scaled(self, x: Any) -> Any:
        floating = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x * self.scale.to(x.dtype) if floating else x


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    outputs = [x for x in pytree.tree_leaves(model(*batch)) if isinstance(x, torch.Tensor)]
    floating = [x for x in outputs if x.is_floating_point() or x.is_complex()]
    return sum((x.abs().square().mean() for x in floating), torch.zeros(()))


def samples(info: Any) -> list[Any]:
    found = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    found = [sample for sample in found if sample.forward_input is not None]
    return found[:: max(1, len(found) // SAMPLES)][:SAMPLES]


@pytest.mark.ops
@pytest.mark.parametrize("name", INFOS)
def test_module(name: str) -> None:
    if name in NOT_THERE:
        pytest.skip(NOT_THERE[name])
    for sample in samples(INFOS[name]):
        torch.manual_seed(3)
        made = INFOS[name].module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        model = Scaled(made, "Loss" in name)
        batch = (tuple(sample.forward_input.args), dict(sample.forward_input.kwargs))
        loss(model, batch)  # a lazy module gets its shapes
        step = bridge.compile(
            model,
            loss,
            torch.optim.SGD(model.parameters(), lr=1e-3),
            example_batch=batch,
            certificate="full",
            cache=False,
            nonfinite="return",  # the square roots of LPPool and the logarithms of some losses are NaN in torch, too
        )
        float(step(batch)), float(step(batch))  # the certificate is made beside the second
        assert step.certificate.ok, f"{sample.desc}: {step.certificate}"
