"""An optimizer's update in one pass: the same numbers as its trace, in place, and in order."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import detente
from detente.bridge.kernels import build, passes
from detente.bridge.kernels.compiler import compiler
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.optim.one_pass import one_pass, written
from detente.bridge.optim.rule import trace
from detente.bridge.optim.run import decode, update
from detente.programs.count import count_program
from detente.programs.hlo import read_hlo
from detente.programs.kinds import kinds_of

T = torch.optim
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW": (T.AdamW, {"weight_decay": 0.1}),
    "AdamW, amsgrad": (T.AdamW, {"amsgrad": True}),
    "AdamW, maximize": (T.AdamW, {"maximize": True}),
    "Adam, decay": (T.Adam, {"weight_decay": 0.1}),
    "SGD": (T.SGD, {"lr": 0.1}),
    "SGD, momentum": (T.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "SGD, nesterov": (T.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "RAdam": (T.RAdam, {}),
    "NAdam": (T.NAdam, {}),
    "Adamax": (T.Adamax, {}),
    "Adagrad": (T.Adagrad, {}),
    "Adadelta": (T.Adadelta, {}),
    "ASGD": (T.ASGD, {}),
    "Rprop": (T.Rprop, {}),
    "RMSprop, centered": (T.RMSprop, {"centered": True, "momentum": 0.5}),
}
# Elements: none, one, a piece, more than one and no multiple of a vector.
SHAPES = ((0, 3), (1,), (128, 128), (3, 10007))
NOT_NUMBERS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-42, 3e38)


def of(name: str, shape: tuple[int, ...]) -> tuple[Any, Any, torch.nn.Parameter]:
    kind, options = OPTIMIZERS[name]
    parameter = nn.Parameter(torch.from_numpy(drawn(0, shape)))
    optimizer = kind([parameter], **options)
    return trace(optimizer, [("p", parameter)]), optimizer, parameter


def drawn(seed: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_what_the_trace_says(name: str, shape: tuple[int, ...]) -> None:
    """To the last digits of what is summed (XLA rounds a product and a sum once, the loop twice); what is no number
    included, in the same places."""
    rule, optimizer, parameter = of(name, shape)
    program = rule.programs["p"]
    values = jnp.asarray(parameter.detach().numpy())
    state = rule.read_state(optimizer, {"p": parameter})["p"]
    with torch_numerics(), build.calling():
        once = one_pass(program, values, values, state)
        assert once is not None
        numbers = decode(rule.hyper(optimizer)[0])
        mine = jax.jit(once.__call__)
        its = jax.jit(lambda *a: update(program, *a))
        theirs, kept = values, state
        for step in range(3):
            grad = drawn(step + 1, shape)
            if step == 2 and grad.size > len(NOT_NUMBERS):
                grad.reshape(-1)[5 : 5 + len(NOT_NUMBERS)] = NOT_NUMBERS
            before = build.kernels().calls()
            values, state = mine(values, jnp.asarray(grad), state, numbers)
            jax.block_until_ready(values)
            # Of no elements XLA leaves the call out, unless it makes a number.
            assert build.kernels().calls() - before in ((1,) if grad.size else (0, 1))
            theirs, kept = its(theirs, jnp.asarray(grad), kept, numbers)
            assert state.keys() == kept.keys()
            pairs = [(values, theirs), *((state[k], kept[k]) for k in kept)]
            for a, b in pairs:
                assert a.dtype == b.dtype and a.shape == b.shape
                wanted = np.asarray(b)
                largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0) if wanted.size > 1 else 1.0
                atol = 1e-7 * min(float(largest), 100.0)
                np.testing.assert_allclose(np.asarray(a), wanted, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_is_skipped_changes_no_bit_and_another_is_the_plain_one(name: str) -> None:
    rule, optimizer, parameter = of(name, SHAPES[0])
    program, grad = rule.programs["p"], jnp.asarray(drawn(1, SHAPES[0]))
    values = jnp.asarray(parameter.detach().numpy())
    state = rule.read_state(optimizer, {"p": parameter})["p"]
    with torch_numerics(), build.calling():
        plain, once = (one_pass(program, values, values, state, skips=skips) for skips in (False, True))
        assert plain is not None and once is not None
        numbers = decode(rule.hyper(optimizer)[0])
        wanted = jax.jit(plain.__call__)(values, grad, state, numbers)
        for skip, (param, kept) in ((True, (values, state)), (False, wanted)):
            new, after = jax.jit(once.__call__)(values, grad, state, numbers, jnp.asarray(skip))
            for one, other in ((new, param), *((after[key], kept[key]) for key in after)):
                np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


class Own(T.Optimizer):
    """A user's: Lion's signs, and what ``more`` makes of the gradient."""

    def __init__(self, params: Any, more: Any = None) -> None:
        super().__init__(params, {"lr": 1e-2, "beta": 0.9})
        self.more = more or (lambda grad: grad)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                grad = self.more(p.grad)
                p.add_(torch.sign(state["average"] * group["beta"] + grad), alpha=-group["lr"])
                state["average"].lerp_(grad, 1 - group["beta"])


OWN: dict[str, tuple[Any, bool]] = {
    "signs": (None, True),
    "clamped": (lambda grad: grad.clamp(-1, 1), True),
    "chosen": (lambda grad: torch.where(grad.abs() > 0.5, grad, 0 * grad), True),
    "a mean": (lambda grad: grad - grad.mean(), False),
    "a row's sum": (lambda grad: grad / grad.abs().sum(-1, keepdim=True), False),
    "a product": (lambda grad: grad @ grad.T @ grad, False),
    "flipped": (lambda grad: grad.flip(0), False),
    "an exponential": (lambda grad: grad.exp(), False),
    "in double": (lambda grad: (grad.double() * 2).float(), True),
}


def beside_eager(step: Any, eager: nn.Module, its: Any, loss: Any, batch: Any) -> None:
    """A step of each, to the same loss."""
    found = step(batch)
    its.zero_grad()
    wanted = loss(eager, batch)
    wanted.backward()
    its.step()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


def to_one(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - 1).square().mean()


@pytest.mark.parametrize("name", OWN)
def test_a_users_own_trains_as_eager_does_with_a_loop_or_without(
    name: str, monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    more, has_loop = OWN[name]
    torch.manual_seed(0)
    model = nn.Linear(12, 12, bias=False)
    eager = copy.deepcopy(model)
    x = torch.randn(8, 12)
    mine, its = Own(model.parameters(), more), Own(eager.parameters(), more)
    step = detente.compile(model, to_one, mine, example_batch=x, quiet=True, certificate="none")
    for _ in range(4):
        beside_eager(step, eager, its, to_one, x)
    assert torch.allclose(model.weight, eager.weight, rtol=1e-4, atol=1e-6)
    assert bool(step.programs[0].compiled.loops) is has_loop


@pytest.mark.parametrize("kind", [T.Adafactor])
def test_what_is_not_element_by_element_has_no_loop(kind: Any) -> None:
    parameter = nn.Parameter(torch.zeros(8, 16))
    program = trace(kind([parameter]), [("p", parameter)]).programs["p"]
    with torch_numerics():
        assert all(written(program, program.first is not None, skips) is None for skips in (False, True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_left_to_xla(dtype: Any) -> None:
    parameter = nn.Parameter(torch.zeros(8, 16, dtype=dtype))
    program = trace(T.AdamW([parameter]), [("p", parameter)]).programs["p"]
    with torch_numerics():
        assert all(written(program, program.first is not None, skips) is None for skips in (False, True))


class Branched(nn.Module):
    """A weight of each kind: tied, read by two products beside each other, of a convolution, of a norm, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.conv = nn.Conv1d(32, 32, 3, padding=1)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(ids))
        x = x + torch.tanh(self.query(x)) * torch.sigmoid(self.key(x)) * self.scale
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return x @ self.words.weight.T


