"""An alias of a parameter that a loop took between two steps moves along with it, and a write through it is a write."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal, run

Taken = Callable[[World], Any]
SGD: Any = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.05)}

# What is taken once, and what is written through it after every step.
WRITES: dict[str, tuple[Taken, Callable[[Any], Any]]] = {
    "data": (lambda w: [p.data for p in w.model.parameters()], lambda a: [t.clamp_(-0.1, 0.1) for t in a]),
    "detach": (lambda w: w.model.first.weight.detach(), lambda a: a.mul_(0.5)),
    "transposed": (lambda w: w.model.first.weight.data.t(), lambda a: a[0].fill_(0.3)),
    "flat": (lambda w: w.model.first.weight.data.view(-1), lambda a: a.__setitem__(3, 0.7)),
    "halves": (lambda w: w.model.first.weight.data.chunk(2), lambda a: a[0].copy_(a[1])),
    "rows": (lambda w: list(w.model.first.weight.data), lambda a: a[2].zero_()),
    "foreach": (
        lambda w: [p.data for p in w.model.parameters()],
        lambda a: torch._foreach_mul_(a, 0.9),
    ),
    "out": (lambda w: w.model.first.weight.data, lambda a: torch.mul(a, 0.5, out=a)),
    "statistics": (lambda w: w.model.norm.running_mean.data, lambda a: a.zero_()),
    "another parameter": (
        lambda w: nn.Parameter(w.model.first.weight.data),
        lambda a: nn.init.constant_(a, 0.1),
    ),
    "the module's state": (lambda w: w.model.state_dict(), lambda a: a["last.weight"].zero_()),
}


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("taken_at", [0, 1], ids=["before the first step", "behind the first step"])
def test_a_write_through_it_is_one_to_the_module(kind: str, taken_at: int) -> None:
    take, write = WRITES[kind]

    def loop(world: World) -> list[float]:
        losses, alias = [], None
        for count, batch in enumerate(batches(4)):
            if count == taken_at:
                alias = take(world)
            losses.append(world.step(batch))
            if alias is not None:
                write(alias)
        return losses

    equal(loop, certificate="none", **SGD)


def holding(state: dict[str, torch.Tensor]) -> nn.Module:
    made = Net().eval()
    made.load_state_dict(state, assign=True)
    return made


# What is taken once, and a number of it that is read after every step.
READS: dict[str, tuple[Taken, Callable[[Any], float]]] = {
    "the module's state": (
        lambda w: w.model.state_dict(),
        lambda a: sum(float(t.float().square().sum()) for t in a.values()),
    ),
    "a row in graph": (lambda w: w.model.first.weight[2], lambda a: float(a.detach().sum())),
    "what numpy sees": (lambda w: w.model.first.weight.data, lambda a: float(a.numpy().sum())),
    "another module": (
        lambda w: holding(w.model.state_dict()),
        lambda a: float(a(batches(1)[0]["x"]).square().sum().detach()),
    ),
}


@pytest.mark.parametrize("kind", READS)
def test_it_says_what_was_trained(kind: str) -> None:
    take, read = READS[kind]

    def loop(world: World) -> list[float]:
        losses, alias = [], take(world)
        for batch in batches(4):
            losses += [world.step(batch), read(alias)]
        return losses

    equal(loop, certificate="none", **SGD)


def test_moments_that_are_kept_are_the_optimizers() -> None:
    def loop(world: World) -> list[float]:
        losses, kept = [], None
        for batch in batches(4):
            losses.append(world.step(batch))
            kept = kept or [state["exp_avg"].data for state in world.optimizer.state.values()]
            losses += [float(t.sum()) for t in kept]
            kept[0].zero_()
        return losses

    equal(loop, certificate="none")


def test_copies_and_files_hold_plain_tensors() -> None:
    def loop(world: World) -> list[float]:
        world.step(batches(1)[0])
        state, file = world.model.state_dict(), io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        copies = [
            torch.load(file, weights_only=True),
            copy.deepcopy(state),
            pickle.loads(pickle.dumps(state)),
        ]
        found = [tensor for made in copies for tensor in made.values()]
        assert all(type(tensor) is torch.Tensor and not vars(tensor) for tensor in found)
        assert repr(state["first.weight"]).startswith("tensor(")
        made = nn.Parameter(state["first.weight"])
        assert isinstance(made, nn.Parameter) and made.requires_grad
        return [float(tensor.float().sum()) for tensor in found]

    equal(loop, certificate="none", **SGD)


def test_the_module_can_be_traced_between_steps() -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for batch in batches(3):
            losses.append(world.step(batch))
            world.model.eval()
            traced = torch.jit.trace(world.model, batch["x"])
            world.model.train()
            losses.append(float(traced(batch["x"]).sum().detach()))
        return losses

    equal(loop, certificate="none", **SGD)


def binds_data(world: World, other: nn.Module) -> Any:
    for theirs, mine in zip(other.parameters(), world.model.parameters(), strict=True):
        theirs.data = mine.data
    return other


def binds_its_own(world: World, other: nn.Module) -> Any:
    for theirs, mine in zip(other.parameters(), world.model.parameters(), strict=True):
        mine.data = theirs.data
    return other


def sets(world: World, other: nn.Module) -> Any:
    with torch.no_grad():
        for theirs, mine in zip(other.parameters(), world.model.parameters(), strict=True):
            theirs.set_(mine)
    return other


def swaps(world: World, other: nn.Module) -> Any:
    for theirs, mine in zip(other.parameters(), world.model.parameters(), strict=True):
        torch.utils.swap_tensors(theirs, nn.Parameter(mine.detach()))
    return other


BINDS: dict[str, Callable[[World, nn.Module], Any]] = {
    "data": binds_data,
    "the module's own data": binds_its_own,
    "set_": sets,
    "swap_tensors": swaps,
}


def binds_at_two(bind: Callable[[World, nn.Module], Any]) -> Callable[[World], list[float]]:
    """Another module shows the memory of the trained one from step 2 on: it is read after every step, and written once.
    In neither is anybody asked: torch binds memory in C."""

    def loop(world: World) -> list[float]:
        other, losses = copy.deepcopy(world.model).eval(), []
        for count, batch in enumerate(batches(8)):
            losses.append(world.step(batch))
            if count == 2:
                bind(world, other)
            if count >= 2:
                losses.append(float(other(batch["x"]).square().sum().detach()))
            if count == 5:
                with torch.no_grad():
                    for parameter in other.parameters():
                        parameter.mul_(0.5)
        return losses

    return loop


@pytest.mark.parametrize("kind", BINDS)
def test_another_module_that_shows_its_memory_is_followed(kind: str) -> None:
    equal(binds_at_two(BINDS[kind]), certificate="none", **SGD)


def test_one_that_was_put_aside_is_followed_too() -> None:
    """``gc.freeze()``, which loops call for speed: what is put aside, the collector does not tell of."""

    def freezes(world: World, other: nn.Module) -> nn.Module:
        gc.freeze()
        return binds_data(world, other)

    try:
        equal(binds_at_two(freezes), certificate="none", **SGD)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def scripts_at_two(compile_in_c: Callable[[nn.Module, Any], Any]) -> Callable[[World], list[float]]:
    """A program of TorchScript is made once, and reads the module's tensors in C after every step."""

    def loop(world: World) -> list[float]:
        losses, program = [], None
        for count, batch in enumerate(batches(6)):
            losses.append(world.step(batch))
            if count == 2:
                world.model.eval()
                program = compile_in_c(world.model, batch["x"])
                world.model.train()
            if program is not None:
                losses.append(float(program(batch["x"]).square().sum().detach()))
        return losses

    return loop


