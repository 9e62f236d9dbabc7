"""Convolutions by torch's own kernels inside the program: the same numbers as in float64, what is not a number
included, in all shapes and by both gradients; when they are called, and what they leave alone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import detente
from detente.bridge.kernels import build
from detente.bridge.kernels.targets import CONVOLUTION, OF_INPUT, OF_KERNEL
from detente.bridge.lower.backwards import backwards
from detente.bridge.lower.ops import library_convolution as room
from detente.bridge.lower.ops.conv import convolve_last, convolve_transposed, convolve_transposed_last
from detente.programs.count import count_program
from detente.programs.hlo import read_hlo
from detente.programs.kinds import kinds_of
from tests.bridge.kernels.test_called import drawn, each_gets_its_own


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shapes go the same way as large ones."""
    monkeypatch.setattr(room, "LEAST", 0)
    monkeypatch.setattr(room, "CHANNELS", 1)


# x (N, ..., C), kernel (O, C / groups, ...), stride, padding, dilation, groups
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any, Any, Any, int]] = {
    "as ResNet's": ((2, 12, 12, 64), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "a stride": ((2, 14, 13, 32), (48, 32, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    "a stride that leaves rows over": ((1, 12, 11, 16), (40, 16, 3, 2), (3, 2), (0, 1), (1, 1), 1),
    "a first layer": ((3, 20, 20, 3), (64, 3, 7, 7), (2, 2), (3, 3), (1, 1), 1),
    "one channel": ((2, 12, 12, 1), (33, 1, 5, 5), (1, 1), (2, 2), (1, 1), 1),
    "to one channel": ((2, 8, 8, 40), (1, 40, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "no multiple of a vector": ((2, 9, 8, 37), (45, 37, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "dilated": ((2, 15, 14, 24), (32, 24, 3, 2), (1, 1), (2, 0), (2, 3), 1),
    "padding wider than the kernel": ((1, 5, 5, 32), (32, 32, 2, 2), (1, 1), (4, 3), (1, 1), 1),
    "a kernel as large as its input": ((2, 5, 5, 16), (32, 16, 5, 5), (1, 1), (0, 0), (1, 1), 1),
    "one place": ((4, 1, 1, 32), (32, 32, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "one picture": ((1, 9, 9, 32), (64, 32, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "two groups": ((2, 8, 9, 32), (48, 16, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "as ResNeXt's": ((2, 8, 8, 64), (64, 4, 3, 3), (1, 1), (1, 1), (1, 1), 16),
    "three groups, a stride": ((2, 9, 9, 12), (18, 4, 3, 3), (2, 2), (1, 1), (1, 1), 3),
    "one dimension": ((2, 50, 40), (64, 40, 3), (1,), (1,), (1,), 1),
    "one dimension, a stride, groups": ((2, 51, 16), (32, 8, 5), (2,), (2,), (1,), 2),
}


def by(run: Any, kind: Any, *operands: Any) -> list[Any]:
    """The result and both gradients."""

    def loss(x: Any, weight: Any) -> Any:
        y = run(x, weight)
        return jnp.sum(y * jnp.asarray(drawn(2, *y.shape), kind)), y

    given = [jnp.asarray(t, kind) for t in operands]
    (_, y), grads = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(*given)
    return [np.asarray(v) for v in (y, *grads)]


def near(found: list[Any], wanted: list[Any]) -> None:
    for mine, its in zip(found, wanted, strict=True):
        assert mine.shape == its.shape
        assert mine.dtype == np.float32
        assert np.linalg.norm(mine - its) <= 2e-6 * np.linalg.norm(its)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("name", SHAPES)
def test_they_are_those_of_float64(name: str) -> None:
    shape, kernel, stride, padding, dilation, groups = SHAPES[name]
    run = partial(
        convolve_last,
        bias=None,
        stride=stride,
        padding=[(p, p) for p in padding],
        dilation=dilation,
        groups=groups,
    )
    operands = drawn(0, *shape), drawn(1, *kernel)
    with jax.enable_x64(True):
        wanted = by(run, jnp.float64, *operands)
    with backwards(), build.calling():
        before = build.kernels().calls()
        found = by(run, jnp.float32, *operands)
    assert build.kernels().calls() == before + 3  # forward, and twice backward
    near(found, wanted)


# x (N, ..., C), kernel (C, O / groups, ...), stride, padding, added behind, dilation, groups
TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any, Any, Any, Any, int]] = {
    "doubled": ((2, 7, 6, 40), (40, 24, 4, 4), (2, 2), (1, 1), (0, 0), (1, 1), 1),
    "something added": ((2, 7, 6, 32), (32, 32, 3, 3), (2, 3), (1, 0), (1, 2), (1, 1), 1),
    "no stride": ((1, 6, 6, 16), (16, 8, 3, 3), (1, 1), (1, 2), (0, 0), (1, 1), 1),
    "holes": ((1, 5, 6, 16), (16, 20, 2, 3), (2, 2), (0, 1), (1, 0), (3, 2), 1),
    "to a picture": ((2, 8, 8, 32), (32, 3, 4, 4), (2, 2), (1, 1), (0, 0), (1, 1), 1),
    "groups": ((2, 5, 5, 16), (16, 6, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 4),
    "a stride wider than the kernel": ((1, 4, 4, 16), (16, 16, 2, 2), (3, 3), (0, 0), (2, 1), (1, 1), 1),
    "one dimension": ((2, 20, 16), (16, 32, 4), (2,), (1,), (0,), (1,), 1),
}


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_ones_are_those_of_float64(
    name: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, kernel, stride, padding, added, dilation, groups = TRANSPOSED[name]
    run = partial(
        convolve_transposed_last,
        bias=None, stride=stride, padding=padding, output_padding=added, groups=groups, dilation=dilation,
    )  # fmt: skip

    def plain(x: Any, weight: Any) -> Any:
        y = convolve_transposed(
            jnp.moveaxis(x, -1, 1), weight, None, stride, padding, added, groups, dilation
        )
        return jnp.moveaxis(y, 1, -1)

    operands = drawn(0, *shape), drawn(1, *kernel)
    with jax.enable_x64(True):
        wanted = by(plain, jnp.float64, *operands)
    if not kernels:
        monkeypatch.setattr(room, "may_call", lambda of: False)
    with backwards(), build.calling():
        before = build.kernels().calls()
        found = by(run, jnp.float32, *operands)
    assert build.kernels().calls() == before + 3 * kernels
    near(found, wanted)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_no_number_stays_where_it_would_be(poison: float) -> None:
    x, weight = drawn(0, 1, 9, 9, 16).astype("f"), drawn(1, 32, 16, 3, 3).astype("f")
    x[0, 2, 3, 5] = poison
    run = partial(convolve_last, bias=None, stride=(1, 1), padding=[(1, 1)] * 2, dilation=(1, 1), groups=1)
    wanted = by(run, jnp.float32, x, weight)
    with backwards(), build.calling():
        found = by(run, jnp.float32, x, weight)
    for mine, its in zip(found, wanted, strict=True):
        assert np.array_equal(np.isfinite(mine), np.isfinite(its))
    assert not np.isfinite(wanted[0]).all() and not np.isfinite(wanted[2]).all()


@pytest.mark.usefixtures("of_any_size")
def test_a_gradient_that_nobody_asks_for_is_not_computed() -> None:
    x, weight = (
        jnp.asarray(drawn(k, *shape), jnp.float32) for k, shape in enumerate(((2, 9, 9, 16), (32, 16, 3, 3)))
    )

    def loss(x: Any, weight: Any) -> Any:
        y = convolve_last(x, weight, None, (1, 1), [(1, 1)] * 2, (1, 1), 1)
        return jnp.sum(y * y)

    for of in (0, 1):
        with backwards(), build.calling():
            run = jax.jit(jax.grad(loss, of))
            before = build.kernels().calls()
            run(x, weight).block_until_ready()
        assert build.kernels().calls() == before + 2


def test_what_is_taken() -> None:
    def taken(
        x: tuple[int, ...] = (2, 28, 28, 64),
        weight: tuple[int, ...] = (64, 64, 3, 3),
        padding: Any = ((1, 1), (1, 1)),
        kind: Any = jnp.float32,
        groups: int = 1,
    ) -> bool:
        like = jax.ShapeDtypeStruct(weight, kind)
        ones = (1,) * (len(weight) - 2)
        return (
            room.ways(x, like, jnp.dtype(kind), lambda x, w: x, ones, padding, ones, groups).sizes is not None
        )

    assert not taken()  # not in a step
    with backwards():
        assert not taken()  # what is captured is XLA's
    with build.calling():
        assert not taken()  # somebody may differentiate forwards
    with backwards(), build.calling():
        assert taken()
        assert taken((1, 28, 28, 64))
        assert not taken(kind=jnp.bfloat16) and not taken(kind=jnp.float64)
        assert not taken(padding=((0, 1), (1, 1)))
        assert not taken((2, 7, 7, 16), (16, 16, 3, 3))  # it is done before torch has begun
        assert not taken((2, 8, 9, 9, 64), (64, 64, 3, 3, 3), ((1, 1),) * 3)
        assert taken(groups=4, weight=(64, 16, 3, 3))


def test_a_torch_without_these_functions_has_xlas(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> int:
        raise AttributeError(name)

    with backwards(), build.calling():
        assert build.may_call("convolutions")
        build._convolving.cache_clear()
        build._won.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(build, "_address", without)
            assert build._convolving() is None and not build.may_call("convolutions")
    build._convolving.cache_clear()


class Pictures(nn.Module):
    """Down and up again."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 7, stride=2, padding=3)
        self.norm = nn.BatchNorm2d(channels)
        self.mix = nn.Conv2d(channels, channels, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1)
        self.last = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.up(y + self.mix(y))))


def pictures(monkeypatch: pytest.MonkeyPatch, kernels: str, tmp_path: Any) -> tuple[Any, list[float]]:
    monkeypatch.setenv(build.VARIABLE, kernels)
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / kernels))
    build.kernels.cache_clear()
    torch.manual_seed(0)
    model, x = Pictures(), torch.randn(2, 3, 48, 48)
    step = detente.compile(
        model, lambda m, b: (m(b) - b).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1), example_batch=x,
        seed=3, quiet=True,
    )  # fmt: skip
    return step, [step(x).item() for _ in range(6)]


def test_a_step_trains_as_without_them_and_counts_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    counted, found = [], []
    for kernels in "10":
        step, losses = pictures(monkeypatch, kernels, tmp_path)
        executable = step.programs[0].compiled.executable
        data = executable.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
        counted.append(count_program(data, "hlo"))
        found.append(losses)
        if kernels == "1":
            held = executable.as_text()
            assert all(f'"{target}"' in held for target in (CONVOLUTION, OF_INPUT, OF_KERNEL))
            assert "convolutions" in kinds_of(read_hlo(data)).values()
            assert step.settled().ok
    assert found[0] == pytest.approx(found[1], rel=2e-5)
    assert len(set(found[0])) == 6
    assert not counted[0].custom_calls and not counted[1].custom_calls
    assert counted[0].flops == counted[1].flops


def test_a_capture_and_an_export_hold_no_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from detente.bridge.program.program import exported

    step, _ = pictures(monkeypatch, "1", tmp_path)
    compiled = step.programs[0].compiled
    assert compiled.calls >= 10
    assert "detente_" not in compiled.lowered.as_text()
    assert "detente_" not in str(exported(compiled).mlir_module())


def test_torchs_own_threads_are_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The caller's OpenMP is told to take one thread while it takes a piece, and is given its own back."""
    openmp = build._address("omp_get_max_threads")
    count = ctypes.CFUNCTYPE(ctypes.c_int)(openmp)
    before = torch.get_num_threads(), count()
    pictures(monkeypatch, "1", tmp_path)
    assert (torch.get_num_threads(), count()) == before


@pytest.mark.usefixtures("of_any_size")
def test_many_threads_at_once_each_get_their_own() -> None:
    operands = [
        (
            jnp.asarray(drawn(k, 1, 14, 14, 32), jnp.float32),
            jnp.asarray(drawn(90 + k, 64, 32, 3, 3), jnp.float32),
        )
        for k in range(8)
    ]
    with backwards(), build.calling():
        run = jax.jit(lambda x, w: convolve_last(x, w, None, (1, 1), [(1, 1)] * 2, (1, 1), 1))
        each_gets_its_own(run, operands, 30)


LAYERS = 10


def layers(form: str) -> tuple[Any, int]:
    """A certified step of layers in this form, and how many kernels a step of it calls."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.Softplus()) for _ in range(LAYERS))
    )
    x = torch.randn(2, 8, 6, 6)
    step = detente.compile(
        model, lambda m, b: m(b).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1), example_batch=x,
        form=form, cache=False, quiet=True,
    )  # fmt: skip
    step(x).item()
    assert step.settled().ok and step.choice.form == form
    before = build.kernels().calls()
    step(x).item()
    return step, build.kernels().calls() - before


@pytest.mark.usefixtures("of_any_size")
def test_in_layers_of_every_form() -> None:
    """A loop that keeps products convolves none of them again; one that keeps the carries, all. Written out, nobody
    asks for the picture's own gradient."""
    called = {form: layers(form)[1] for form in ("unrolled", "rolled", "rolled+products", "rolled+full")}
    assert called["rolled+products"] == called["rolled"] >= 3 * LAYERS
    assert called["rolled+full"] == called["rolled"] + LAYERS
    assert layers("unrolled")[0].programs[0].compiled.calls >= 3 * LAYERS - 1


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(operator))
        return torch.zeros(1)  # what no convolution is


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize(
    "pictures", [1, 16]
)  # XLA runs small programs, and some large ones, in the caller's thread
def test_what_this_thread_has_switched_on_is_not_seen(pictures: int) -> None:
    run = partial(convolve_last, bias=None, stride=(1, 1), padding=[(1, 1)] * 2, dilation=(1, 1), groups=1)
    x, weight = (
        jnp.asarray(drawn(k, *s), jnp.float32) for k, s in enumerate(((pictures, 9, 9, 16), (32, 16, 3, 3)))
    )
    with backwards(), build.calling():
        compiled = jax.jit(run).lower(x, weight).compile()
    wanted = np.asarray(compiled(x, weight))
    with Seen() as seen:
        found = np.asarray(compiled(x, weight))
    assert not seen.operators and np.array_equal(found, wanted)
    for switched in (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode(),
        FakeTensorMode(),
        FlopCounterMode(display=False),
        torch.device("meta"),
    ):
        with switched:
            assert np.array_equal(np.asarray(compiled(x, weight)), wanted)


@pytest.mark.usefixtures("of_any_size")
def test_with_onednn_switched_off_torch_has_other_kernels() -> None:
    shape, kernel = (2, 9, 9, 16), (32, 16, 3, 3)
    run = partial(convolve_last, bias=None, stride=(1, 1), padding=[(1, 1)] * 2, dilation=(1, 1), groups=1)
    operands = drawn(0, *shape), drawn(1, *kernel)
    with jax.enable_x64(True):
        wanted = by(run, jnp.float64, *operands)
    with torch.backends.mkldnn.flags(enabled=False), backwards(), build.calling():
        near(by(run, jnp.float32, *operands), wanted)


FAILS = """
import ctypes
import jax, jax.numpy as jnp
from detente.bridge.kernels import build
from detente.bridge.kernels.convolutions import Sizes, convolved
found = build.kernels()
addresses = list(build._convolving())
fail = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
addresses[1] = ctypes.cast(fail, ctypes.c_void_p).value
words = ctypes.create_string_buffer(b"it rains")
say = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(words))
addresses[-1] = ctypes.cast(say, ctypes.c_void_p).value if SAYS else 0
found.library.detente_convolve_by((ctypes.c_void_p * len(addresses))(*addresses))
sizes = Sizes.of((2, 9, 9, 16), (32, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1)
try:
    convolved(sizes, jnp.ones((2, 9, 9, 16)), jnp.ones((32, 16, 3, 3))).block_until_ready()
except Exception as error:
    print("told:", error)
"""


@pytest.mark.parametrize("says", [True, False])
def test_a_convolution_that_fails_is_told(says: bool) -> None:
    environment = {**os.environ, build.VARIABLE: "1"}
    ran = subprocess.run(
        [sys.executable, "-c", f"SAYS = {says}\n{FAILS}"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    told = f"torch's convolution failed: the product: {'it rains' if says else 'its own words are on stderr'}"
    assert "told:" in ran.stdout and told in ran.stdout, ran.stdout + ran.stderr
