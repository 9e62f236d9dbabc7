"""Products by the BLAS that torch brings, inside of a step: which become a call, and that it is the same product."""

from __future__ import annotations

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

import detente
from detente.bridge.kernels import build
from detente.bridge.kernels.products import BF16, F32, FORMS, LEAST, TARGET, Product, rewrite
from detente.bridge.kernels.trials import DECIDED
from detente.programs.count import count_program
from detente.programs.hlo import read_hlo
from detente.programs.kinds import kinds_of


def made(function: Any, *operands: Any, least: int = 1) -> tuple[Any, tuple[Product, ...]]:
    lowered = jax.jit(partial(function)).lower(*operands)
    found = rewrite(lowered.compiler_ir(), least)
    return lowered.compile(), found


def drawn(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), jnp.float32)


def contract(left: tuple[int, ...], right: tuple[int, ...], batch: Any = ((), ())) -> Any:
    return lambda a, b: jax.lax.dot_general(a, b, ((left, right), batch))


# What is multiplied, its operands' shapes, and how it is handed over (None: it is not).
CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], Product | None]] = {
    "plain": (jnp.matmul, (5, 7), (7, 3), Product(1, 5, 3, 7, False, False)),
    "second transposed": (contract((1,), (1,)), (5, 7), (3, 7), Product(1, 5, 3, 7, False, True)),
    "first transposed": (contract((0,), (0,)), (7, 5), (7, 3), Product(1, 5, 3, 7, True, False)),
    "both transposed": (contract((0,), (1,)), (7, 5), (3, 7), Product(1, 5, 3, 7, True, True)),
    "rows of two dimensions": (jnp.matmul, (2, 5, 7), (7, 3), Product(1, 10, 3, 7, False, False)),
    "gradient of a weight": (contract((0, 1), (0, 1)), (2, 5, 7), (2, 5, 3), Product(1, 7, 3, 10, True, False)),
    "a batch": (jnp.matmul, (4, 5, 7), (4, 7, 3), Product(4, 5, 3, 7, False, False)),
    "a batch of two dimensions": (
        lambda a, b: jnp.einsum("bhld,bhsd->bhls", a, b), (2, 3, 5, 7), (2, 3, 4, 7), Product(6, 5, 4, 7, False, True),
    ),
    "a transpose before it": (lambda a, b: a.T @ b, (7, 5), (7, 3), Product(1, 5, 3, 7, True, False)),
    "two transposes before it": (lambda a, b: a.T.T @ b, (5, 7), (7, 3), Product(1, 5, 3, 7, False, False)),
    "a transpose behind it": (lambda a, b: (a @ b).T, (5, 7), (7, 3), Product(1, 3, 5, 7, True, True)),
    "read by two": (
        partial(lambda of, a, b: of(a @ b), lambda c: c.T @ c), (5, 7), (7, 3), Product(1, 5, 3, 7, False, False),
    ),
    "heads moved behind": (
        lambda a, b: jnp.einsum("blhd,bshd->bhls", a, b), (2, 5, 3, 7), (2, 4, 3, 7), None,
    ),
    "one row": (jnp.matmul, (1, 7), (7, 3), Product(1, 1, 3, 7, False, False)),
    "wide": (jnp.matmul, (33, 65), (65, 517), Product(1, 33, 517, 65, False, False)),
    "tall": (jnp.matmul, (1031, 65), (65, 17), Product(1, 1031, 17, 65, False, False)),
    "large, second transposed": (contract((1,), (1,)), (130, 300), (257, 300), Product(1, 130, 257, 300, False, True)),
    "large, first transposed": (contract((0,), (0,)), (300, 257), (300, 130), Product(1, 257, 130, 300, True, False)),
    "few of a batch": (jnp.matmul, (3, 200, 100), (3, 100, 90), Product(3, 200, 90, 100, False, False)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_the_same_product(name: str) -> None:
    function, left, right, wanted = CASES[name]
    a, b = drawn(*left), drawn(*right)
    run, found = made(function, a, b)
    if wanted is None:
        assert all(product.batch * product.m * product.n * product.k for product in found)
    else:
        assert found[0] == wanted
    with jax.enable_x64(True):
        exact = np.asarray(
            function(jnp.asarray(np.asarray(a), "float64"), jnp.asarray(np.asarray(b), "float64"))
        )
    before = build.kernels().calls()
    ours = np.asarray(run(a, b))
    assert ours.shape == exact.shape
    assert np.linalg.norm(ours - exact) <= 1e-6 * np.linalg.norm(exact)
    assert build.kernels().calls() - before == len(found), "somebody counted them"


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n][3] is not None and n != "read by two"])
def test_a_call_of_halves_is_the_same_product(name: str) -> None:
    """Exact in float64 of the halves themselves: summed in float32, and rounded once."""
    function, left, right, wanted = CASES[name]
    a, b = drawn(*left).astype("bfloat16"), drawn(*right).astype("bfloat16")
    run, found = made(function, a, b)
    assert found == (wanted,)
    with jax.enable_x64(True):
        exact = np.asarray(function(*(jnp.asarray(np.asarray(x, "float64")) for x in (a, b))))
    ours = np.asarray(run(a, b).astype("float32"), "float64")
    assert ours.shape == exact.shape
    assert np.linalg.norm(ours - exact) <= 2.0**-8 * np.linalg.norm(exact)


