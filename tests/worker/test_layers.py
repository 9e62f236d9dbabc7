"""The first layer whose value differs is named; ways of writing a model that are only other ways name none."""

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

from detente.records.fault import UsageFault
from detente.worker.layers import in_jax
from detente.worker.layers.compare import first_difference
from detente.worker.layers.record import distance, joined, read_boundaries, values_of, write_boundaries
from tests.worker.layer_pairs import (
    TOKENS,
    VOCABULARY,
    Arrays,
    Lm,
    attend,
    block,
    dense,
    drawn,
    jax_side,
    leaves_of,
    lm,
    lm_difference,
    norm,
    project,
    same,
    torch_side,
)

# Fair ways of writing the language model -----------------------------------------------------------------------------


def einsum(p: Arrays, name: str, x: Any) -> Any:
    return jnp.einsum("oi,...i->...o", p[f"{name}.weight"].T, x) + p[f"{name}.bias"]


def bias_first(p: Arrays, name: str, x: Any) -> Any:
    return jax.lax.dot_general(x, p[f"{name}.weight"], (((x.ndim - 1,), (0,)), ((), ()))) - (
        -p[f"{name}.bias"]
    )


def folded_bias(p: Arrays, name: str, x: Any) -> Any:
    """The bias as one more row of the kernel."""
    kernel = jnp.concatenate([p[f"{name}.weight"], p[f"{name}.bias"][None]])
    return jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], -1) @ kernel


def rsqrt_first(p: Arrays, name: str, x: Any, eps: float = 1e-6) -> Any:
    """As Flax: the scale meets rsqrt before it meets x, and the variance is a mean of squares."""
    mean = x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) - mean * mean + eps) * p[f"{name}.weight"]
    return (x - mean) * scale + p[f"{name}.bias"]


def affine(p: Arrays, name: str, x: Any) -> Any:
    """One product and one sum: the mean goes into the bias."""
    mean = x.mean(-1, keepdims=True)
    scale = p[f"{name}.weight"] * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * scale + (p[f"{name}.bias"] - mean * scale)


def standardised(p: Arrays, name: str, x: Any) -> Any:
    return jax.nn.standardize(x, epsilon=1e-6) * p[f"{name}.weight"] + p[f"{name}.bias"]


def fused(p: Arrays, name: str, y: Any) -> Any:
    """One product whose result is cut, heads first."""
    kernel = jnp.concatenate([p[f"{name}.{n}.weight"] for n in "qkv"], 1)
    bias = jnp.concatenate([p[f"{name}.{n}.bias"] for n in "qkv"])
    return [a.reshape(*y.shape[:-1], 2, -1) for a in jnp.split(y @ kernel + bias, 3, -1)]


def stacked_leaf(p: Arrays, name: str, y: Any) -> Any:
    """One leaf (3, in, heads, per head) on JAX's side."""
    y = jnp.einsum("btc,nchd->nbthd", y, p[f"{name}.qkv.weight"]) + p[f"{name}.qkv.bias"][:, None, None]
    return y[0], y[1], y[2]


def stack_leaves(leaves: Arrays) -> Arrays:
    made = {}
    for i in (0, 1):
        kernels = [leaves.pop(f"blocks.{i}.{n}.weight").reshape(8, 2, 4) for n in "qkv"]
        biases = [leaves.pop(f"blocks.{i}.{n}.bias").reshape(2, 4) for n in "qkv"]
        made |= {f"blocks.{i}.qkv.weight": np.stack(kernels), f"blocks.{i}.qkv.bias": np.stack(biases)}
    return leaves | made


STACKED = {
    f"blocks.{i}.{n}.{t}": (f"blocks.{i}.qkv.{t}",) for i in (0, 1) for n in "qkv" for t in ("weight", "bias")
}


def scale_on_q(q: Any, k: Any, v: Any) -> Any:
    return attend(q / np.sqrt(q.shape[-1]), k, v, scaled=False)


def library_attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def late_bias(p: Arrays, name: str, x: Any) -> Any:
    """The bias meets the residual first: what torch's product gives is nowhere, and what follows from it is."""
    q, k, v = project(p, name, norm(p, f"{name}.norm1", x))
    y = attend(q, k, v).reshape(x.shape)
    x = (x + p[f"{name}.out.bias"]) + y @ p[f"{name}.out.weight"]
    y = jax.nn.gelu(dense(p, f"{name}.fc1", norm(p, f"{name}.norm2", x)), approximate=False)
    return (x + p[f"{name}.fc2.bias"]) + y @ p[f"{name}.fc2.weight"]


