"""Questions about a batch's values that the example batch settles, and those that it cannot."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detente import bridge
from detente.bridge.capture.capture import capture

IDS = torch.tensor([[3, 5, 4, 0], [1, 2, 0, 0]])  # 0 is padding
FULL = IDS + 1
FEWER = torch.tensor([[3, 5, 0, 0], [1, 2, 0, 0]])
PADDING = "if padding.any()"


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.drop = nn.Embedding(10, 4), nn.Linear(4, 10), nn.Dropout(0.3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, ids):
        padding = ids == 0
        hidden = self.embed(ids)
        if padding.any():
            hidden = hidden.masked_fill(padding[..., None], 0.0)
        return self.head(hidden.cumsum(1))


def plain(model, ids):
    return model(ids).pow(2).mean()


def chosen_rows(model, ids):
    """transformers' older losses: the rows that count, then a mean over them."""
    kept = ids != 0
    return nn.functional.cross_entropy(model(ids)[kept, :].contiguous(), ids[kept])


def places(model, ids):
    rows, columns = torch.where(ids != 0)
    more = (ids == 0).nonzero()
    picked = model(ids)[rows, columns].sum() + model(ids)[more[:, 0], more[:, 1]].pow(2).sum()
    return picked * int((ids != 0).sum(1).max()) + torch.masked_select(model(ids).sum(-1), ids == 1).sum()


def sizes(model, ids):
    """A 0-d tensor where torch wants a number: Longformer's most global tokens of a row."""
    most = (ids != 0).sum(1).max()
    kept = torch.arange(most) < (ids != 0).sum(1, keepdim=True)
    filled = model(ids).new_zeros(len(ids), most, 10)
    filled[torch.where(kept)] = model(ids)[torch.where(ids != 0)]
    return filled.pow(2).mean()


@pytest.mark.parametrize("loss", [plain, chosen_rows, places, sizes])
def test_the_example_batch_answers(loss, same_function):
    same_function(Words(), loss, IDS)


@pytest.mark.parametrize("loss", [plain, chosen_rows, places, sizes])
def test_another_answer_is_a_fault_at_the_line_that_asks(loss):
    """Where it is not asked ahead of the step: micro-batches may have answers of their own."""
    model, example = Words(), IDS[[0, 0]]
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(model, loss, sgd, example_batch=example, certificate="none", accumulate=2)
    float(step(example + (example > 0)).mean())  # the same answers
    with pytest.raises(RuntimeError, match="another answer") as raised:
        float(step((FULL if loss is plain else FEWER)[[0, 0]]).mean())
    asks = Words.forward if loss is plain else loss
    source, start = inspect.getsourcelines(asks)
    line = int(str(raised.value).rpartition(f"{__file__}:")[2].split()[0])
    assert start <= line < start + len(source)
    assert loss is not plain or PADDING in source[line - start]


def on_weights(model, ids):
    return model(ids).sum() if model.head.bias.sum() > 0 else model(ids).mean()


def on_hidden(model, ids):
    hidden = model.embed(ids)
    return hidden[hidden > 0].sum()


def on_random_numbers(model, ids):
    return model(ids).sum() if (model.drop(torch.ones(20)) > 0).sum() > 3 else model(ids).mean()


@pytest.mark.parametrize("loss", [on_weights, on_hidden, on_random_numbers])
def test_what_would_not_last_is_refused(loss):
    found = bridge.check(Words(), loss, IDS)
    assert found and found[0].code in ("control-flow", "dynamic-shape")
    assert found[0].where.file == __file__


def test_asking_leaves_model_and_generator_alone():
    model = Words()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    capture(model, plain, IDS)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_program_without_questions_is_captured_once(monkeypatch):
    from detente.bridge.capture import capture as module

    monkeypatch.setattr(module, "answers", lambda *_: pytest.fail("asked"))
    capture(Words(), lambda m, b: m.embed(b).sum(), IDS)


def test_what_else_is_wrong_is_said_instead_of_a_question_that_is_settled():
    def writes(model, ids):
        ids.masked_fill_(ids == -100, 0)
        return plain(model, ids)

    with pytest.raises(bridge.Refused) as caught:
        capture(Words(), writes, IDS)
    assert [reason.code for reason in caught.value.reasons] == ["batch"]


def guarded(model, ids):
    out = model(ids)
    if torch.isnan(out).any() or torch.isinf(out).any():
        raise ValueError("not finite")
    assert (out < 50).all()
    variance = out[..., 1].exp() - 10.0 * (ids.sum() > 40)
    return F.gaussian_nll_loss(out[..., 0], ids.float(), variance)


def guarded_by_two(model, ids):
    out = model(ids)
    if (out > 99).any() and (out < -99).any():  # either alone is allowed
        raise ValueError("too far apart")
    return out.mean()


def guarded_and_more(model, ids):
    out = model(ids)
    if (out > 99).any():
        out = out / 2
        raise ValueError("not only a guard")
    return out.mean()


def test_a_guard_may_ask_for_what_moves(same_function):
    same_function(Words(), guarded, IDS)


def test_a_guard_raises_where_torch_does():
    model = Words()
    step = bridge.compile(
        model, guarded, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=IDS, certificate="none"
    )
    float(step(IDS))
    with pytest.raises(ValueError, match=r"if torch.any\(var < 0\): raise ValueError.*negative"):
        float(step(torch.where(IDS > 0, 9, 0)))


def guarded_by_any_of(model, ids):
    out = model(ids)
    if not any((row > 0).any() for row in out):  # one row's answer decides nothing
        raise ValueError("all negative")
    return out.mean()


def guarded_and_caught(model, ids):
    out = model(ids)
    try:
        if (out > 99).any():
            raise ValueError
    except ValueError:
        out = out / 2
    return out.mean()


@pytest.mark.parametrize("loss", [guarded_by_two, guarded_and_more, guarded_by_any_of, guarded_and_caught])
def test_what_is_more_than_a_guard_is_refused(loss):
    assert [reason.code for reason in bridge.check(Words(), loss, IDS)] == ["control-flow"]