def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    out = model(ids)
    return nn.functional.cross_entropy(out.flatten(0, 1), ids.flatten())


def compiled(model: nn.Module, optimizer: Any, ids: torch.Tensor, **more: Any) -> Any:
    return detente.compile(model, loss, optimizer, example_batch=ids, quiet=True, form="unrolled", **more)


def test_a_step_trains_as_eager_does_and_copies_no_weight(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    torch.manual_seed(0)
    model = Branched()
    eager = copy.deepcopy(model)
    ids = torch.randint(0, 50, (4, 16))

    def groups(of: nn.Module) -> Any:
        plain = [p for p in of.parameters() if p.ndim < 2]
        return T.AdamW(
            [{"params": [p for p in of.parameters() if p.ndim >= 2]}, {"params": plain, "weight_decay": 0.0}],
            lr=1e-2,
        )

    mine, its = groups(model), groups(eager)
    step = compiled(model, mine, ids)
    for k in range(5):
        for optimizer in (mine, its):  # a schedule: numbers move, the loop stays
            optimizer.param_groups[0]["lr"] = 1e-2 / (k + 1)
        beside_eager(step, eager, its, loss, ids)
    for (name, a), b in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), name
        assert torch.allclose(
            mine.state[a]["exp_avg_sq"], its.state[b]["exp_avg_sq"], rtol=1e-3, atol=1e-8
        ), name
        assert mine.state[a]["step"] == its.state[b]["step"] == 5
    compiled_step = step.programs[0].compiled
    text = compiled_step.executable.as_text()
    # All but the scalar, which has no elements.
    assert text.count(f'custom_call_target="{passes.UPDATE}"') == len(list(model.parameters())) - 1
    assert 1 <= len(compiled_step.loops) <= 2  # shapes share a loop; decay or none is another
    for weight in ("[32,32]", "[50,32]", "[32,32,3]"):
        copied = [line for line in text.splitlines() if f"= f32{weight}" in line and " copy(%own" in line]
        assert not copied
    data = compiled_step.executable.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    assert passes.UPDATE not in count_program(data, "hlo").custom_calls
    kinds = kinds_of(read_hlo(data))
    assert "elementwise" in kinds.values() and "other" not in kinds.values()


