"""Which calls draw random numbers, and how many: the numbering that every form of a program shares.

``draws(op, args)`` counts on the operators as Python calls them (``aten.dropout.default``), before any
decomposition, so that eager torch with the random twin, the unrolled, rolled and recomputed programs agree
on every ordinal, dead draws included. A call that torch would make without touching its generator (dropout
in eval, or p = 0) counts none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from detente.bridge.capture.argument import argument

Count = Callable[[tuple[Any, ...], Mapping[str, Any]], int]


def _dropout(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    p, train = argument(args, kwargs, 1, "p", 0.5), argument(args, kwargs, 2, "train", True)
    return int(bool(train) and 0 < p < 1)


def _attention(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return int(argument(args, kwargs, 4, "dropout_p", 0.0) > 0)


def _rrelu(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return int(bool(argument(args, kwargs, 3, "training", False)))


def _recurrent(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """``(input, hx, params, has_biases, num_layers, dropout, train, ...)``: one draw between two layers."""
    del kwargs
    layers, dropout, train = args[4], args[5], args[6]
    return layers - 1 if train and 0 < dropout < 1 else 0


def _packed(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """``(input, lengths, states, params, has_biases, num_layers, dropout, train, ...)``."""
    return _recurrent(args[1:], kwargs)


# operators that draw only sometimes; everything else that torch tags as nondeterministic_seeded draws once
COUNTS: dict[str, Count] = {
    "aten.dropout": _dropout,
    "aten.dropout_": _dropout,
    "aten.native_dropout": _dropout,
    "aten.feature_dropout": _dropout,
    "aten.feature_dropout_": _dropout,
    "aten.alpha_dropout": _dropout,
    "aten.alpha_dropout_": _dropout,
    "aten.feature_alpha_dropout": _dropout,
    "aten.feature_alpha_dropout_": _dropout,
    "aten.scaled_dot_product_attention": _attention,
    "aten.rrelu": _rrelu,
    "aten.rrelu_": _rrelu,
    "aten.lstm": _recurrent,
    "aten.gru": _recurrent,
    "aten.rnn_tanh": _recurrent,
    "aten.rnn_relu": _recurrent,
    **dict.fromkeys(("detente.packed_lstm", "detente.packed_gru"), _packed),
    **dict.fromkeys(("detente.packed_rnn_tanh", "detente.packed_rnn_relu"), _packed),
}


# our own operators of this process that draw: name without overload -> how often (capture/functions.py)
INSIDE: dict[str, int] = {}


def draws(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """How many random calls the ``OpOverload`` ``op`` makes with these arguments."""
    import torch

    name = str(op).rpartition(".")[0]
    if name in COUNTS:
        return COUNTS[name](args, kwargs)
    if name in INSIDE:
        return INSIDE[name]
    return int(torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()))