def test_a_call_of_halves_whose_sum_is_wanted_rounds_nothing() -> None:
    a, b = drawn(65, 700).astype("bfloat16"), drawn(700, 33).astype("bfloat16")
    run, found = made(partial(jax.lax.dot, preferred_element_type="float32"), a, b)
    assert len(found) == 1
    exact = np.asarray(a, "float64") @ np.asarray(b, "float64")
    assert np.linalg.norm(np.asarray(run(a, b)) - exact) <= 1e-6 * np.linalg.norm(exact)


def test_under_autocast_a_step_calls_products_of_halves_and_trains_as_eager() -> None:
    def loss(model: Any, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return (model(x).float() - x).square().mean()

    model, optimizer, x = model_of()
    step = detente.compile(model, loss, optimizer, example_batch=x, cache=False, quiet=True)
    ours = [step(x).item() for _ in range(6)]
    assert step.programs[0].compiled.calls == 5 + 6 + 2, "products, updates, a norm and its gradients"
    assert step.certificate is not None and step.certificate.ok
    optimised = step.programs[0].compiled.executable.runtime_executable().hlo_modules()[0]
    found = count_program(optimised.as_serialized_hlo_module_proto(), "hlo")
    assert found.product_dtypes == {"bf16": 5}, "none is computed wide"
    model, optimizer, x = model_of()
    for k in range(6):
        value = loss(model, x)
        assert ours[k] == pytest.approx(value.item(), rel=2e-2)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def test_what_is_left_to_xla() -> None:
    """Doubles, integers, other halves, mixed results, what is small, and no product at all."""
    a = drawn(64, 64)
    assert made(jnp.matmul, a, a, least=LEAST)[1], "the smallest"
    assert not made(jnp.matmul, drawn(16, 16), drawn(16, 16), least=LEAST)[1]
    for kind in ("float16", "int32"):
        assert not made(jnp.matmul, a.astype(kind), a.astype(kind))[1]
    half = a.astype("bfloat16")
    lowered = jax.jit(lambda a, b: (a @ a) @ (b @ b).astype("float32")).lower(a, half)
    assert len(rewrite(lowered.compiler_ir(), 1, of={})) == 0
    assert len(rewrite(lowered.compiler_ir(), 1, of={BF16: FORMS})) == 1
    assert len(rewrite(lowered.compiler_ir(), 1, of={F32: FORMS})) == 2
    with jax.enable_x64(True):
        assert not made(jnp.matmul, jnp.ones((64, 64), "float64"), jnp.ones((64, 64), "float64"))[1]
    assert not made(lambda a: a + 1, a)[1]
    assert not made(jnp.matmul, drawn(64, 0), drawn(0, 64))[1]
    long = jax.ShapeDtypeStruct((1 << 31, 1), jnp.float32)
    lowered = jax.jit(jnp.matmul).lower(long, jax.ShapeDtypeStruct((1, 2), jnp.float32))
    assert not rewrite(lowered.compiler_ir()), "no integer of BLAS holds its rows"


def test_many_at_once_in_a_loop_end() -> None:
    """All threads of the pool may be inside of a product; nobody may wait for a thread that never comes."""

    def body(carry: Any, _: Any) -> Any:
        parts = [jnp.tanh(carry @ carry.T + k) for k in range(8)]
        return sum(parts) / 8, None

    a = drawn(160, 160) / 100
    run, found = made(lambda a: jax.lax.scan(body, a, None, length=50)[0], a)
    assert len(found) >= 1
    plain = jax.jit(lambda a: jax.lax.scan(body, a, None, length=50)[0])
    for _ in range(3):
        assert np.allclose(run(a), plain(a), rtol=1e-4, atol=1e-5)


def test_not_a_number_stays_one() -> None:
    a = drawn(64, 64).at[3, 5].set(jnp.nan)
    run, _ = made(jnp.matmul, a, drawn(64, 64))
    assert np.isnan(np.asarray(run(a, drawn(64, 64)))[3]).all()
    assert np.isfinite(np.asarray(run(a, drawn(64, 64)))[4]).all()


def test_another_shape_than_it_says_is_refused() -> None:
    lowered = jax.jit(lambda a, b: a @ b).lower(drawn(8, 8), drawn(8, 8))
    module = lowered.compiler_ir()
    rewrite(module, 1)
    text = str(module).replace("k = 8", "k = 9")
    assert "k = 9" in text and TARGET in text

    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((8, 8), jnp.float32))
    wrong = {"batch": 1, "m": 8, "n": 8, "k": 9}
    with pytest.raises(Exception, match="other shapes than it says"):
        jax.block_until_ready(
            call(drawn(8, 8), drawn(8, 8), ta=False, tb=False, **{k: np.int64(v) for k, v in wrong.items()})
        )