def one_hot(p: Arrays, ids: Any) -> Any:
    return jax.nn.one_hot(ids, VOCABULARY, dtype=jnp.float64) @ p["wte.weight"] + p["wpe.weight"]


def places_taken(p: Arrays, ids: Any) -> Any:
    return jnp.take(p["wpe.weight"], jnp.arange(TOKENS), axis=0) + jnp.take(p["wte.weight"], ids, axis=0)


@jax.custom_vjp
def own_product(x: Any, w: Any, b: Any) -> Any:
    return x @ w + b


own_product.defvjp(
    lambda x, w, b: (own_product(x, w, b), (x, w)),
    lambda kept, g: (g @ kept[1].T, jnp.einsum("bti,bto->io", kept[0], g), g.sum((0, 1))),
)


def indexed(p: Arrays, ids: Any) -> Any:
    """Layers cut out of one stack by a loop's counter."""
    names = [n.removeprefix("blocks.0.") for n in p if n.startswith("blocks.0.")]
    stack = {n: jnp.stack([p[f"blocks.{i}.{n}"] for i in (0, 1)]) for n in names}

    def layer(i: Any, x: Any) -> Any:
        return block({f"b.{n}": a[i] for n, a in stack.items()}, "b", x)

    x = jax.lax.fori_loop(0, 2, layer, p["wte.weight"][ids] + p["wpe.weight"])
    return norm(p, "norm", x) @ p["wte.weight"].T


def scanned(p: Arrays, ids: Any) -> Any:
    """Layers stacked by hand in one loop."""
    names = [n.removeprefix("blocks.0.") for n in p if n.startswith("blocks.0.")]
    stack = {n: jnp.stack([p[f"blocks.{i}.{n}"] for i in (0, 1)]) for n in names}

    def layer(x: Any, one: Arrays) -> Any:
        return block({f"b.{n}": a for n, a in one.items()}, "b", x), None

    x, _ = jax.lax.scan(layer, p["wte.weight"][ids] + p["wpe.weight"], stack)
    return norm(p, "norm", x) @ p["wte.weight"].T


def rows_by_scan(p: Arrays, ids: Any) -> Any:
    return jax.lax.map(lambda row: lm(p, row[None])[0], ids)


def both(**ways: Any) -> Any:
    one = partial(block, **ways)
    return partial(lm, first=one, second=one)


FAIR: dict[str, Any] = {
    "plain": lm,
    "einsum": both(dense=einsum),
    "bias subtracted": both(dense=bias_first),
    "bias in the kernel": both(dense=folded_bias),
    "rsqrt first": both(norm1=rsqrt_first, norm2=rsqrt_first),
    "affine norm": both(norm1=affine, norm2=affine),
    "standardize": both(norm1=standardised, norm2=standardised),
    "fused qkv": both(project=fused),
    "scale on q": both(attend=scale_on_q),
    "library attention": both(attend=library_attention),
    "bias after the residual": partial(lm, first=late_bias, second=late_bias),
    "one-hot embedding": partial(lm, embed=one_hot),
    "take": partial(lm, embed=places_taken),
    "scan": scanned,
    "loop with a counter": indexed,
    "derivative of its own": both(dense=lambda p, n, x: own_product(x, p[f"{n}.weight"], p[f"{n}.bias"])),
    "row by row": rows_by_scan,
    "jit": jax.jit(lm),
    "jit inside": partial(
        lm, first=jax.jit(block, static_argnums=1), second=jax.jit(block, static_argnums=1)
    ),
    "remat": partial(lm, second=jax.checkpoint(block, static_argnums=1)),
    "vmap": jax.vmap(lm, in_axes=(None, 0)),
    "vmap twice": lambda p, ids: jax.vmap(jax.vmap(lm, in_axes=(None, 0)), in_axes=(None, 0))(
        p, ids[:, None]
    )[:, 0],
    "grad": lambda p, ids: jax.value_and_grad(lambda p: lm(p, ids).sum())(p),
    "double precision cond": lambda p, ids: jax.lax.cond(
        ids[0, 0] >= 0, lm, lambda p, ids: 0 * lm(p, ids), p, ids
    ),
}


@pytest.mark.parametrize("way", FAIR)
def test_fair_ways_of_writing_it_differ_nowhere(way: str) -> None:
    assert lm_difference(FAIR[way]) is None


def test_three_projections_of_torch_in_one_leaf() -> None:
    assert lm_difference(both(project=stacked_leaf), change=stack_leaves, parts=STACKED) is None


# Planted faults ------------------------------------------------------------------------------------------------------