def test_a_stack_of_layers_is_updated_by_each_ones_numbers(monkeypatch: Any, tmp_path: Any) -> None:
    """A group with decay and one without, in turns: rolled up they are one stack, with a row of numbers for each."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(9)))
    eager = copy.deepcopy(model)
    x = torch.randn(8, 24)

    def groups(of: nn.Module) -> Any:
        weights = [part[0].weight for part in of]  # type: ignore[index]
        rest = [part[0].bias for part in of]  # type: ignore[index]
        return T.AdamW(
            [
                {"params": weights[::2], "weight_decay": 0.3},
                {"params": weights[1::2], "weight_decay": 0.01, "lr": 3e-3},
                {"params": rest},
            ],
            lr=1e-2,
        )

    mine, its = groups(model), groups(eager)
    step = detente.compile(model, to_one, mine, example_batch=x, quiet=True, form="rolled")
    for _ in range(4):
        beside_eager(step, eager, its, to_one, x)
    for (name, a), b in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), name
        assert torch.allclose(mine.state[a]["exp_avg"], its.state[b]["exp_avg"], rtol=1e-3, atol=1e-8), name
        assert mine.state[a]["step"] == its.state[b]["step"] == 4
    compiled_step = step.programs[0].compiled
    assert compiled_step.loops and compiled_step.program.stacks
    assert compiled_step.executable.as_text().count(f'custom_call_target="{passes.UPDATE}"') < 18


@pytest.mark.long
def test_a_stored_program_finds_its_loops_in_another_process_or_is_compiled_anew(
    monkeypatch: Any, tmp_path: Any
) -> None:
    text = (
        "import sys, torch, detente\n"
        "from tests.bridge.kernels.test_updates import Branched, compiled\n"
        "from detente.bridge.kernels import build\n"
        "torch.manual_seed(0)\n"
        "model = Branched()\n"
        "ids = torch.randint(0, 50, (4, 16))\n"
        "step = compiled(model, torch.optim.AdamW(model.parameters(), lr=1e-2), ids)\n"
        "print([step(ids).item() for _ in range(4)], step.programs[0].cached, build.kernels().calls() > 0)\n"
    )
    env = {
        **os.environ, "DETENTE_KERNELS": "1", "XDG_CACHE_HOME": str(tmp_path),
        "DETENTE_BRIDGE_CACHE": str(tmp_path / "bridge"),
    }  # fmt: skip

    def another() -> str:
        done = subprocess.run(
            [sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    first, second = another(), another()
    loops = list((tmp_path / "detente" / "kernels").glob("update-*.so"))
    assert loops
    for file in loops:
        file.unlink()
    third = another()
    assert "False True" in first and "True True" in second and "False True" in third
    assert first.split("]")[0] == second.split("]")[0] == third.split("]")[0]


def test_a_loop_whose_file_is_cut_short_is_compiled_again(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setattr(build, "home", lambda: tmp_path)
    text = (
        'extern "C" const long long kept = 0;\n'
        'extern "C" void numbers(const void* const*, void* const*, double*) {}\n'
        'extern "C" void loop(const void* const*, void* const*, const double*, long long, long long) {}\n'
    )
    key = passes.key_of(text, compiler(), build.processor())
    cut = tmp_path / f"update-{key:016x}.so"
    cut.write_bytes(b"\x7fELF")
    assert not build.known([key])
    assert build.loop(text) == key and cut.stat().st_size > 1000
    assert build.known([key])


def test_what_is_no_c_is_no_loop(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setattr(build, "home", lambda: tmp_path)
    assert build.loop("this is no C") is None
    assert not list(tmp_path.glob("update-*.so"))


def test_an_update_that_nobody_gave_says_so() -> None:
    like = jax.ShapeDtypeStruct((4,), np.float32)
    row = jax.ShapeDtypeStruct((4,), np.float32)
    run = jax.jit(lambda p, g, r: passes.call(12345, (p, g, r), 2))
    with pytest.raises(Exception, match="was not given to detente"):
        jax.block_until_ready(run.lower(like, like, row).compile()(*(jnp.zeros(4),) * 3))


def test_without_a_compiler_for_loops_xla_updates(monkeypatch: Any, tmp_path: Any) -> None:
    """The extension may be here already, and the compiler gone since."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    build.kernels()
    monkeypatch.setenv("CXX", "/nowhere/c++")
    torch.manual_seed(0)
    model = Branched()
    ids = torch.randint(0, 50, (4, 16))
    step = compiled(model, T.AdamW(model.parameters(), lr=3e-3), ids)
    assert step(ids).item() > step(ids).item()
    assert step.programs[0].compiled.loops == ()


