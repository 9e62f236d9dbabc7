"""Batches whose shapes are those of the first and whose values are at an edge: no certificate sees them.

Each case trains through the bridge and in eager on the same batches, the first three of them harmless.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import detente
from detente import bridge
from tests.sampled import sampled

NAN, INF = float("nan"), float("inf")
RAISED = "raised"


class Drawn:
    """Numbers of a generator of its own: eager and the bridge see the same."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *size):
        return torch.randn(*size, generator=self.generator)


class Named(nn.Module):
    """Parameters by name."""

    def __init__(self, **parameters):
        super().__init__()
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value.clone()))


def losses(bridged, made, loss, batches, lr, **options):
    torch.manual_seed(0)
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    if bridged:
        options = {"quiet": True, "cache": False, "nonfinite": "return"} | options
        step = detente.compile(model, loss, optimizer, example_batch=batches[0], seed=3, **options)
    else:

        def step(batch):
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            return value.detach()

    found = []
    for batch in batches:
        try:
            found.append(float(step(batch)))
        except (RuntimeError, IndexError, ValueError) as error:
            assert "detente" not in type(error).__module__, error
            found.append(RAISED)
            break
    return found


def same(made, loss, batches, lr=0.1, **options):
    theirs = losses(False, made, loss, batches, lr)
    ours = losses(True, made, loss, batches, lr, **options)
    assert [x == RAISED for x in ours] == [x == RAISED for x in theirs], (ours, theirs)
    numbers = [torch.tensor([x for x in found if x != RAISED]) for found in (ours, theirs)]
    torch.testing.assert_close(*numbers, rtol=2e-4, atol=5e-5, equal_nan=True)
    return theirs


STEPS = torch.arange(64)
CELLS = {
    "floor": (lambda x: (x / 41.0).floor().long(), (STEPS + 0.5) * 41.0, STEPS * 41.0),
    "a row of a heat map": (lambda x: (x / 47).int().long(), STEPS * 47 + 20, STEPS * 47),
    "trunc": (lambda x: torch.div(x, 55.0, rounding_mode="trunc").long(), (STEPS + 0.5) * 55.0, STEPS * 55.0),
    "round": (lambda x: torch.round(x / 82.0).long(), (STEPS + 0.2) * 82.0, (STEPS + 0.5) * 82.0),
    "of seven tenths": (lambda x: (x / 0.7).floor().long(), (STEPS + 0.5) * 0.7, STEPS * 0.7),
    "moved, clamped and compared": (
        lambda x: (
            ((x / 41.0 - 1.0).clamp(min=0.0) >= 1.0).long() + (x.reshape(8, 8) / 41.0).reshape(-1).long()
        ),
        (STEPS + 0.5) * 41.0,
        STEPS * 41.0,
    ),
}


@pytest.mark.parametrize("name", sampled(CELLS, 3))
def test_a_quotient_on_the_border_of_a_cell_belongs_to_the_cell_of_eager(name):
    find, inside, border = CELLS[name]
    draw = Drawn(1)
    batches = [(inside if i < 3 else border, draw(64)) for i in range(6)]

    def loss(model, batch):
        return (model.cells[find(batch[0])] - batch[1]).square().mean()

    same(lambda: Named(cells=torch.linspace(-3, 3, 66)), loss, batches, lr=2.0)


def test_rounding_by_a_large_number_rounds():
    magic, draw = 12582912.0, Drawn(21)
    batches = [torch.arange(8.0) + i if i < 3 else 5 * draw(8).abs() for i in range(6)]
    same(
        lambda: Named(a=torch.ones(8)),
        lambda m, x: (m.a * ((x + magic) - magic) - 1).square().mean(),
        batches,
        lr=1e-2,
    )


RESIZES = {
    "bilinear beside NaN": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), NAN),
    "corners beside infinity": (
        lambda x: F.interpolate(x, size=(9, 11), mode="bilinear", align_corners=True),
        INF,
    ),
    "bicubic beside NaN": (lambda x: F.interpolate(x, scale_factor=3, mode="bicubic"), NAN),
    "antialias beside NaN": (lambda x: F.interpolate(x, size=(4, 3), mode="bilinear", antialias=True), NAN),
    "adaptive average beside NaN": (lambda x: F.adaptive_avg_pool2d(x, 4), NAN),
}


