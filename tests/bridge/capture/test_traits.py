"""What a loss can ask of a batch's tensor beside its values: eager's answer in every step, or a refusal that says what
to do. Beside each step the loss runs in eager, on the same weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.capture.batch import flatten
from tests.sampled import sampled

FLAT = torch.arange(12.0).view(3, 4)
TURNED = torch.arange(12.0).view(4, 3).t()
WIDE = torch.arange(48.0).view(6, 8)
Loss = Callable[[Any, Any], torch.Tensor]


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean()


def named(x: torch.Tensor, **own: Any) -> torch.Tensor:
    made = x.clone()
    for name, value in own.items():
        setattr(made, name, value)
    return made


def stepping(loss: Loss, example: Any, **options: Any) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bridge.compile(model, loss, optimizer, example_batch=example, cache=False, **options), theirs


def as_eager(loss: Loss, batches: Sequence[Any], **options: Any) -> int:
    """How many programs there are for batches on each of which the step gives eager's loss, and its certificates."""
    step, theirs = stepping(loss, batches[0], **options)
    for batch in batches:
        assert float(step(batch)) == pytest.approx(float(loss(theirs, batch)), rel=1e-5)
    assert step.settled().ok
    return len(step.programs)


NOTED = torch.complex(FLAT, FLAT + 1).conj()

