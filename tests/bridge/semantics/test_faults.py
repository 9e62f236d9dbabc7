"""What torch raises and XLA swallows, and what the bridge will not run: one clear error each, with file and line."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from detente import bridge
from tests.sampled import sampled

IDS = torch.tensor([[0, 3, 6], [1, 2, 5]])


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, ids):
        return self.head(self.embed(ids))


def loss(model, batch):
    logits = model(batch["ids"]).view(-1, 7)
    return nn.functional.cross_entropy(logits, batch["labels"].view(-1))


def compiled(model, function=loss, batch=None, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    batch = {"ids": IDS, "labels": IDS} if batch is None else batch
    return bridge.compile(model, function, optimizer, example_batch=batch, **options)


@pytest.mark.parametrize(
    ("key", "line"), [("ids", "self.head(self.embed(ids))"), ("labels", "cross_entropy(logits")]
)
def test_out_of_range_raises_when_the_loss_is_read(key, line):
    step = compiled(Words(), certificate="none")
    good = {"ids": IDS, "labels": IDS}
    assert float(step(good)) > 0
    bad = step({**good, key: IDS + 3})
    with pytest.raises(IndexError) as raised:
        float(bad)
    assert __file__ in str(raised.value) and line in str(raised.value)
    with pytest.raises(IndexError):
        bad.item()
    assert float(step(good)) > 0, "a fault belongs to its own step"


class Rows(nn.Module):
    def __init__(self, read):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.read = nn.Parameter(torch.randn(5, 4)), read

    def forward(self, index):
        return self.read(self.weight, index).pow(2).sum()


def masked_write(weight, mask):
    y = weight * 1.0
    y[mask] = torch.arange(8.0).reshape(2, 4)
    return y


COLUMN = torch.tensor([[0], [3], [1], [2], [0]])
# function of weight and index, a good index, a bad one
OUT_OF_RANGE = {
    "gather": (lambda w, i: w.gather(1, i), COLUMN, COLUMN + 1),
    "gather below": (lambda w, i: w.gather(1, i), COLUMN, COLUMN - 1),
    "index": (lambda w, i: w[i], torch.tensor([4, -5]), torch.tensor([4, -6])),
    "index of columns": (lambda w, i: w[:, i], torch.tensor([3, -4]), torch.tensor([3, 4])),
    "index_select": (lambda w, i: w.index_select(0, i), torch.tensor([4]), torch.tensor([5])),
    "index_put": (lambda w, i: w.index_put((i,), torch.zeros(4)), torch.tensor([4]), torch.tensor([5])),
    "scatter": (lambda w, i: w.scatter(1, i, 0.0), COLUMN, COLUMN + 1),
    "boolean mask of another count": (
        masked_write,
        torch.tensor([True, False, True, False, False]),
        torch.tensor([True, False, True, True, False]),
    ),
}


@pytest.mark.parametrize("name", sampled(OUT_OF_RANGE, 2))
def test_reading_and_writing_out_of_range_raises_what_torch_raises(name):
    read, good, bad = OUT_OF_RANGE[name]
    model = Rows(read)
    expected = float(model(good))
    with pytest.raises((IndexError, RuntimeError)) as torchs:
        model(bad)
    step = compiled(model, lambda m, b: m(b), good, certificate="none")
    begin = step.state_dict()
    value = step(bad)
    with pytest.raises((IndexError, RuntimeError)) as ours:
        float(value)
    assert isinstance(ours.value, IndexError) == isinstance(torchs.value, IndexError)
    assert __file__ in str(ours.value), "the user's line"
    step.restart(begin)
    assert float(step(good)) == pytest.approx(expected, rel=1e-6)


def test_ignored_labels_are_no_fault():
    step = compiled(Words(), certificate="none")
    assert float(step({"ids": IDS, "labels": torch.where(IDS > 2, -100, IDS)})) > 0


def test_a_loss_that_is_not_finite_raises_when_read():
    step = compiled(Words(), lambda m, b: loss(m, b) / 0, certificate="none")
    with pytest.raises(FloatingPointError, match=r"step 0 is inf[^$]*anomaly"):
        float(step({"ids": IDS, "labels": IDS}))
    step = compiled(Words(), lambda m, b: loss(m, b) / 0, certificate="none", nonfinite="return")
    assert float(step({"ids": IDS, "labels": IDS})) == float("inf")


def branch(model, batch):
    if model(batch["ids"]).sum() > 0:
        return loss(model, batch)
    return loss(model, batch) * 2


def chosen_rows(model, batch):
    y = model(batch["ids"])
    return y[y > 0].sum()


def write_leaf(model, batch):
    model.head.weight.mul_(2)
    return loss(model, batch)


def write_weight_without_grad(model, batch):
    with torch.no_grad():
        model.head.weight.clamp_(-1, 1)
    return loss(model, batch)


def write_hidden_gradient(model, batch):
    y = model(batch["ids"])
    with torch.no_grad():
        y[0].mul_(2)
    return y.sum()


def map_that_draws(model, batch):
    return torch.vmap(torch.rand_like)(model(batch["ids"])).sum()


def write_batch(model, batch):
    batch["labels"].clamp_(min=0)
    return loss(model, batch)


def vector(model, batch):
    return model(batch["ids"]).sum(0)


def number(model, batch):
    return 3.0


def backward_inside(model, batch):
    value = loss(model, batch)
    value.backward()
    return value


def unknown_operator(model, batch):
    return torch.ops.detente_tests.twice(model(batch["ids"])).sum()


@torch.library.custom_op("detente_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


REFUSALS = [
    (branch, "control-flow", "if model(batch"),
    (chosen_rows, "dynamic-shape", "y[y > 0]"),
    (write_leaf, "leaf-inplace", "mul_(2)"),
    (write_weight_without_grad, "parameter", "clamp_"),
    (write_hidden_gradient, "no-grad-inplace", "y[0].mul_(2)"),
    (map_that_draws, "transform", "torch.vmap"),
    (write_batch, "batch", "clamp_"),
    (vector, "loss", None),
    (number, "loss", None),
    (backward_inside, "transform", "value.backward()"),
    (unknown_operator, "op", "torch.ops.detente_tests.twice"),
]


@pytest.mark.parametrize(("function", "code", "line"), REFUSALS, ids=lambda v: getattr(v, "__name__", ""))
def test_refusal_names_the_line(function, code, line):
    with pytest.raises(bridge.Refused) as raised:
        compiled(Words(), function)
    assert code in {r.code for r in raised.value.reasons}, str(raised.value)
    if line is not None:
        reason = next(r for r in raised.value.reasons if r.code == code)
        source, start = inspect.getsourcelines(function)
        assert reason.where.file == __file__, str(raised.value)
        assert start <= reason.where.line < start + len(source), str(raised.value)
        assert line in source[reason.where.line - start]


def test_check_collects_everything_and_compiles_nothing():
    def everything(model, batch):
        y = torch.ops.detente_tests.twice(model(batch["ids"]))
        return y[y > 0].sum()

    model = Words()
    found = bridge.check(model, everything, {"ids": IDS}, torch.optim.LBFGS(model.parameters()))
    assert {r.code for r in found} >= {"dynamic-shape", "optimizer"}
    assert bridge.check(model, loss, {"ids": IDS, "labels": IDS}) == ()


def test_extend_registers_what_is_missing(same_function):
    from detente.bridge.lower.table import TABLE

    with pytest.raises(bridge.Refused, match=r"detente_tests.twice.default.*float32\[2, 3, 7\].*no lowering"):
        compiled(Words(), unknown_operator)
    bridge.extend("detente_tests.twice.default", lambda call, x: 2 * x)
    try:
        step = compiled(Words(), unknown_operator, certificate="none")
        assert float(step({"ids": IDS, "labels": IDS})) != 0
    finally:
        del TABLE["detente_tests.twice.default"]
    with pytest.raises(ValueError, match="replace=True"):
        bridge.extend("aten.add.Tensor", lambda call, x, y: x)


def test_optimizers_that_need_a_closure_are_refused():
    model = Words()
    with pytest.raises(bridge.Refused, match="LBFGS"):
        compiled(model, optimizer=torch.optim.LBFGS(model.parameters()))


def test_meta_parameters_are_refused():
    with torch.device("meta"):
        model = Words()
    with pytest.raises(bridge.Refused, match="to_empty"):
        compiled(model)


def test_a_changed_module_is_taken_over():
    model = Words()
    step = compiled(model, certificate="none")
    batch = {"ids": IDS, "labels": IDS}
    step(batch)
    with torch.no_grad():
        model.head.weight.zero_()
    step(batch)
    assert float(step.state_dict()["head.weight"].abs().max()) < 0.2
    step.load_from_torch()
    assert float(step.state_dict()["head.weight"].abs().max()) > 0


def test_a_failed_certificate_raises_before_the_second_step_returns(monkeypatch):
    from dataclasses import replace

    from detente.bridge.lower.driver import load_table
    from detente.bridge.lower.table import TABLE

    load_table()
    plain = TABLE["aten.embedding.default"]
    monkeypatch.setitem(
        TABLE, plain.op, replace(plain, lower=lambda call, *a, **k: plain.lower(call, *a, **k) * 1.001)
    )
    model = Words()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    step, batch = compiled(model), {"ids": IDS, "labels": IDS}
    step(batch)
    for _ in range(2):
        with pytest.raises(bridge.Refused, match="certificate"):
            step(batch)
        step.sync_to_torch()  # the step that is not trusted was taken back
    assert step.count == 0
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert not step.certificate.ok