@pytest.mark.parametrize("name", sampled(RESIZES, 3))
def test_a_pixel_that_is_not_finite_reaches_its_neighbours_alone(name):
    resize, lost = RESIZES[name]
    draw = Drawn(2)
    batches = []
    for i in range(5):
        picture = draw(2, 1, 6, 6)
        wanted = draw(*resize(picture).shape)
        if i >= 3:
            picture[:, :, 2, 3] = lost
        batches.append((picture, wanted))
    known = torch.isfinite(resize(batches[-1][0]))
    assert known.any() and not known.all()

    def loss(model, batch):
        large = resize(batch[0])
        known = torch.isfinite(large)
        found = torch.where(known, large, 0.0) * model.gain + model.shift
        return torch.where(known, (found - batch[1]).square(), 0.0).sum() / known.sum()

    same(lambda: Named(gain=torch.ones(()), shift=torch.zeros(())), loss, batches)


def test_an_exponential_number_is_never_zero():
    def loss(model, values):
        return (F.gumbel_softmax(model.logits.expand(1 << 16, 64)) * values).sum(-1).mean()

    draw = Drawn(3)
    batches = [draw(64) for _ in range(8)]
    found = losses(True, lambda: Named(logits=torch.zeros(64)), loss, batches, 0.1, certificate="none")
    assert all(math.isfinite(x) for x in found), found


ONCE, TWICE = torch.tensor([1, 3, 5, 0, 6]), torch.tensor([1, 1, 1, 5, 5])


def _by_index(model, rows, places):
    canvas = rows.new_zeros(8, 4)
    canvas[places] = rows
    return canvas


def _by_scatter(model, rows, places):
    return rows.new_zeros(8, 4).scatter(0, places[:, None].expand(-1, 4), rows)


def _by_copy(model, rows, places):
    return rows.new_zeros(8, 4).index_copy(0, places, rows)


def _by_put(model, rows, places):
    return rows.new_zeros(8, 4).put(places * 4, rows[:, 0])


def _one_to_all(model, rows, places):
    canvas = torch.cat([rows, rows[:3]]) * 1.0
    canvas[places] = model.one
    return canvas


def _filled(model, rows, places):
    return (torch.cat([rows, rows[:3]]) * 1.0).index_fill(0, places, model.one)


@pytest.mark.parametrize("write", [_by_index, _by_scatter, _by_copy, _by_put, _one_to_all, _filled])
def test_of_several_writers_of_one_place_each_has_its_gradient(write):
    draw = Drawn(4)
    batches = [(draw(5, 6), ONCE if i < 3 else TWICE, draw(8, 4)) for i in range(6)]

    def made():
        model = Named(one=torch.ones(()))
        model.made = nn.Linear(6, 4)
        return model

    def loss(model, batch):
        x, places, wanted = batch
        return (write(model, model.made(x), places) - wanted).square().sum()

    same(made, loss, batches, lr=0.01)


def test_the_angle_of_zero_has_no_gradient():
    draw = Drawn(5)
    batches = [draw(8, 6) for _ in range(6)]
    for x in batches[3:]:
        x[5:] = 0.0

    def made():
        return nn.ModuleList([nn.Linear(6, 5, bias=False), nn.Linear(6, 5, bias=False)])

    def loss(model, x):
        z = torch.complex(model[0](x), model[1](x))
        return z.abs().square().mean() + 0.1 * (torch.angle(z) - 0.5).square().mean()

    assert all(math.isfinite(x) for x in same(made, loss, batches))


def _bytes(*values):
    return torch.tensor(values, dtype=torch.uint8)


def test_labels_of_one_byte_are_refused_because_torchs_export_refuses_them():
    batch = (Drawn(6)(6, 4), _bytes(0, 7, 50, 100, 155, 199))
    model = nn.Linear(4, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(bridge.Refused, match="uint8"):
        detente.compile(
            model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), optimizer, example_batch=batch, cache=False
        )


@pytest.mark.parametrize("written", [lambda c: torch.where(c == 200, -1, c), lambda c: c * -1])
def test_minus_one_among_bytes_is_255(written):
    draw = Drawn(7)
    batches = [(draw(6, 4), _bytes(0, 7, 200, 100, 155, 199)) for _ in range(3)]

    def loss(model, batch):
        return (model(batch[0]).square().sum(1) * written(batch[1]).float() / 256).mean()

    same(lambda: nn.Linear(4, 3), loss, batches)


