"""Modules that the two frameworks cut up differently are one function under the weight map: an LSTM whose gates are one
tensor in torch and a kernel each in Flax, and an attention whose projections have heads on an axis of their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from detente.workloads.weight_tables import LINEAR, At, from_heads, rules_of, split, to_heads
from detente.workloads.weights import WeightRule, canonical_hash, to_canonical, to_framework

INPUTS, HIDDEN, HEADS = 5, 6, 2


def lstm_rules() -> list[WeightRule]:
    """torch: ``weight_ih_l0`` (4 hidden, inputs), gates in the order input, forget, cell, output; two biases."""
    rules = []
    for i, gate in enumerate(("i", "f", "g", "o")):
        for side in ("i", "h"):
            leaf = f"{side}{gate}" + ("_" if side + gate == "if" else "")
            names = (f"weight_{side}h_l0", f"bias_{side}h_l0")
            rules += rules_of({"": At(f"cell.{leaf}", split(LINEAR, names, i * HIDDEN, (i + 1) * HIDDEN))})
    return rules


def attention_rules() -> list[WeightRule]:
    """torch: ``in_proj_weight`` (3 hidden, hidden); Flax: three kernels (hidden, heads, per head)."""
    each = HIDDEN // HEADS
    rules = rules_of({"out_proj": At("out", from_heads(HEADS, each, HIDDEN))})
    for i, name in enumerate(("query", "key", "value")):
        leaves = split(to_heads(HIDDEN, HEADS, each), "in_proj_", i * HIDDEN, (i + 1) * HIDDEN)
        rules += rules_of({"": At(name, leaves)})
    return rules


def flax_lstm(rngs: nnx.Rngs) -> nnx.Module:
    """Flax's own cell under Flax's own loop; torch has a bias on both sides."""
    dtypes = {"dtype": jnp.float64, "param_dtype": jnp.float64}
    cell = nnx.LSTMCell(INPUTS, HIDDEN, rngs=rngs, **dtypes)
    for gate in ("ii", "if_", "ig", "io"):
        setattr(cell, gate, nnx.Linear(INPUTS, HIDDEN, rngs=rngs, **dtypes))
    return nnx.RNN(cell)


def flat(state) -> dict[tuple, np.ndarray]:
    return {path: np.asarray(v[...]) for path, v in nnx.to_flat_state(state)}


def agrees(ours, theirs, rules, run_ours, run_theirs, x, limit) -> None:
    """Loss, every gradient and three steps of SGD, in float64, and the map there and back."""
    canonical = {n: p.detach().numpy() for n, p in ours.named_parameters()}
    before = canonical_hash(canonical)
    graph, params, rest = nnx.split(theirs, nnx.Param, ...)
    leaves = to_framework(rules, canonical)
    assert {p: a.shape for p, a in leaves.items()} == {p: a.shape for p, a in flat(params).items()}
    for path, variable in nnx.to_flat_state(params):
        variable[...] = jnp.asarray(leaves[path])
    assert canonical_hash(to_canonical(rules, flat(params))) == before

    @jax.jit
    @jax.value_and_grad
    def step(params):
        return jnp.square(run_theirs(nnx.merge(graph, params, rest, copy=True), jnp.asarray(x))).sum()

    optimizer = torch.optim.SGD(ours.parameters(), lr=0.01)
    for _ in range(3):
        value, gradients = step(params)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)
        optimizer.zero_grad()
        expected = run_ours(ours, torch.from_numpy(x)).square().sum()
        expected.backward()
        assert abs(float(value) - expected.item()) <= limit * expected.item()
        found = to_canonical(rules, flat(gradients))
        for name, parameter in ours.named_parameters():
            error = np.abs(found[name] - parameter.grad.numpy()).max()
            assert error <= limit * max(1.0, parameter.grad.abs().max().item()), name
        optimizer.step()
    moved = to_canonical(rules, flat(params))
    for name, parameter in ours.named_parameters():
        assert np.abs(moved[name] - parameter.detach().numpy()).max() <= limit, name


def test_an_idiomatic_flax_lstm_is_torchs() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, INPUTS))
    with jax.enable_x64(True):
        ours = torch.nn.LSTM(INPUTS, HIDDEN, batch_first=True).double()
        agrees(
            ours,
            flax_lstm(nnx.Rngs(0)),
            lstm_rules(),
            lambda m, x: m(x)[0],
            lambda m, x: m(x),
            x,
            1e-12,
        )


def test_gates_in_another_order_are_seen() -> None:
    """The comparison above can fail: two gates of equal shape, swapped."""
    x = np.random.default_rng(0).standard_normal((3, 4, INPUTS))
    swap = {"ii": "ig", "ig": "ii", "hi": "hg", "hg": "hi"}
    rules = [
        WeightRule(r.name, tuple(swap.get(str(p), p) for p in r.path), r.layout, piece=r.piece)
        for r in lstm_rules()
    ]
    with jax.enable_x64(True):
        ours = torch.nn.LSTM(INPUTS, HIDDEN, batch_first=True).double()
        try:
            agrees(ours, flax_lstm(nnx.Rngs(0)), rules, lambda m, x: m(x)[0], lambda m, x: m(x), x, 1e-12)
        except AssertionError:
            return
    raise AssertionError("swapped gates went unnoticed")


def test_flaxs_attention_is_torchs() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, HIDDEN))
    with jax.enable_x64(True):
        ours = torch.nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True).double()
        theirs = nnx.MultiHeadAttention(
            HEADS,
            HIDDEN,
            decode=False,
            dtype=jnp.float64,
            param_dtype=jnp.float64,
            deterministic=True,
            rngs=nnx.Rngs(0),
        )
        agrees(
            ours,
            theirs,
            attention_rules(),
            lambda m, x: m(x, x, x, need_weights=False)[0],
            lambda m, x: m(x),
            x,
            1e-6,  # Flax takes the softmax in float32
        )