ASKED: dict[str, tuple[Loss, list[Any]]] = {
    "as_strided": (lambda m, x: mean(m(x.as_strided((3, 4), (4, 1)))), [FLAT, TURNED]),
    "is_contiguous": (lambda m, x: mean(m(x)) * (2 if x.is_contiguous() else 3), [FLAT, TURNED]),
    "stride": (lambda m, x: mean(m(x)) * x.stride(0), [FLAT, TURNED, WIDE[:3, :4]]),
    "the stride of one row": (
        lambda m, x: mean(m(x)) * x.stride(0),
        [FLAT[:1], FLAT[:1].as_strided((1, 4), (7, 1))],
    ),
    "of a tensor that takes a gradient": (
        lambda m, x: mean(torch.autograd.grad(mean(m(x)), x, create_graph=True)[0]) * x.stride(0),
        [FLAT.clone().requires_grad_(), TURNED.detach().requires_grad_()],
    ),
    "where the values answer, too": (
        lambda m, x: mean(m(x)) * (x.stride(0) if x.sum() > 0 else 1),
        [FLAT, TURNED, -FLAT, -TURNED],
    ),
    "is_conj": (
        lambda m, x: mean(m(x.real)) * (2 if x.is_conj() else 3) + x.imag.sum(),
        [NOTED, NOTED.resolve_conj()],
    ),
    "is_neg": (lambda m, x: mean(m(x)) * (2 if x.is_neg() else 3), [NOTED.imag, FLAT]),
    "is": (lambda m, b: mean(m(b[0])) * (3 if b[0] is b[1] else 1), [(FLAT, FLAT), (FLAT, FLAT.clone())]),
    "is, of three": (
        lambda m, b: mean(m(b["a"])) * (1 + (b["a"] is b["c"][0]) + 2 * (b["b"] is b["c"][0])),
        [{"a": FLAT, "b": FLAT, "c": [FLAT]}, {"a": FLAT, "b": 2 * FLAT, "c": [FLAT]}],
    ),
    "is, beside a float": (
        lambda m, b: mean(m(b[0])) * b[2] * (2 if b[0] is b[1] else 1),
        [(FLAT, FLAT, 1.0), (FLAT, FLAT.clone(), 1.0), (FLAT, FLAT, 2.0), (FLAT, FLAT, 3.0)],
    ),
    "an attribute": (
        lambda m, x: mean(m(x)) * getattr(x, "weight", 1.0),
        [FLAT, named(FLAT, weight=2.0), named(FLAT, weight=3.0)],
    ),
    "isinstance of a parameter": (
        lambda m, x: mean(m(x)) * (2 if isinstance(x, nn.Parameter) else 1),
        [FLAT.clone().requires_grad_(), nn.Parameter(FLAT.clone())],
    ),
    "isinstance of a buffer": (
        lambda m, x: mean(m(x)) * (2 if isinstance(x, nn.Buffer) else 1),
        [FLAT, nn.Buffer(FLAT.clone())],
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_loss_that_asks_has_eagers_answer_in_every_step(name: str) -> None:
    loss, batches = ASKED[name]
    as_eager(loss, [*batches, *batches])


@pytest.mark.parametrize("name", sampled(ASKED, 3))
def test_also_where_the_last_batch_is_the_first(name: str) -> None:
    loss, batches = ASKED[name]
    as_eager(loss, batches[::-1])


@pytest.mark.parametrize(
    "name", ["stride", "is_conj", "is_neg", "is", "an attribute", "isinstance of a parameter"]
)
def test_a_batch_that_was_placed_ahead_answers_alike(name: str) -> None:
    loss, batches = ASKED[name]
    step, theirs = stepping(loss, batches[-1])
    placed = [step.place(batch) for batch in batches]
    for ahead, batch in zip(placed, batches, strict=True):
        assert float(step(ahead)) == pytest.approx(float(loss(theirs, batch)), rel=1e-5)
    assert step.settled().ok


def test_micro_batches_of_one_tensor_are_one_tensor() -> None:
    loss, pair = ASKED["is"][0], (torch.randn(4, 4),) * 2
    step, theirs = stepping(loss, pair, accumulate=2)
    for batch in (pair, (pair[0], pair[0].clone())):
        each = [loss(theirs, part) for part in bridge_parts(batch)]
        assert float(step(batch)) == pytest.approx(float(sum(each)) / 2, rel=1e-5)


def bridge_parts(batch: Any) -> list[Any]:
    halves = [one.chunk(2) for one in batch]
    same = batch[0] is batch[1]
    return [(halves[0][part], halves[0 if same else 1][part]) for part in (0, 1)]


@pytest.mark.parametrize(
    "batches",
    [[FLAT, TURNED, WIDE[:3, 2:6], FLAT[:1].expand(3, 4)], [named(FLAT, mark=i) for i in range(3)]],
    ids=["strides", "attributes"],
)
def test_who_does_not_ask_has_one_program(batches: list[torch.Tensor]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert as_eager(lambda m, x: mean(m(x)), batches) == 1
    assert sum("for the third time" in str(one.message) for one in told) == (len(batches) > 3)


def test_a_step_that_was_given_such_a_batch_before_captures_nothing() -> None:
    step, _ = stepping(lambda m, x: mean(m(x)), FLAT)
    step(TURNED)
    step._variants.capture = None  # it would be called
    for batch in (TURNED, FLAT):
        step(batch)


def test_slices_of_a_data_set_are_one_program_and_no_capture() -> None:
    step, theirs = stepping(lambda m, x: mean(m(x)), WIDE[:2, :4])
    step._variants.capture = None
    for i in range(4):
        assert float(step(WIDE[i : i + 2, :4])) == pytest.approx(
            float(mean(theirs(WIDE[i : i + 2, :4]))), rel=1e-5
        )


BEGINS: dict[str, Loss] = {
    "storage_offset": lambda m, x: mean(m(x)) * (1 + x.storage_offset()),
    "as_strided": lambda m, x: mean(m(x.as_strided((2, 4), (4, 1), 0))),
    "of a view": lambda m, x: mean(m(x)) * (1 + x[1:].storage_offset()),
    "by name": lambda m, x: mean(m(torch.as_strided(x, (2, 4), (4, 1), storage_offset=0))),
}


@pytest.mark.parametrize("name", BEGINS)
def test_a_loss_that_asks_where_a_tensor_begins_is_for_those_that_begin_at_0(name: str) -> None:
    loss = BEGINS[name]
    step, theirs = stepping(loss, FLAT[:2])
    assert float(step(FLAT[:2])) == pytest.approx(float(loss(theirs, FLAT[:2])), rel=1e-5)
    for batch in (FLAT[1:], step.place(FLAT[1:])):
        with pytest.raises(bridge.Refused, match=r"batch begins at 4[\s\S]*test_traits.py[\s\S]*clone\(\)"):
            step(batch)
    assert float(step(FLAT[1:].clone())) == pytest.approx(float(loss(theirs, FLAT[1:].clone())), rel=1e-5)
    with pytest.raises(bridge.Refused, match="begins at 4"):
        stepping(loss, FLAT[1:])
    with pytest.raises(bridge.Refused, match="begins at 4"):
        bridge.functional(nn.Linear(4, 2), loss, FLAT[1:])
    with pytest.raises(bridge.Refused, match="is cut into micro-batches"):
        stepping(loss, torch.randn(4, 4), accumulate=2)


def test_as_strided_from_where_a_tensor_begins_asks_nothing() -> None:
    assert as_eager(lambda m, x: mean(m(x.as_strided((2, 4), (4, 1)))), [FLAT[:2], FLAT[1:]]) == 1


OF_THE_OBJECT: dict[str, Loss] = {
    "_version": lambda m, x: mean(m(x)) * (1 + x._version),
    "_base": lambda m, x: mean(m(x)) * (1 if x._base is None else 2),
    "_is_view": lambda m, x: mean(m(x)) * (1 + x._is_view()),
    "data_ptr": lambda m, x: mean(m(x)) * (1 + x[1:].data_ptr() % 2),
    "untyped_storage": lambda m, x: mean(m(x)) * x.untyped_storage().nbytes(),
    "storage": lambda m, x: mean(m(x)) * x.storage().size(),
    "is_set_to": lambda m, x: mean(m(x)) * (1 + x.is_set_to(x.view(3, 4))),
}


@pytest.mark.parametrize("name", OF_THE_OBJECT)
def test_what_only_the_object_knows_is_refused_with_the_line(name: str) -> None:
    with pytest.raises(bridge.Refused, match=rf"\[batch\].* for {name}, [\s\S]*test_traits.py"):
        stepping(OF_THE_OBJECT[name], FLAT)


def test_of_what_the_loss_computes_it_may_be_asked() -> None:
    as_eager(lambda m, x: mean(m(x)) * (1 + (x + 1).storage_offset()), [FLAT[:2], FLAT[1:]])


def by_rows(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A mask's rows are taken by number, as transformers' masks are made: torch asks itself where each of them lies."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    with TransformGetItemToIndex():
        return mean(m(torch.vmap(lambda row: x[row])(torch.arange(2))))


def test_what_torch_notes_for_itself_is_no_question_of_the_loss() -> None:
    as_eager(by_rows, [FLAT[:2], FLAT[1:]])


class Own(torch.Tensor):
    """A class of the user's."""


class Asks(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("kind", [Own, Asks])
def test_a_tensor_of_a_class_of_its_own_is_refused_in_any_step(kind: Any) -> None:
    def loss(m: Any, batch: Any) -> torch.Tensor:
        return mean(m(batch["x"])) * (2 if isinstance(batch["x"], kind) else 1)

    other = {"x": FLAT.as_subclass(kind)}
    with pytest.raises(bridge.Refused, match=rf"batch\['x'\] is a .*{kind.__name__}[\s\S]*as_subclass"):
        stepping(loss, other)
    step, theirs = stepping(loss, {"x": FLAT})
    assert float(step({"x": FLAT})) == pytest.approx(float(loss(theirs, {"x": FLAT})), rel=1e-5)
    with pytest.raises(bridge.Refused, match="as_subclass"):
        step(other)


def test_an_attribute_that_holds_a_tensor_is_refused() -> None:
    with pytest.raises(bridge.Refused, match=r"attribute weight \(a Tensor\)[\s\S]*\(batch, batch.weight\)"):
        flatten(named(FLAT, weight=torch.ones(3)))


def test_a_value_that_a_step_gave_back_is_a_batch_as_any() -> None:
    """It is a class of the bridge's own, and so is a weight that a step trains."""
    step, theirs = stepping(
        lambda m, b: mean(m(b[0])) + b[1] + b[2].sum(), (FLAT, torch.tensor(1.0), torch.ones(2))
    )
    kept = step.model.bias.detach()
    value = step((FLAT, torch.tensor(1.0), kept))
    wanted = float(mean(theirs(FLAT)) + value + kept.sum())
    assert float(step((FLAT, value, kept))) == pytest.approx(wanted, rel=1e-5)
    assert len(step.programs) == 1


def test_a_pure_function_is_of_arrays_which_are_two() -> None:
    """Its example may be one tensor twice; the batches that it is called with are none of torch's."""
    model = nn.Linear(4, 2)
    made = bridge.functional(model, lambda m, b: mean(m(b[0])) + mean(m(b[1])), (FLAT, FLAT))
    wanted = float(mean(model(FLAT)) + mean(model(FLAT + 1)))
    assert float(made.loss(made.params, (FLAT, FLAT + 1))) == pytest.approx(wanted, rel=1e-5)


def test_a_program_that_went_is_not_asked_for_any_more() -> None:
    step, theirs = stepping(lambda m, x: mean(m(x)), FLAT)
    step(TURNED)
    step.settled()
    for table in (step._variants.captured, step._variants.made):
        table.clear()
    for batch in (TURNED, FLAT):
        assert float(step(batch)) == pytest.approx(float(mean(theirs(batch))), rel=1e-5)


def test_aux_gives_back_one_tensor_as_one_and_a_shape_as_a_shape() -> None:
    def loss(m: Any, batch: Any) -> Any:
        y = m(batch[0])
        return mean(y), {"y": y, "again": (y, y.shape, batch[1]), "other": y + 0}

    step, theirs = stepping(loss, (FLAT, FLAT.shape))
    _, found = step((FLAT, FLAT.shape))
    _, wanted = loss(theirs, (FLAT, FLAT.shape))
    assert found["again"][0] is found["y"] and found["other"] is not found["y"]
    assert type(found["again"][1]) is type(found["again"][2]) is torch.Size
    assert found["again"][1:] == wanted["again"][1:]
    torch.testing.assert_close(found["y"].wait(), wanted["y"].detach())


def test_of_micro_batches_too() -> None:
    def loss(m: Any, x: Any) -> Any:
        y = m(x)
        return mean(y), (y, y, x.shape)

    step, _ = stepping(loss, torch.randn(4, 4), accumulate=2)
    _, (one, same, shape) = step(torch.randn(4, 4))
    assert one is same and type(shape) is torch.Size and tuple(one.shape) == (2, 2, 2)
    _, (one, same, shape) = step.eager(torch.randn(4, 4))
    assert type(shape) is torch.Size


def test_a_shape_in_a_batch_is_a_shape_for_the_loss() -> None:
    as_eager(lambda m, b: mean(m(b[0].view(b[1]))) * (1 + isinstance(b[1], torch.Size)), [(FLAT, FLAT.shape)])


OF_THE_MODULE = {
    "a parameter": (lambda m: m.weight, "own weight"),
    "a view of one": (lambda m: m.weight[:], r"computed with a gradient[\s\S]*detach\(\)"),
    "what was computed of it": (lambda m: m.weight * 2, "computed with a gradient"),
}


@pytest.mark.parametrize("name", OF_THE_MODULE)
def test_what_would_take_a_gradient_out_of_the_batch_is_refused(name: str) -> None:
    """Eager trains the weight by what the batch does with it; a step would, silently, not."""
    make, said = OF_THE_MODULE[name]

    def loss(m: Any, b: Any) -> torch.Tensor:
        return mean(m(b[0])) + b[1].square().sum()

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(bridge.Refused, match=said):
        bridge.compile(model, loss, optimizer, example_batch=(FLAT, make(model)), cache=False)
    others = nn.Parameter(model.weight.detach().clone())
    step = bridge.compile(model, loss, optimizer, example_batch=(FLAT, others), cache=False)
    step((FLAT, others))
    with pytest.raises(bridge.Refused, match=said):
        step((FLAT, make(model)))


def test_micro_batches_of_what_takes_a_gradient_take_one_each() -> None:
    def loss(m: Any, x: Any) -> torch.Tensor:
        return mean(torch.autograd.grad(mean(m(x)), x, create_graph=True)[0])

    batch = torch.randn(4, 4, requires_grad=True)
    step, theirs = stepping(loss, batch, accumulate=2)
    wanted = sum(loss(theirs, part) for part in batch.chunk(2)) / 2
    assert float(step(batch)) == pytest.approx(float(wanted), rel=1e-5)
    assert step.settled().ok