FACTORS = {
    "cholesky_ex": (
        torch.linalg.cholesky_ex,
        torch.diag(torch.tensor([1.0, -1.0, 1.0, 1.0])),
    ),
    "inv_ex": (torch.linalg.inv_ex, torch.zeros(4, 4)),
    "solve_ex": (lambda m: torch.linalg.solve_ex(m, torch.eye(4).expand(3, 4, 4)), torch.zeros(4, 4)),
}


@pytest.mark.parametrize("name", sampled(FACTORS, 3))
def test_a_factorisation_that_fails_says_where(name):
    factor, last = FACTORS[name]
    draw = Drawn(8)
    batches = []
    for i in range(5):
        half = draw(3, 4, 4)
        whole = half @ half.mT + 0.5 * torch.eye(4)
        if i >= 3:
            whole[1] = last
        batches.append((whole, draw(3, 4, 2)))

    def loss(model, batch):
        found, info = factor(batch[0])
        found = torch.where((info > 0)[:, None, None], torch.eye(4), found)
        return (found @ model.w - batch[1]).square().mean() + info.sum()

    assert all(math.isfinite(x) for x in same(lambda: Named(w=torch.ones(4, 2)), loss, batches, lr=0.02))


def test_a_matrix_without_a_factor_leaves_the_others_their_gradient():
    draw = Drawn(9)
    halves = [draw(3, 4, 4) for _ in range(5)]

    def loss(model, half):
        found, info = torch.linalg.cholesky_ex(half @ half.mT * model.w + model.shift * torch.eye(4))
        return torch.where((info == 0)[:, None, None], found, 0.0).square().sum() / 10

    for half in halves[3:]:
        half[1] = 0.0
    same(lambda: Named(w=torch.ones(()), shift=torch.zeros(())), loss, halves, lr=1e-3, certificate="none")


@pytest.mark.parametrize("padding", [NAN, INF])
@pytest.mark.parametrize(
    "layer, wide",
    [
        (lambda: nn.LSTM(3, 5, batch_first=True), 5),
        (lambda: nn.GRU(3, 4, batch_first=True, bidirectional=True), 8),
        (lambda: nn.RNN(3, 5, batch_first=True, nonlinearity="relu", num_layers=2), 5),
    ],
)
def test_what_stands_behind_the_end_of_a_sequence_is_not_read(layer, wide, padding):
    draw = Drawn(10)
    batches = []
    for i in range(5):
        x, lengths = draw(4, 6, 3), torch.tensor([6, 6, 6, 6] if i < 3 else [6, 4, 2, 5])
        for row, length in zip(x, lengths, strict=True):
            row[length:] = padding
        batches.append((x, lengths, torch.tensor([0, 2, 1, 1])))

    def loss(model, batch):
        x, lengths, labels = batch
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(model[0](packed)[0], batch_first=True)
        return F.cross_entropy(model[1](outputs.sum(1)), labels)

    found = same(lambda: nn.ModuleList([layer(), nn.Linear(wide, 3)]), loss, batches, lr=0.05)
    assert all(math.isfinite(x) for x in found)


def _ctc(times, labels=((1, 2, 3), (4, 1, 1))):
    return torch.tensor(labels), torch.tensor(times), torch.tensor([3, 2])


def _ctc_loss(model, batch):
    return F.ctc_loss(model(batch[0]).log_softmax(-1), *batch[1:])


def _chosen(model, batch):
    return model(batch[0]).gather(1, torch.multinomial(batch[1], 1)).square().mean()