def without(tensor: str) -> Any:
    def of(p: Arrays, name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"] + (0 if f"{name}.bias" == tensor else p[f"{name}.bias"])

    return of


def swapped(leaves: Arrays) -> Arrays:
    q, k = leaves["blocks.1.q.weight"], leaves["blocks.1.k.weight"]
    return leaves | {"blocks.1.q.weight": k, "blocks.1.k.weight": q}


def turned(leaves: Arrays) -> Arrays:
    return leaves | {"blocks.1.out.weight": leaves["blocks.1.out.weight"].T.copy()}


def joined_wrongly(q: Any, k: Any, v: Any) -> Any:
    """Heads are not turned back before they are joined: the same values in another order."""
    return jnp.swapaxes(attend(q, k, v), 1, 2)


def planted(**ways: Any) -> Any:
    return partial(lm, second=partial(block, **ways))


# What is wrong -> the function, what the weights become, the tensors that are named, what agreed last, what flows in
FAULTS: dict[str, tuple[Any, Any, str, str, bool | None]] = {
    "epsilon": (planted(norm2=partial(norm, eps=1e-5)), None, "blocks.1.norm2", "blocks.1.out", True),
    "epsilon, rsqrt form": (
        planted(norm2=partial(rsqrt_first, eps=1e-5)), None, "blocks.1.norm2", "blocks.1.out", True
    ),
    "last epsilon": (partial(lm, last=partial(norm, eps=1e-5)), None, "norm", "blocks.1.fc2", True),
    "q and k swapped in the weights": (lm, swapped, "blocks.1.q", "blocks.1.norm1", True),
    "q and k swapped": (
        planted(attend=lambda q, k, v: attend(k, q, v)), None, "blocks.1.out", "blocks.1.v", False
    ),
    "gelu by tanh": (planted(gelu=jax.nn.gelu), None, "blocks.1.fc2", "blocks.1.fc1", False),
    "a square matrix turned": (lm, turned, "blocks.1.out", "blocks.1.v", True),
    "residual dropped": (planted(residual=False), None, "blocks.1.norm2", "blocks.1.out", None),
    "mask forgotten": (planted(attend=partial(attend, masked=False)), None, "blocks.1.out", "blocks.1.v", False),
    "scale forgotten": (planted(attend=partial(attend, scaled=False)), None, "blocks.1.out", "blocks.1.v", False),
    "heads joined wrongly": (planted(attend=joined_wrongly), None, "blocks.1.out", "blocks.1.v", None),
    "places forgotten": (
        partial(lm, embed=lambda p, ids: p["wte.weight"][ids] + 0 * p["wpe.weight"]),
        None, "wpe", "wte", None,
    ),
    "places off by one": (
        partial(lm, embed=lambda p, ids: p["wte.weight"][ids] + jnp.roll(p["wpe.weight"], 1, 0)),
        None, "blocks.0.norm1", "wpe", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_its_layer(fault: str) -> None:
    function, change, layer, agreed, given = FAULTS[fault]
    found = lm_difference(function, **({"change": change} if change else {}))
    assert found is not None and found.kind == "layer"
    assert {t.rpartition(".")[0] for t in found.tensors} == {layer}
    assert {t.rpartition(".")[0] for t in found.agreed} == {agreed}
    assert found.given is given or given is None
    assert layer in found.text and (found.given or agreed in found.text)


def test_a_missing_bias_is_named() -> None:
    found = lm_difference(planted(dense=without("blocks.1.fc1.bias")))
    assert found is not None and found.kind == "unused"
    assert found.text.startswith("blocks.1.fc1.bias is never used in JAX")


def test_a_missing_bias_of_zeros_is_named() -> None:
    """Values agree; its gradient would not."""
    module = drawn(Lm())
    module.blocks[1].fc1.bias.data.zero_()
    ids = np.arange(10).reshape(2, 5)
    leaves = leaves_of(module)
    right = torch_side(module, torch.from_numpy(ids))
    other = jax_side(planted(dense=without("blocks.1.fc1.bias")), leaves, ids)
    found = first_difference(right, other, same(leaves))
    assert found is not None and (found.kind, found.tensors) == ("unused", ("blocks.1.fc1.bias",))


def test_what_lies_behind_the_last_layer() -> None:
    found = lm_difference(lm, losses=(2.0, 2.1))
    assert found is not None and found.kind == "loss" and "in the loss" in found.text
    found = lm_difference(lm, losses=(2.0, 2.0))
    assert found is not None and found.kind == "backward" and "backward pass" in found.text


def test_single_precision_inside_is_named_when_a_proof_failed() -> None:
    found = lm_difference(both(attend=library_attention), losses=(2.0, 2.0 + 1e-8))
    assert found is not None and found.kind == "precision"
    assert found.tensors[0] == "blocks.0.out.bias" and "float32" in found.text


def test_a_record_is_read_back(tmp_path: Any) -> None:
    module = drawn(Lm())
    right = torch_side(module, torch.zeros(2, 5, dtype=torch.int64))
    write_boundaries(tmp_path, "torch", right)
    again = read_boundaries(tmp_path, "torch")
    assert [(b.tensors, b.what, b.shape, b.steps, b.site, b.after) for b in again] == [
        (b.tensors, b.what, b.shape, b.steps, b.site, b.after) for b in right
    ]
    assert all(np.array_equal(a.values.ordered, b.values.ordered) for a, b in zip(again, right, strict=True))
    assert first_difference(right, again, same(leaves_of(module))) is None


def test_a_loss_that_smooths_its_labels_is_told_from_the_layers() -> None:
    module, ids = drawn(Lm()), np.arange(15).reshape(3, 5) % VOCABULARY
    leaves = leaves_of(module)

    def loss(p: Arrays, ids: Any, smoothing: float = 0.1) -> Any:
        labels = (1 - smoothing) * jax.nn.one_hot(ids, VOCABULARY) + smoothing / VOCABULARY
        return -(jax.nn.log_softmax(lm(p, ids)) * labels).sum(-1).mean()

    given = torch.from_numpy(ids)
    right = torch_side(module, given)
    with torch.no_grad():
        plain = float(torch.nn.functional.cross_entropy(module(given).flatten(0, 1), given.flatten()))
    with jax.enable_x64(True):
        smoothed = float(loss({n: jnp.asarray(a) for n, a in leaves.items()}, jnp.asarray(ids)))
    found = first_difference(right, jax_side(loss, leaves, ids), same(leaves), losses=(plain, smoothed))
    assert found is not None and found.kind == "loss"


class Gated(torch.nn.Module):
    """A branch that hardly counts."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.one, self.two, self.last = (torch.nn.Linear(6, 6) for _ in range(3))
        self.gate = torch.nn.Parameter(torch.full((6,), gate))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + self.gate * self.two(torch.tanh(self.one(x))))


@pytest.mark.parametrize(("gate", "kind"), [(0.0, "layer"), (1e-12, "hidden"), (0.5, "layer")])
def test_a_fault_behind_a_gate_that_is_nearly_shut_is_not_lost(gate: float, kind: str) -> None:
    module, x = drawn(Gated(gate)), np.random.default_rng(0).standard_normal((4, 6))
    module.gate.data.fill_(gate)
    leaves = leaves_of(module)

    def function(p: Arrays, x: Any) -> Any:
        return dense(p, "last", x + p["gate"] * dense(p, "two", jnp.sin(dense(p, "one", x))))

    right, other = torch_side(module, torch.from_numpy(x)), jax_side(function, leaves, x)
    found = first_difference(right, other, same(leaves), losses=(1.0, 1.0))
    assert found is not None and found.kind == kind and "two.weight" in found.tensors


# What one process has ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("absent", "module"), [("jax", "in_torch"), ("torch", "in_jax"), ("torch", "compare"), ("jax", "compare")]
)
def test_each_side_is_imported_without_the_other_framework(absent: str, module: str) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None; import detente.worker.layers.{module}"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_float64_that_would_be_rounded_is_refused() -> None:
    with pytest.raises(UsageFault, match="float32"):
        in_jax.walk(lambda named: named["a"] + 1, {"a": np.ones(3)})


def test_what_a_mask_adds_hides_no_other_value() -> None:
    scores = np.random.default_rng(0).standard_normal((6, 6))
    for mask in (-np.inf, np.finfo(np.float64).min):
        masked = np.where(np.tri(6, dtype=bool), scores, mask)
        assert distance(values_of(masked), values_of(masked.T + 0.0)) == 0
        assert (
            1e-7
            < distance(values_of(masked), values_of(np.where(masked > mask, scores * (1 + 1e-6), mask)))
            < 1e-5
        )
        assert distance(values_of(masked), values_of(scores)) > 0.1
    for count in (6, 5000):
        x = np.random.default_rng(1).standard_normal((3, count))
        assert distance(values_of(x), values_of(x.T)) == 0
        assert distance(values_of(x), joined([values_of(row) for row in x])) < 1e-14
        assert distance(values_of(x), values_of(x[:2])) == float("inf")
