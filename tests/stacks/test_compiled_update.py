"""The compiled update stands between the hooks of the optimizer's own step."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_hooks_come_where_the_optimizers_own_step_has_them() -> None:
    from detente.stacks.torch_dynamo_private import self_test, with_hooks

    assert not self_test()
    own = importlib.import_module("torch.optim.optimizer")
    told: list[list[str]] = []
    for way in ("own", "ours"):
        said: list[str] = []
        weight = torch.nn.Parameter(torch.ones(2))
        sgd = torch.optim.SGD([weight], lr=1.0)

        def clips(*_: Any, weight: Any = weight, said: list[str] = said) -> None:
            said.append("before")
            weight.grad.mul_(0.5)

        sgd.register_step_pre_hook(clips)
        sgd.register_step_post_hook(lambda *_, said=said: said.append("behind"))
        beside = [
            own.register_optimizer_step_pre_hook(lambda *_, said=said: said.append("first")),
            own.register_optimizer_step_post_hook(lambda *_, said=said: said.append("last")),
        ]
        weight.grad = torch.ones(2)
        plain = type(sgd).step.__wrapped__

        def update(plain: Any = plain, sgd: Any = sgd, said: list[str] = said) -> None:
            said.append("step")
            with torch.no_grad():
                plain(sgd)

        try:
            if way == "own":
                sgd.step()
                said.insert(2, "step")
            else:
                with_hooks(sgd, update)()
        finally:
            for handle in beside:
                handle.remove()
        told.append([*said, *map(str, weight.tolist())])
    assert told[0] == told[1] and told[0][-1] == "0.5"
