"""LSTM, GRU and plain RNN as torch.nn calls them: one ``lax.scan`` per layer and direction.

The product with the inputs is done for all time steps at once, before the scan. Gates are computed in float32 for
half precision. Dropout between layers takes one draw per boundary: ``call.key(l)`` after layer ``l``.

Of packed sequences (``capture/packed.py``) each stops at its length: its state is kept from there on, and its outputs
are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.contract import contracted
from detente.bridge.lower.dtypes import cast, wide
from detente.bridge.lower.ops.random import dropout, keep_mask
from detente.bridge.lower.table import lowers

State = tuple[jax.Array, ...]
Cell = Callable[[jax.Array, State, "_Weights"], State]


class _Weights:
    """The parameters of one layer and direction: input (G*H, I), hidden (G*H, P), biases, projection (P, H)."""

    def __init__(self, tensors: Sequence[jax.Array], has_biases: bool, projected: bool) -> None:
        self.input, self.hidden = tensors[0], tensors[1]
        self.input_bias, self.hidden_bias = (tensors[2], tensors[3]) if has_biases else (None, None)
        self.projection = tensors[-1] if projected else None


def _product(a: jax.Array, b: jax.Array, kind: Any) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=kind)


def _times(x: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    kind = wide(x.dtype)
    y = contracted(_product, x, weight.T, kind)
    return cast(y if bias is None else y + cast(bias, kind), x.dtype)


def _lstm_cell(gates: jax.Array, state: State, weights: _Weights) -> State:
    h, c = state
    kind = wide(h.dtype)
    total = cast(gates, kind) + cast(_times(h, weights.hidden, weights.hidden_bias), kind)
    i, f, g, o = jnp.split(total, 4, -1)
    c_new = jax.nn.sigmoid(f) * cast(c, kind) + jax.nn.sigmoid(i) * jnp.tanh(g)
    h_new = cast(jax.nn.sigmoid(o) * jnp.tanh(c_new), h.dtype)
    if weights.projection is not None:
        h_new = _times(h_new, weights.projection, None)
    return h_new, cast(c_new, c.dtype)


def _gru_cell(gates: jax.Array, state: State, weights: _Weights) -> State:
    (h,) = state
    kind = wide(h.dtype)
    r_in, z_in, n_in = jnp.split(cast(gates, kind), 3, -1)
    r_h, z_h, n_h = jnp.split(cast(_times(h, weights.hidden, weights.hidden_bias), kind), 3, -1)
    r, z = jax.nn.sigmoid(r_in + r_h), jax.nn.sigmoid(z_in + z_h)
    n = jnp.tanh(n_in + r * n_h)
    return (cast((cast(h, kind) - n) * z + n, h.dtype),)


def _rnn_cell(activation: Callable[[jax.Array], jax.Array]) -> Cell:
    def cell(gates: jax.Array, state: State, weights: _Weights) -> State:
        (h,) = state
        return (activation(gates + _times(h, weights.hidden, weights.hidden_bias)),)

    return cell


def _direction(
    x: jax.Array, state: State, weights: _Weights, cell: Cell, reverse: bool, going: jax.Array | None
) -> tuple[jax.Array, State]:
    """One layer in one direction over ``x`` (T, B, I): outputs (T, B, P) and the last state. ``going`` (T, B): which
    sequences have not ended."""
    gates = _times(x, weights.input, weights.input_bias)

    def step(carry: State, now: Any) -> tuple[State, jax.Array]:
        if going is None:
            new = cell(now, carry, weights)
            return new, new[0]
        now, goes = now
        new = tuple(
            jnp.where(goes[:, None], after, before)
            for after, before in zip(cell(now, carry, weights), carry, strict=True)
        )
        return new, jnp.where(goes[:, None], new[0], 0)

    last, outputs = lax.scan(step, state, gates if going is None else (gates, going), reverse=reverse)
    return outputs, last


def _run(
    call: Any,
    x: jax.Array,
    states: Sequence[jax.Array],
    params: Sequence[jax.Array],
    has_biases: bool,
    num_layers: int,
    p: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    cell: Cell,
    lengths: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """The stacked network: outputs, and each state with (layers * directions, B, H). ``lengths`` (B,), falling: of
    packed sequences."""
    single = x.ndim == 2
    if single:
        x, states = x[:, None], [s[:, None] for s in states]
    elif batch_first:
        x = jnp.swapaxes(x, 0, 1)
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    projected = each == (5 if has_biases else 3)
    going = None if lengths is None else jnp.arange(x.shape[0])[:, None] < lengths
    if going is not None:
        # Nothing that stands behind a sequence's end reaches a product: 0 times NaN would be in the weights' gradient.
        x = jnp.where(going[..., None], x, 0)
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for side in range(directions):
            place = layer * directions + side
            weights = _Weights(params[place * each : (place + 1) * each], has_biases, projected)
            y, state = _direction(x, tuple(s[place] for s in states), weights, cell, side == 1, going)
            outputs.append(y)
            last.append(state)
        x = outputs[0] if directions == 1 else jnp.concatenate(outputs, -1)
        if train and p > 0 and layer < num_layers - 1:
            key = call.key(layer) if p < 1 else 0
            x = dropout(call, x, p, True, key=key)[0] if going is None else _packed_dropout(x, p, key, going)
    final = [jnp.stack(parts) for parts in zip(*last, strict=True)]
    if single:
        return x[:, 0], *(s[:, 0] for s in final)
    return jnp.swapaxes(x, 0, 1) if batch_first else x, *final


def _packed_dropout(x: jax.Array, p: float, key: Any, going: jax.Array) -> jax.Array:
    """Dropout of what torch keeps as one row for each time and sequence that goes on, in that order. A threefry number
    depends on its place alone and not on how many there are."""
    if p == 1:
        return x * 0
    mask = keep_mask(key, p, (going.size, x.shape[-1]))
    counts = jnp.sum(going, 1)
    rows = (jnp.cumsum(counts) - counts)[:, None] + jnp.arange(going.shape[1])
    mask = mask[jnp.minimum(rows, going.size - 1)]
    scaled = cast(cast(x, wide(x.dtype)) * jnp.asarray(1.0 / (1.0 - p), wide(x.dtype)), x.dtype)
    return jnp.where(mask, scaled, jnp.zeros_like(x))


@lowers("aten.lstm.input", random=True)
def _lstm(call: Any, x: jax.Array, hx: Sequence[jax.Array], params: Sequence[jax.Array], *rest: Any) -> Any:
    return _run(call, x, hx, params, *rest, cell=_lstm_cell)


def _one_state(cell: Cell) -> Any:
    def lower(call: Any, x: jax.Array, hx: jax.Array, params: Sequence[jax.Array], *rest: Any) -> Any:
        return _run(call, x, [hx], params, *rest, cell=cell)

    return lower


lowers("aten.gru.input", random=True)(_one_state(_gru_cell))
lowers("aten.rnn_tanh.input", random=True)(_one_state(_rnn_cell(jnp.tanh)))
lowers("aten.rnn_relu.input", random=True)(_one_state(_rnn_cell(jax.nn.relu)))


def _packed(cell: Cell) -> Any:
    def lower(
        call: Any, x: jax.Array, lengths: jax.Array, states: Sequence[jax.Array], params: Any, *rest: Any
    ) -> Any:
        return _run(call, x, states, params, *rest, batch_first=False, cell=cell, lengths=lengths)

    return lower


lowers("detente.packed_lstm.default", random=True)(_packed(_lstm_cell))
lowers("detente.packed_gru.default", random=True)(_packed(_gru_cell))
lowers("detente.packed_rnn_tanh.default", random=True)(_packed(_rnn_cell(jnp.tanh)))
lowers("detente.packed_rnn_relu.default", random=True)(_packed(_rnn_cell(jax.nn.relu)))


def _single_step(cell: Cell, states: int) -> Any:
    def lower(call: Any, x: jax.Array, hx: Any, *params: jax.Array | None) -> Any:
        tensors = [t for t in params if t is not None]
        weights = _Weights(tensors, len(tensors) == 4, False)
        state = tuple(hx) if states == 2 else (hx,)
        new = cell(_times(x, weights.input, weights.input_bias), state, weights)
        return new if states == 2 else new[0]

    return lower


lowers("aten.lstm_cell.default")(_single_step(_lstm_cell, 2))
lowers("aten.gru_cell.default")(_single_step(_gru_cell, 1))
lowers("aten.rnn_tanh_cell.default")(_single_step(_rnn_cell(jnp.tanh), 1))
lowers("aten.rnn_relu_cell.default")(_single_step(_rnn_cell(jax.nn.relu), 1))