class Counting(T.Optimizer):
    """The classic: its step count is a number of Python's in the state."""

    def __init__(self, parameters: Any, lr: float = 0.1, start: Any = 0, read: bool = True) -> None:
        super().__init__(parameters, {"lr": lr, "start": start, "read": read})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = group["start"]
                    state["mean"] = torch.zeros_like(p)
                state["step"] += 1
                state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                p.add_(state["mean"], alpha=-group["lr"] / (state["step"] if group["read"] else 1))


@pytest.mark.parametrize("start", [0, 0.0], ids=["an int", "a float"])
@pytest.mark.parametrize("read", [True, False], ids=["read", "only counted"])
def test_a_state_that_counts_in_python_reads_its_own_numbers(start: Any, read: bool) -> None:
    """Its count was taken for the group's first number, and those were read behind the end of the array."""
    torch.manual_seed(0)
    model, batch = nn.Linear(6, 3), torch.ones(5, 6)
    eager = copy.deepcopy(model)
    with build.calling():
        step = detente.compile(
            model,
            to_one,
            Counting(model.parameters(), start=start, read=read),
            example_batch=batch,
            certificate="none",
            quiet=True,
        )
        its = Counting(eager.parameters(), start=start, read=read)
        for _ in range(4):
            beside_eager(step, eager, its, to_one, batch)
    assert step.programs[0].compiled.loops