RAISES = {
    "a target below zero": (
        lambda: nn.Linear(4, 1),
        lambda m, b: F.binary_cross_entropy(torch.sigmoid(m(b[0]).squeeze(1)), b[1]),
        (Drawn(1)(5, 4), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])),
        (Drawn(1)(5, 4), torch.tensor([0.0, 1.0, -1.0, 0.0, -1.0])),
    ),
    "more time than there is": (
        lambda: nn.Linear(6, 5),
        _ctc_loss,
        (Drawn(2)(10, 2, 6), *_ctc([10, 8])),
        (Drawn(2)(10, 2, 6), *_ctc([11, 8])),
    ),
    "a deviation below zero": (
        lambda: nn.Linear(4, 3),
        lambda m, b: (m(b[0]) + 0 * torch.normal(torch.zeros(5, 3), b[1])).square().mean(),
        (Drawn(3)(5, 4), torch.full((5, 3), 0.5)),
        (Drawn(3)(5, 4), torch.full((5, 3), -0.5)),
    ),
    "weights that are all zero": (
        lambda: nn.Linear(4, 1),
        lambda m, b: (m(b[0]).expand(5, 3) + 0 * torch.multinomial(b[1], 1)).square().mean(),
        (Drawn(4)(5, 4), torch.ones(5, 3)),
        (Drawn(4)(5, 4), torch.zeros(5, 3)),
    ),
    "a weight that is not finite": (
        lambda: nn.Linear(4, 1),
        lambda m, b: (m(b[0]).expand(5, 3) + 0 * torch.multinomial(b[1], 1)).square().mean(),
        (Drawn(4)(5, 4), torch.ones(5, 3)),
        (Drawn(4)(5, 4), torch.full((5, 3), NAN)),
    ),
    **{
        f"-1 in {name}": (
            lambda: nn.Linear(3, 2),
            lambda m, b, join=join: (join(torch.ones(6, 2), b[1], m(b[0])) - 0.5).square().mean(),
            (Drawn(5)(4, 3), torch.tensor([0, 2, 5, 1])),
            (Drawn(5)(4, 3), torch.tensor([0, 2, -1, 1])),
        )
        for name, join in {
            "index_add": lambda table, places, rows: table.index_add(0, places, rows),
            "index_copy": lambda table, places, rows: table.index_copy(0, places, rows),
            "index_reduce": lambda table, places, rows: table.index_reduce(0, places, rows, "mean"),
        }.items()
    },
    "bags that begin late": (
        lambda: nn.Embedding(6, 3),
        lambda m, b: (F.embedding_bag(b[0], m.weight, b[1], mode="sum") - 0.5).square().mean(),
        (torch.tensor([1, 2, 4, 5, 3, 0]), torch.tensor([0, 2, 4])),
        (torch.tensor([1, 2, 4, 5, 3, 0]), torch.tensor([1, 2, 4])),
    ),
    "a bin of NaN": (
        lambda: nn.Embedding(6, 3),
        lambda m, x: (m((x * 6).long()) - 0.5).square().mean(),
        torch.tensor([0.1, 0.9, 0.4]),
        torch.tensor([0.1, NAN, 0.4]),
    ),
}


@pytest.mark.parametrize("name", sampled(RAISES, 3))
def test_where_eager_raises_the_step_does(name):
    made, loss, good, bad = RAISES[name]
    assert same(made, loss, [good, good, good, bad, good])[-1] == RAISED


def test_a_blank_among_the_labels_of_ctc_is_skipped_as_eager_skips_it():
    draw = Drawn(11)
    batches = [(draw(10, 2, 6), *_ctc([10, 8])) for _ in range(3)]
    batches += [(draw(10, 2, 6), *_ctc([10, 8], ((1, 0, 3), (0, 1, 1)))) for _ in range(3)]
    assert all(math.isfinite(x) for x in same(lambda: nn.Linear(6, 5), _ctc_loss, batches))


def _multiples(draw, scale=1.0):
    """Multiples of an eighth, then any numbers."""
    made = [(draw(6, 4), draw(6, 2)) for _ in range(6)]
    return [((x * 8).round() / 8 if i < 3 else x * scale, y) for i, (x, y) in enumerate(made)]


ROUNDED = {
    "what bfloat16 leaves out": (lambda x: x + 256 * (x - x.bfloat16().float()), 1.0),
    "what float16 does not hold": (
        lambda x: torch.nan_to_num(x.half().float(), posinf=1.0, neginf=-1.0) / 1e4,
        1e5,
    ),
    "an octave below": (lambda x: x + 256 * (x - x.to(torch.float8_e4m3fn).float().clamp(-4, 4)) / 16, 1.0),
}


@pytest.mark.parametrize("name", sampled(ROUNDED, 3))
def test_a_cast_there_and_back_rounds(name):
    seen, scale = ROUNDED[name]

    def loss(model, batch):
        return (model(seen(batch[0])) - batch[1]).square().mean()

    same(lambda: nn.Linear(4, 2), loss, _multiples(Drawn(12), scale), lr=0.002)