def model_of() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(96, 128), torch.nn.GELU(), torch.nn.Linear(128, 96), torch.nn.LayerNorm(96)
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), torch.randn(64, 96)


def trained(certificate: str = "full") -> tuple[list[float], Any]:
    model, optimizer, x = model_of()
    step = detente.compile(
        model, lambda m, b: (m(b) - b).square().mean(), optimizer, example_batch=x, certificate=certificate,
        cache=False, quiet=True,
    )  # fmt: skip
    return [step(x).item() for _ in range(6)], step


def test_a_step_that_calls_is_certified_and_trains_as_one_that_does_not(monkeypatch: Any) -> None:
    before = build.kernels().calls()
    ours, step = trained()
    assert step.programs[0].compiled.calls == 5 + 6 + 2, (
        "two forward, two of weights, one of an input; updates; a norm"
    )
    assert build.kernels().calls() > before
    assert step.certificate is not None and step.certificate.ok
    monkeypatch.setenv(build.VARIABLE, "0")
    build.kernels.cache_clear()
    plain, step = trained("none")
    assert step.programs[0].compiled.calls is None
    assert ours == pytest.approx(plain, rel=1e-5)


def test_what_is_carried_elsewhere_calls_nothing() -> None:
    _, step = trained("none")
    compiled = step.programs[0].compiled
    assert TARGET not in compiled.lowered.as_text()
    assert TARGET in compiled.executable.as_text()


