"""Packed sequences in recurrent layers: the lengths are an input, and one program serves them all."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import detente
from detente.bridge.refusal import Refused

X = torch.randint(1, 11, (4, 7), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([3, 7, 1, 5])
OTHERS = (LENGTHS, torch.tensor([7, 7, 2, 1]), torch.tensor([1, 2, 3, 7]))


class Tagger(nn.Module):
    def __init__(self, kind: str = "LSTM", **options):
        super().__init__()
        options = {"num_layers": 2, "bidirectional": True, "batch_first": True} | options
        self.embed = nn.Embedding(11, 5)
        self.layers = getattr(nn, kind)(5, 6, **options)
        width = options.get("proj_size", 6) * (2 if options["bidirectional"] else 1)
        self.head = nn.Linear(width, 3)

    def packed(self, x, lengths):
        return pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)

    def forward(self, x, lengths):
        out, _ = self.layers(self.packed(x, lengths.cpu()))
        scores, counts = pad_packed_sequence(out, batch_first=True, padding_value=0.25)
        return self.head(scores).square().sum() / counts.sum()


def last_state(model, batch):
    _, last = model.layers(model.packed(*batch))
    last = last[0] if isinstance(last, tuple) else last
    return model.head(torch.cat([last[-2], last[-1]], -1)).square().mean()


def whole(model, batch):
    return model(*batch)


def trained(model, loss, batches, **options):
    """Equal to eager for these batches, by one program; the step."""
    beside = copy.deepcopy(model)
    step = detente.compile(
        model,
        loss,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        example_batch=batches[0],
        cache=False,
        **options,
    )
    plain = torch.optim.SGD(beside.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        found = float(step(batch))
        plain.zero_grad()
        value = loss(beside, batch)
        value.backward()
        plain.step()
        assert found == pytest.approx(value.item(), rel=1e-5)
    torch.testing.assert_close(model.state_dict(), beside.state_dict(), rtol=1e-4, atol=1e-6)
    assert len(step.programs) == 1
    return step


def made(*args, **options):
    torch.manual_seed(0)
    return Tagger(*args, **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {}),
        ("GRU", {}),
        ("RNN", {"nonlinearity": "relu"}),
        pytest.param("RNN", {"num_layers": 1}, marks=pytest.mark.long),
        pytest.param("LSTM", {"proj_size": 4, "bias": False}, marks=pytest.mark.long),
        pytest.param("LSTM", {"num_layers": 3, "bidirectional": False}, marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
def test_other_lengths_train_as_in_eager(kind, options):
    trained(made(kind, **options), whole, [(X, lengths) for lengths in OTHERS])


def test_the_last_state_is_that_of_the_last_word():
    # no sequence is as long as the padded tensor: nothing is unpacked, so that is no matter
    trained(made(), last_state, [(X, lengths.clamp(max=5)) for lengths in OTHERS])


def test_a_first_state_is_sorted_with_its_sequence():
    def loss(model, batch):
        first = torch.arange(4.0)[None, :, None].expand(2, 4, 6) / 10
        model.layers.flatten_parameters()
        _, last = model.layers(model.packed(*batch), first)
        return (last * torch.arange(4.0)[:, None]).square().mean()

    trained(made("GRU", num_layers=1), loss, [(X, lengths) for lengths in OTHERS])


def test_dropout_between_layers_draws_torchs_numbers_for_each_row():
    """The twin draws for the packed rows, and the program for the padded ones."""
    model = made(num_layers=3, dropout=0.4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(model, whole, optimizer, example_batch=(X, LENGTHS), cache=False, seed=1)
    begin = step.state_dict()
    step((X, LENGTHS))
    step((X, OTHERS[1]))
    assert step.certificate is not None and step.certificate.ok
    compiled = float(step((X, OTHERS[2])))
    step.restart(begin)
    again = [float(step.eager((X, lengths))) for lengths in (LENGTHS, OTHERS[1], OTHERS[2])]
    assert again[2] == pytest.approx(compiled, rel=1e-5)


def test_a_total_length_pads_and_cuts_nothing():
    def loss(model, batch):
        out, _ = model.layers(model.packed(*batch))
        scores, _ = pad_packed_sequence(out, total_length=9)
        return model.head(scores).square().mean()

    trained(made(num_layers=1), loss, [(X, lengths.clamp(max=5)) for lengths in OTHERS])


def test_sequences_of_a_list():
    def loss(model, batch):
        packed = pack_sequence(
            [model.embed(row[: 3 + i]) for i, row in enumerate(batch)], enforce_sorted=False
        )
        return pad_packed_sequence(model.layers(packed)[0])[0].square().mean()

    trained(made(num_layers=1), loss, [X, X.flip(0)])


def test_a_penalty_on_the_gradient_goes_through():
    def loss(model, batch):
        out, _ = model.layers(model.packed(*batch))
        (grad,) = torch.autograd.grad(
            pad_packed_sequence(out)[0].sum(), model.embed.weight, create_graph=True
        )
        return grad.square().mean()

    trained(made(num_layers=1), loss, [(X, lengths) for lengths in OTHERS])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 6, 1, 5], "shorter than the padded"),
        ([3, 7, 0, 5], "between 1 and"),
        ([3, 8, 1, 5], "between 1 and"),
    ],
)
def test_lengths_of_which_eager_makes_something_else_are_a_fault(lengths, message):
    model = made(num_layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(model, whole, optimizer, example_batch=(X, LENGTHS), cache=False)
    float(step((X, LENGTHS)))
    with pytest.raises(RuntimeError, match=rf"{message}[^\n]*\n.*test_packed\.py:\d+"):
        float(step((X, torch.tensor(lengths))))


def test_an_order_that_is_none_is_a_fault():
    def loss(model, batch):
        packed = pack_padded_sequence(model.embed(batch[0]), batch[1], batch_first=True)
        return model.layers(packed)[1].square().mean()

    model = made("GRU", num_layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    falling = LENGTHS.sort(descending=True)[0]
    step = detente.compile(model, loss, optimizer, example_batch=(X, falling), cache=False)
    float(step((X, falling)))
    with pytest.raises(RuntimeError, match="sorted in decreasing order"):
        float(step((X, LENGTHS)))


def _rows(model, batch):
    return model.packed(*batch).data.square().mean()


def _product(model, batch):
    return model.head(model.layers(model.packed(*batch))[0].data).square().mean()


def _sizes(model, batch):
    return model.packed(*batch).batch_sizes.sum() * model.head.weight.sum()


def _dropped(model, batch):
    packed = model.packed(*batch)
    rest = packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
    return model.layers(PackedSequence(nn.functional.dropout(packed.data), *rest))[1][0].mean()


@pytest.mark.parametrize("loss", [_rows, _product, _sizes, _dropped], ids=lambda loss: loss.__name__)
def test_packed_rows_themselves_are_refused_by_line(loss):
    with pytest.raises(
        Refused, match=r"of a packed sequence(.|\n)*test_packed\.py:\d+(.|\n)*unpack it first"
    ):
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        detente.compile(model, loss, optimizer, example_batch=(X, LENGTHS), cache=False)


def test_torchs_own_packing_is_as_it_was():
    made()(X, LENGTHS)
    packed = pack_padded_sequence(torch.ones(4, 7, 2), LENGTHS, batch_first=True, enforce_sorted=False)
    assert packed.data.shape == (16, 2)


def test_a_loss_typed_at_a_prompt_may_differentiate():
    typed = (
        "def loss(model, x):\n    y = model(x)\n"
        "    (g,) = torch.autograd.grad(y.sum(), model.weight, create_graph=True)\n    return (g * y.sum()).sum()\n"
    )
    for name in ("<string>", "<stdin>"):
        space = {"torch": torch}
        exec(compile(typed, name, "exec"), space)
        torch.manual_seed(0)
        trained(nn.Linear(3, 1, bias=False), space["loss"], [torch.ones(2, 3)] * 2)
