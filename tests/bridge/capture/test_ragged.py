"""Tensors of unknown length, numbers that the program computes, and what is asserted of them."""

from __future__ import annotations

import copy
import inspect
import sys

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.capture.capture import capture
from detente.bridge.graph import Graph

END = 9
IDS = torch.tensor([[3, END, 4, END, 5, 6], [1, 2, END, 7, 7, END]])
UNEVEN = torch.tensor([[3, END, 4, 5, 5, 6], [1, 2, END, 7, 7, END]])
NONE = torch.tensor([[3, 1, 4, 5, 5, 6], [1, 2, 0, 7, 7, 0]])


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, ids, number=-1, checked=True):
        hidden = self.embed(ids).cumsum(1)
        mask = ids == END
        if checked:
            torch._check(torch.unique_consecutive(mask.sum(1)).numel() == 1)
        chosen = hidden[mask, :]
        torch._check(chosen.shape[0] // ids.shape[0] >= 1)
        return self.head(chosen.view(ids.shape[0], -1, 4)[:, number, :])


def compiled(model, loss, batch, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return bridge.compile(model, loss, optimizer, example_batch=batch, **options)


def test_the_last_chosen_row_of_every_example(same_function):
    same_function(Words(), lambda m, b: m(b).pow(2).mean(), IDS)


def test_the_first_chosen_row_of_every_example(same_function):
    same_function(Words(), lambda m, b: m(b, 0, False).pow(2).mean(), IDS)


@pytest.mark.parametrize(("ids", "error"), [(UNEVEN, RuntimeError), (NONE, (RuntimeError, IndexError))])
@pytest.mark.parametrize("checked", [True, False])
def test_what_torch_raises_is_a_fault(ids, error, checked):
    model = Words()
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        model(ids, checked=checked)
    step = compiled(model, lambda m, b: m(b, checked=checked).sum(), IDS, certificate="none")
    float(step(IDS))
    with pytest.raises(error) as raised:
        float(step(ids))
    source, start = inspect.getsourcelines(Words.forward)
    assert __file__ in str(raised.value)
    line = int(str(raised.value).rpartition(f"{__file__}:")[2].split()[0])
    assert start <= line < start + len(source)


def test_no_gradient_goes_through_rows_chosen_under_no_grad(same_function):
    def loss(model, ids):
        with torch.no_grad():
            chosen = model.embed(ids)[ids == END]
        return (chosen.view(2, -1, 4)[:, -1] * model.head.weight.sum()).sum() + model.embed(ids).sum()

    same_function(Words(), loss, IDS)


def test_another_use_of_the_chosen_rows_is_refused_once():
    def loss(model, ids):
        chosen = model.embed(ids)[model.embed(ids)[..., 0] > 0]
        return chosen.relu().mean() + chosen.view(2, -1, 4)[:, -1].sum()

    found = bridge.check(Words(), loss, IDS)
    assert [r.code for r in found] == ["dynamic-shape"]
    assert "chosen = model" in found[0].where.code


def test_a_check_on_a_computed_number_is_a_fault(same_function):
    def loss(model, ids):
        assert ids.max().item() < END + 1
        return model.embed(ids).sum()

    same_function(Words(), loss, IDS)
    step = compiled(Words(), loss, IDS, certificate="none")
    with pytest.raises((AssertionError, RuntimeError, IndexError), match=r"assert (ids\.max|10 <)"):
        float(step(IDS + 1))


def test_checks_do_not_keep_layers_apart():
    """torch numbers the symbols in what it says of a check; the nodes of two layers are alike all the same."""

    def loss(model, ids):
        hidden = model.embed(ids)
        for shift in range(3):
            torch._check((ids.max() + shift).item() < 100)
            hidden = hidden + model.head.weight.sum()
        return hidden.sum()

    checks = [n for n in capture(Words(), loss, IDS).graph.nodes if n.op == "aten._assert_scalar.default"]
    assert len(checks) >= 3
    assert {n.kwargs for n in checks} == {()} and {len(n.args) for n in checks} == {1}


def test_an_item_of_float32_is_a_number():
    def loss(model, ids):
        return model.embed(ids).sum() * model.head.weight.detach().sum().item()

    step = compiled(Words(), loss, IDS)
    step(IDS), float(step(IDS))
    assert step.certificate.ok


class Noisy(torch.autograd.Function):
    """Draws in its forward, as SEW-D's XDropout does."""

    @staticmethod
    def forward(ctx, x):
        first = torch.empty_like(x).bernoulli_(0.5)
        ctx.mask = first * torch.empty_like(x).bernoulli_(0.7)
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask


def test_calls_after_a_function_that_draws_keep_their_numbers(same_function):
    def loss(model, ids):
        hidden = nn.functional.dropout(model.embed(ids), 0.3)
        hidden = Noisy.apply(Noisy.apply(hidden)) + hidden
        return model.head(nn.functional.dropout(hidden, 0.4)).pow(2).mean()

    same_function(Words(), loss, IDS)


def windows(model, ids):
    """Overlapping windows of a tensor that lies transposed in memory, as Longformer makes them."""
    hidden = model.embed(ids).transpose(0, 1).contiguous().transpose(0, 1)
    size, stride = list(hidden.shape), list(hidden.stride())
    return hidden.as_strided((size[0], 5, 2, size[2]), (stride[0], stride[1], stride[1], stride[2]))


def test_as_strided_looks_at_memory(same_function):
    plain = windows(Words(), IDS)
    assert (
        not Words().embed(IDS).transpose(0, 1).contiguous().transpose(0, 1).is_contiguous()
        and plain.shape[1] == 5
    )
    same_function(Words(), lambda m, b: m.head(windows(m, b)).pow(2).mean(), IDS)


def test_as_strided_beyond_the_tensor_is_refused():
    def loss(model, ids):
        return model.embed(ids)[:1].as_strided((2, 6), (24, 1)).sum()

    found = bridge.check(Words(), loss, IDS)
    assert found[0].code == "export" and "as_strided" in found[0].where.code


class Scaled(torch.autograd.Function):
    """Holds a tensor of its own, as SEW-D's XSoftmax does."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * torch.tensor(scale)

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.tensor(ctx.scale) * 2, None


def test_a_function_may_hold_tensors_of_its_own(same_function):
    def loss(model, ids):
        hidden = Scaled.apply(model.embed(ids), 3.0)
        return model.head(Scaled.apply(hidden, 5.0)).pow(2).mean()

    same_function(Words(), loss, IDS)


def test_functions_that_hold_other_tensors_are_not_alike():
    def loss(model, ids):
        hidden = model.embed(ids)
        for scale in (3.0, 5.0):
            hidden = Scaled.apply(hidden, scale)
        return hidden.sum()

    graph = capture(Words(), loss, IDS).graph
    joints = [a for n in graph.nodes if n.op == "detente.function" for a in n.args if isinstance(a, Graph)]
    names = [tuple(j.constants) for j in joints]
    assert len(joints) == 2 and all(names) and names[0] != names[1]


def branches(model, ids):
    if model.embed(ids).sum() > 0:
        return model.embed(ids).sum()
    return -model.embed(ids).sum()


def branches_aloud(model, ids):
    print("this is the user's", file=sys.stderr)
    return branches(model, ids)


def test_torch_says_nothing_of_its_own(capfd):
    """Neither in its log nor by printing the graph as far as it came; what the model prints is the user's."""
    found = bridge.check(Words(), branches_aloud, IDS)
    assert found[0].code == "control-flow"
    assert set(capfd.readouterr().err.splitlines()) == {"this is the user's"}


def rows_by_weights(model, ids):
    logits = model.head(model.embed(ids))
    kept = logits[..., 0] > 0
    return nn.functional.cross_entropy(logits[kept].contiguous().view(-1, 3), ids[kept].view(-1) % 3)


def test_how_many_rows_the_weights_choose_is_refused_by_line():
    found = bridge.check(Words(), rows_by_weights, IDS)
    assert found[0].code == "dynamic-shape" and "depends on parameter embed.weight" in found[0].what
    assert found[0].where is not None and "cross_entropy" in found[0].where.code


def test_words_are_left_alone():
    model = Words()
    before = copy.deepcopy(model.state_dict())
    bridge.check(model, lambda m, b: m(b).sum(), IDS)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