def test_a_program_that_calls_is_counted_like_one_that_does_not() -> None:
    """Its operations and its kind of work, read from the optimised program."""
    _, step = trained("none")
    compiled = step.programs[0].compiled
    optimised = compiled.executable.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    handed = compiled.lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    found, wanted = count_program(optimised, "hlo"), count_program(handed, "hlo")
    assert found.flops == wanted.flops > 0
    assert TARGET not in found.custom_calls, "it is a product"
    assert list(kinds_of(read_hlo(optimised)).values()).count("products") == compiled.calls - 6 - 2, (
        "and six updates, and a norm"
    )


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [("CXX", "/no/such/compiler", "cannot be built"), (build.VARIABLE, "0", "DETENTE_KERNELS is 0")],
)
def test_where_there_is_nothing_to_call_a_step_runs_all_the_same(
    variable: str, value: str, why: str, monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing was built here
    monkeypatch.setenv(variable, value)
    told = child(NOTHING_CAME)
    assert told[:3] == ["False", "None", "False"] and why in " ".join(told[4:])


def test_another_cache_folder_later_loads_no_second_one(monkeypatch: Any, tmp_path: Any) -> None:
    before = build.kernels().library
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.kernels.cache_clear()
    assert build.kernels().library is before


def test_a_folder_that_others_may_write_to_holds_no_extension(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "detente" / "kernels").mkdir(parents=True)
    (tmp_path / "detente" / "kernels").chmod(0o777)
    assert tmp_path not in build.home().parents


def child(before: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", before + CHILD], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_one_core_is_enough(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    bound = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})"
    assert child(bound)[:3] == ["False", "4", "True"]


# With the installation's own, a machine without a compiler calls all the same: test_shipped.py.
NOTHING_CAME = """
import pathlib
from detente.bridge.kernels import extension
extension.FOLDER = pathlib.Path("/nowhere")
"""
CHILD = """
import sys, torch, detente
from detente.bridge.kernels.build import kernels
torch.manual_seed(0)
model = torch.nn.Linear(128, 128)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 128)
step = detente.compile(model, lambda m, b: m(b).square().mean(), optimizer, example_batch=x, quiet=True)
loss = [step(x).item() for _ in range(3)][-1]
print(step.programs[0].cached, step.programs[0].compiled.calls, kernels().calls() > 0, loss, kernels().why)
"""


def test_a_stored_program_calls_in_another_process_and_is_none_where_nothing_is_there(
    monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    first, second = child(), child()
    assert first[:3] == ["False", "4", "True"], "two products, two updates"
    assert second[:3] == ["True", "4", "True"] and second[3] == first[3]
    monkeypatch.setenv(build.VARIABLE, "0")
    without = child()
    assert without[:3] == ["False", "None", "False"]
    assert float(without[3]) == pytest.approx(float(first[3]), rel=1e-5)


@pytest.mark.long
def test_a_program_from_before_there_was_a_compiler_is_made_anew(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert [child(NOTHING_CAME)[:2] for _ in range(2)] == [["False", "None"], ["True", "None"]]
    monkeypatch.delenv("CXX")
    assert [child(NOTHING_CAME)[:2] for _ in range(2)] == [["False", "4"], ["True", "4"]]


LINEAR = {
    "forward": (lambda x, w, g: x @ w.T, Product(1, 96, 80, 64, False, True)),
    "gradient of the input": (lambda x, w, g: g @ w, Product(1, 96, 64, 80, False, False)),
    "gradient of the weight": (lambda x, w, g: g.T @ x, Product(1, 80, 64, 96, True, False)),
}


@pytest.mark.parametrize("form", LINEAR)
def test_only_the_forms_that_are_asked_for_are_called(form: str) -> None:
    """A machine may call one of a layer's three products and leave the others to XLA."""
    product, made = LINEAR[form]
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((96, 64), (80, 64), (96, 80))]

    def lowered() -> Any:
        return jax.jit(partial(product)).lower(*shapes).compiler_ir()

    assert made.form == form
    assert rewrite(lowered(), of={F32: (form,)}) == (made,)
    assert rewrite(lowered(), of={F32: [f for f in FORMS if f != form]}) == ()
    assert rewrite(lowered(), of={}) == ()


def test_a_product_of_one_long_side_is_another_form() -> None:
    assert Product(1, 256, 50257, 768, False, True).form == "forward, long"
    assert Product(1, 64, 256, 12544, True, False).form == "gradient of the weight, long"
    assert Product(1, 256, 512, 2048, False, False).form == "gradient of the input"
    assert Product(24, 64, 64, 4096, True, False).form == "batched"
    made = Product(1, 64, 256, 12544, True, False)
    assert made.turned.form == made.form, "the transposed product is the same work"


def test_a_step_calls_what_was_measured_to_win(monkeypatch: Any) -> None:
    """On a machine where gradients of weights lead alone, they are what a step calls."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
    x = torch.randn(64, 128)

    def calls(*won: str) -> int:
        monkeypatch.setattr(build, "decided", lambda of: {f: 2.0 if f in won else 1.0 for f in DECIDED[of]})
        build.kernels.cache_clear()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        step = detente.compile(
            model,
            lambda m, b: m(b).square().mean(),
            optimizer,
            example_batch=x,
            quiet=True,
            certificate="none",
        )
        assert build.kernels().products == set(won)
        assert ("forward 1.00" in build.kernels().slow) is ("forward" not in won)
        return step.programs[0].compiled.calls - updates

    updates = 0
    updates = calls()
    assert calls("gradient of the weight") == 2
    assert calls("forward") == 2
    assert calls("gradient of the input") == 1, "nobody asks for the batch's"
    assert calls(*FORMS) == 5
