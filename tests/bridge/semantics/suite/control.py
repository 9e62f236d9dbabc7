"""Control flow that depends on values, transformations inside a model, and the optimizer as it is."""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from suite.case import Case, Run
from suite.judge import same
from suite.nets import Net, body, model


def branch(self, x):
    y = self.linear(x)
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a * 3, (y,)).sum()


class Recurrence(nn.Module):
    """A recurrence over the rows of the batch: by ``torch``'s scan operator, or written out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        def combine(carry, row):
            carry = torch.tanh(self.step(carry) + row)
            return carry, carry * 2.0

        last, rows = scan(combine, torch.zeros_like(x[0]), x)
        return (last * torch.arange(1.0, 5.0, device=x.device)).sum() + rows.pow(2).sum(), [rows]


def loop(self, x):
    def go_on(count, value):
        return count < 3

    def advance(count, value):
        return count + 1, value * 1.5 + 1.0

    with torch.no_grad():
        _, value = while_loop(go_on, advance, (torch.zeros((), dtype=torch.int64, device=x.device), x))
    return (self.linear(x) * value).sum(), [value]


def if_tensor(self, x):
    y = self.linear(x).sum()
    return y * 2 if y > 0 else y


def chosen(self, x):
    y = self.linear(x)
    return y[y > 0].sum()


def mapped(self, x):
    def one(row, scale):
        return torch.tanh(self.linear(row)) * scale

    return torch.vmap(one, in_dims=(0, None))(x, self.frozen.bias).pow(2).sum()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x).pow(2).mean()


X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)

CASES = (
    Case(
        "torch.cond",
        "control",
        "4.2, 4.4",
        "runs the branch that the values choose",
        (Run(lambda: Net(branch), lambda: [X + 1, X - 1]),),
        same,
    ),
    Case(
        "scan operator",
        "control",
        "4.2",
        "the recurrence and its gradient",
        model(Recurrence, [X]),
        same,
    ),
    Case("while_loop operator", "control", "4.2", "runs until the values say stop", body(loop), same),
    Case(
        "`if tensor:` in forward",
        "control",
        "4.4",
        "takes the branch",
        (Run(lambda: Net(if_tensor), lambda: [X + 1, X - 1]),),
        same,
        refusable=True,
    ),
    Case(
        "x[x > 0]",
        "control",
        "4.4",
        "a result whose size depends on values",
        body(chosen),
        same,
        refusable=True,
    ),
    Case("torch.vmap inside a model", "control", "4.2", "maps", body(mapped), same),
    Case(
        "loss.backward() and torch.optim.AdamW",
        "control",
        "4.2",
        "trains",
        model(Small, [X] * 3),
        same,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2),
    ),
    Case(
        "torch.optim.SGD with momentum",
        "control",
        "4.2",
        "trains",
        model(Small, [X] * 3),
        same,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    ),
)