SCRIPTS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "trace": torch.jit.trace,
    "script": lambda module, _: torch.jit.script(module.first),  # a part: dictionaries do not script
    "frozen": lambda module, x: torch.jit.freeze(torch.jit.trace(module, x)),
}


def array_at_two(world: World) -> list[float]:
    """An array of numpy that shows the memory, and a part of it, are read and written from step 2 on; then dropped."""
    losses, part = [], None
    for count, batch in enumerate(batches(8)):
        losses.append(world.step(batch))
        if count == 2:
            part = world.model.first.weight.detach().numpy()[1:].reshape(-1)
        if part is not None:
            losses.append(float(part.sum()))
        if count == 4:
            part *= 0.5
        if count == 5:
            part = None
    return losses


def test_an_array_of_numpy_is_followed_for_as_long_as_it_lives() -> None:
    world = equal(array_at_two, certificate="none", **SGD)
    (told,) = {guard() for guard in world.model.first.weight._detente_guards} - {None}
    assert not told.unasked


@pytest.mark.filterwarnings("ignore:torch.jit holds a module:UserWarning")
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_program_of_torchscript_reads_what_was_trained(kind: str) -> None:
    equal(scripts_at_two(SCRIPTS[kind]), certificate="none", **SGD)


def test_torchscript_warns_what_it_costs() -> None:
    def loop(world: World) -> list[float]:
        losses = [world.step(batches(1)[0])]
        if hasattr(world.step, "sync_to_torch"):
            with pytest.warns(UserWarning, match=r"written back after every step.*copy\.deepcopy") as told:
                torch.jit.script(world.model.first)
                torch.jit.script(world.model.first)
            assert sum("torch.jit holds" in str(one.message) for one in told) == 1
        return losses

    equal(loop, certificate="none", **SGD)


def test_the_module_can_be_compiled_by_torch_between_steps() -> None:
    def loop(world: World) -> list[float]:
        losses, compiled = [], torch.compile(world.model, backend="eager")
        for batch in batches(3):
            losses.append(world.step(batch))
            world.model.eval()
            losses.append(float(compiled(batch["x"]).sum().detach()))
            world.model.train()
        return losses

    equal(loop, certificate="none", **SGD)


def test_a_loss_that_holds_an_alias_of_what_is_trained() -> None:
    def held(world: World) -> Callable[[Any, Any], torch.Tensor]:
        flat = world.model.first.weight.detach().view(-1)
        return lambda model, batch: cross_entropy(model, batch) * (1 + flat.square().sum())

    with pytest.raises(
        bridge.Refused, match=r"flat .* is an alias of first\.weight, which every step writes"
    ):
        run(lambda w: [w.step(b) for b in batches(2)], bridge=True, loss=held, **SGD)


def test_a_loss_that_holds_an_alias_of_what_stays() -> None:
    def held(world: World) -> Callable[[Any, Any], torch.Tensor]:
        world.model.first.requires_grad_(False)
        flat = world.model.first.weight.detach().view(-1)
        return lambda model, batch: cross_entropy(model, batch) * (1 + flat.square().sum())

    equal(lambda w: [w.step(b) for b in batches(3)], loss=held, certificate="none", **SGD)