class Averages(nn.Module):
    """A mean in bfloat16 of features around 4."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("mean", torch.ones(4, dtype=torch.bfloat16))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.999)
            self.mean.add_(x.mean(0).bfloat16(), alpha=0.001)
        return self.head(x - self.mean.float())


def test_an_average_in_bfloat16_is_rounded_after_each_operation():
    """Eager's climbs by a last digit in every step; rounded once for two operations it would stay where it is."""
    draw = Drawn(13)
    batches = [(torch.full((6, 4), 4.0) + 0.01 * draw(6, 4), draw(6, 2)) for _ in range(60)]
    found = same(Averages, lambda model, b: (model(b[0]) - b[1]).square().mean(), batches, lr=0.01)
    assert len(found) == 60


@pytest.mark.parametrize(
    "size, bad, options",
    [
        ((4, 5), NAN, {"padding_mode": "border"}),
        ((4, 5), NAN, {"padding_mode": "reflection", "mode": "nearest"}),
        ((4, 5), INF, {"padding_mode": "border"}),
        ((4, 5, 3), INF, {"padding_mode": "zeros"}),
        ((4, 5, 3), NAN, {"padding_mode": "zeros"}),
        ((4, 5, 3), NAN, {"padding_mode": "border"}),
    ],
)
def test_a_coordinate_that_is_not_finite_reads_what_eager_reads(size, bad, options):
    draw = Drawn(14)
    batches = []
    for i in range(5):
        grid = 0.8 * torch.tanh(draw(1, *(3,) * len(size), len(size)))
        if i == 4:  # the last: at NaN torch's backward pass may read another pixel than its forward pass
            grid.view(-1, len(size))[4] = bad
        batches.append((grid, draw(1, 2, *(3,) * len(size))))

    def loss(model, batch):
        found = F.grid_sample(model.picture, batch[0], align_corners=False, **options)
        return (found - batch[1]).square().mean()

    start = Drawn(15)(1, 2, *size)
    same(lambda: Named(picture=start), loss, batches)


def test_heaviside_of_nan_is_zero():
    draw = Drawn(16)
    batches = [draw(6) for _ in range(5)]
    for x in batches[3:]:
        x[1:4] = NAN

    def loss(model, x):
        return (model(torch.heaviside(x, torch.tensor([0.5]))[None]) - 1).square().mean()

    assert all(math.isfinite(x) for x in same(lambda: nn.Linear(6, 2), loss, batches))


def test_a_cosine_below_eps_keeps_the_gradient_of_its_norm():
    draw = Drawn(17)
    batches = [(draw(6, 4) * (1.0 if i < 3 else 0.02), draw(6, 5)) for i in range(6)]

    def loss(model, batch):
        return (1 - F.cosine_similarity(model(batch[0]), batch[1], dim=1, eps=0.1)).mean()

    same(lambda: nn.Linear(4, 5, bias=False), loss, batches, lr=0.3)


def test_an_infinite_number_as_an_integer_is_what_this_processor_makes_of_it():
    draw = Drawn(18)
    batches = [draw(6).abs() + 0.2 for _ in range(5)]
    for seconds in batches[3:]:
        seconds[2:4] = 0.0

    def loss(model, seconds):
        return (model((1 / seconds).long().clamp(0, 7)) - 0.5).square().mean()

    same(lambda: nn.Embedding(8, 3), loss, batches, lr=1.0)


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_the_largest_of_a_window_of_minus_infinities_is_inside_of_the_picture(ceil_mode):
    draw = Drawn(19)
    batches = [(draw(1, 1, 6, 6), torch.zeros(1, 1, 6, 6, dtype=torch.bool)) for _ in range(5)]
    for _, hidden in batches[3:]:
        hidden[..., :3, :3] = True

    def loss(model, batch):
        heat = batch[0].masked_fill(batch[1], -INF)
        _, places = F.max_pool2d(heat, 3, 3, 1, ceil_mode=ceil_mode, return_indices=True)
        return (model.weight.flatten()[places.flatten()] - 0.5).square().mean()

    assert RAISED not in same(lambda: nn.Linear(6, 6, bias=False), loss, batches, lr=0.5)


def test_a_histogram_counts_a_border_where_eager_counts_it():
    draw = Drawn(20)
    inside, border = (torch.arange(210) + 0.5) / 300, torch.arange(210) / 300
    batches = [(inside if i < 3 else border, draw(3)) for i in range(5)]

    def loss(model, batch):
        counts = torch.histc(batch[0], bins=21, min=0.0, max=0.7)
        return (model(counts[None] / 10) - batch[1]).square().mean()

    same(lambda: nn.Linear(21, 3), loss, batches, lr=0.01)
