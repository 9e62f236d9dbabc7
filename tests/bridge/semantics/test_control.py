"""Operators with a body: torch's scan and while_loop, torch.vmap inside a model; what a loop must not do is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from detente import bridge

X = torch.linspace(-1.0, 1.0, 20).reshape(5, 4)


class Recurrence(nn.Module):
    """``h = tanh(W h + x)`` over the rows; ``written_out`` is the loop that the operator stands for."""

    def __init__(self, written_out, drop=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.written_out, self.drop = nn.Linear(4, 4), written_out, drop

    def forward(self, x):
        def combine(carry, row):
            carry = torch.tanh(self.cell(carry) + row)
            if self.drop:
                carry = nn.functional.dropout(carry, self.drop)
            return carry, carry * 2.0

        start = torch.zeros_like(x[0])
        if self.written_out:
            rows = []
            for row in x:
                start, made = combine(start, row)
                rows.append(made)
            last, rows = start, torch.stack(rows)
        else:
            last, rows = scan(combine, start, x)
        weights = torch.arange(1, 5, dtype=x.dtype)
        return (last * weights).sum() + rows.pow(2).sum()


def loss(model, batch):
    return model(batch)


def compiled(model, batch, function=loss):
    return bridge.compile(
        model,
        function,
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=batch,
        certificate="none",
    )


def test_scan_is_the_loop_that_it_stands_for():
    """The written-out loop is the reference: torch's own gradient of the operator has been wrong (pytorch#184528)."""
    model, other = Recurrence(False).double(), Recurrence(True).double()
    x = X.double()
    step = compiled(model, x)
    (node,) = [n for n in step.programs[0].captured.graph.nodes if n.op.startswith("higher_order")]
    assert node.op == "higher_order.scan"
    value = other(x)
    expected = torch.autograd.grad(value, list(other.parameters()))
    found = step.gradients(x)
    assert float(step(x)) == pytest.approx(float(value.detach()), rel=1e-12)
    for (name, _), gradient in zip(other.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)


def test_a_scan_that_draws_is_refused():
    """Every turn would draw the same numbers."""
    with pytest.raises(bridge.Refused, match=r"scan.*random") as raised:
        compiled(Recurrence(False, drop=0.5), X)
    assert raised.value.reasons[0].code == "control-flow"
    assert raised.value.reasons[0].where.file == __file__


def test_a_fault_inside_a_scan_is_told():
    table = torch.arange(12.0).reshape(3, 4)

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(table.clone())

        def forward(self, ids):
            def combine(carry, index):
                row = nn.functional.embedding(index, self.table).reshape(4)
                return carry + row, row * 1.0

            last, _ = scan(combine, torch.zeros(4), ids)
            return last.sum()

    step = compiled(Reads(), torch.tensor([[0], [2]]))
    assert float(step(torch.tensor([[0], [2]]))) == float(table[[0, 2]].sum())
    with pytest.raises(IndexError, match="out of range"):
        float(step(torch.tensor([[0], [3]])))


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        def go_on(count, value):
            return value.sum() < 40

        def advance(count, value):
            return count + 1, value * 2.0

        start = torch.zeros((), dtype=torch.int64)
        with torch.no_grad():
            count, value = while_loop(go_on, advance, (start, x))
        return (self.linear(x) * value).sum(), count


def test_while_loop_stops_where_the_values_say():
    model = Doubling()
    step = compiled(model, X.abs())
    begin = step.state_dict()
    for x, turns in ((X.abs(), 2), (X.abs() / 8, 5), (X.abs() * 9, 0)):
        expected, count = model(x)
        assert int(count) == turns, "the case"
        gradient = torch.autograd.grad(expected, model.linear.weight)[0]
        torch.testing.assert_close(step.gradients(x)["linear.weight"], gradient)
        _, found = step.eager(x)
        assert int(found) == turns
        step.restart(begin)
        _, found = step(x)
        assert int(found) == turns
        step.restart(begin)
    assert len(step.programs) == 1


class Mapped(nn.Module):
    """torch.vmap over rows, and over rows and columns, in forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        def one(row, scale):
            return torch.tanh(self.linear(row)) * scale

        def outer(a, b):
            return torch.vmap(torch.vmap(lambda s, t: s * t, (None, 0)), (0, None))(a, b)

        y = torch.vmap(one, in_dims=(0, None))(x, self.linear.bias)
        return outer(y[0], y[1]).pow(2).sum() + y.sum()


def test_vmap_inside_a_model(same_function):
    same_function(Mapped(), loss, X)
