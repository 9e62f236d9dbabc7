"""``pack_padded_sequence`` makes a tensor as long as the sum of the lengths, which no program of static shapes has.

Nothing of what a recurrent layer computes depends on that size: while a program is captured, a packed sequence keeps
the padded tensor and the lengths, recurrent layers become one operator that stops each sequence at its length, and
``pad_packed_sequence`` masks. What else is done with packed data is refused by name.

As long as the longest sequence is what ``pad_packed_sequence`` gives: the program checks in every step that the padded
tensor was not longer, unless ``total_length`` says how long it is to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from detente.bridge.capture.where import here
from detente.bridge.private import recurrent_kernels
from detente.bridge.refusal import refuse
from detente.bridge.threads import only_here

# torch's kernel -> how many states it gives
KINDS = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
_PACK, _PAD = "_pack_padded_sequence", "_pad_packed_sequence"

SHORT = (
    "the longest sequence is shorter than the padded tensor, and so is eager PyTorch's result: cut the batch to its "
    "longest sequence, or give pad_packed_sequence total_length="
)
ORDER = (
    "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True; pass enforce_sorted=False to "
    "pack_padded_sequence to sort sequences for you"
)
RANGE = "lengths of packed sequences must lie between 1 and the length of the padded tensor"


def _refused(what: str) -> NoReturn:
    raise refuse(
        "dynamic-shape",
        f"{what} of a packed sequence: its size depends on the lengths' values",
        here(),
        "unpack it first (pad_packed_sequence); recurrent layers take it as it is",
    )


class Longest(int):
    """The length of the padded tensor where torch asks for that of the longest sequence."""


class Padded:
    """The data of a packed sequence: ``tensor`` is (T, B, ...), of which each sequence's rows behind its length mean
    nothing."""

    def __init__(self, tensor: Tensor, sizes: Sizes) -> None:
        self.tensor, self.sizes = tensor, sizes
        self.dtype, self.device = tensor.dtype, tensor.device

    def dim(self) -> int:
        return self.tensor.dim() - 1

    def size(self, dim: int | None = None) -> int:
        if dim is None or dim % self.dim() == 0:
            _refused("size()")
        return self.tensor.size(dim if dim < 0 else dim + 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _refused(f"{name}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types, args, kwargs
        return _refused(getattr(func, "__name__", str(func)))


class Sizes:
    """How many sequences go on at each time; ``lengths`` is (B,)."""

    device = torch.device("cpu")

    def __init__(self, lengths: Tensor, longest: int) -> None:
        self.lengths, self._longest = lengths, longest

    def size(self, dim: int) -> int:
        return Longest(self._longest) if dim == 0 else _refused("batch_sizes")

    def __getitem__(self, time: int) -> int:
        return self.lengths.size(0) if time == 0 else _refused("batch_sizes")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _refused(f"batch_sizes.{name}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types, args, kwargs
        return _refused("batch_sizes")


def _check(good: Tensor, message: str) -> None:
    torch.ops.aten._assert_async.msg(good, message)


def _pack(tensor: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Padded, Sizes]:
    """Sequences are in the order of falling lengths, as for torch's own kernel."""
    tensor = tensor.transpose(0, 1) if batch_first else tensor
    longest, count = tensor.shape[:2]
    if lengths.shape != (count,):
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.numel()} (batch_size={count})"
        )
    _check((lengths[:-1] >= lengths[1:]).all(), ORDER)
    _check((lengths[-1] > 0) & (lengths[0] <= longest), RANGE)
    sizes = Sizes(lengths, longest)
    return Padded(tensor, sizes), sizes


def _pad(
    data: Padded, sizes: Sizes, batch_first: bool, padding_value: float, total: int
) -> tuple[Tensor, Tensor]:
    tensor, lengths = data.tensor, sizes.lengths
    if isinstance(total, Longest):
        _check(lengths[0] == tensor.size(0), SHORT)
    elif total > tensor.size(0):
        tensor = torch.cat([tensor, tensor.new_zeros(total - tensor.size(0), *tensor.shape[1:])])
    inside = torch.arange(tensor.size(0))[:, None] < lengths
    inside = inside.reshape(*inside.shape, *(1,) * (tensor.dim() - 2))
    padded = torch.where(inside, tensor, torch.as_tensor(padding_value, dtype=tensor.dtype))
    return padded.transpose(0, 1) if batch_first else padded, lengths


@cache
def _operator(kind: str) -> Any:
    """``detente::packed_lstm`` and so on, over a padded tensor; made once: an operator lives as long as the process."""
    plain, results = getattr(recurrent_kernels, kind), KINDS[kind] + 1
    schema = (
        "(Tensor x, Tensor lengths, Tensor[] states, Tensor[] params, bool has_biases, int num_layers, float dropout, "
        f"bool train, bool bidirectional) -> ({', '.join(['Tensor'] * results)})"
    )

    def run(
        x: Tensor, lengths: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], *options: Any
    ) -> tuple[Tensor, ...]:
        pack, pad = getattr(recurrent_kernels, _PACK), getattr(recurrent_kernels, _PAD)
        data, sizes = pack(x, lengths, False)
        hx = tuple(states) if kind == "lstm" else states[0]
        out, *last = plain(data, sizes, hx, tuple(params), *options)
        return (pad(out, sizes, False, 0.0, x.size(0))[0], *last)

    tags = (torch.Tag.nondeterministic_seeded,)  # dropout between layers
    made = torch.library.custom_op(f"detente::packed_{kind}", run, mutates_args=(), schema=schema, tags=tags)

    def shape(
        x: Tensor,
        lengths: Tensor,
        states: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        del lengths, params, has_biases, num_layers, dropout, train
        width = states[0].size(-1) * (2 if bidirectional else 1)
        return (x.new_empty(*x.shape[:2], width), *(torch.empty_like(state) for state in states))

    made.register_fake(shape)

    # for a derivative inside of the loss, on fake tensors: each gradient is connected to everything
    def back(saved: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, states, params = saved.parts
        tie = 0 * sum(part.sum() for part in (*grads, x, *states, *params))
        return (
            x * 0 + tie,
            None,
            [s * 0 + tie for s in states],
            [p * 0 + tie for p in params],
            *(None for _ in range(5)),
        )

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.parts = inputs[0], inputs[2], inputs[3]

    made.register_autograd(back, setup_context=keep)
    return made


def _layer(kind: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    operator = _operator(kind)

    def call(data: Any, *rest: Any) -> Any:
        if not isinstance(data, Padded):
            return plain(data, *rest)
        sizes, hx, params, *options = rest
        states = list(hx) if kind == "lstm" else [hx]
        out, *last = operator(data.tensor, sizes.lengths, states, list(params), *options)
        return (Padded(out, sizes), *last)

    return call


@contextmanager
def keep_packed() -> Iterator[None]:
    """Packed sequences that are made inside stay padded."""
    mine: dict[str, Callable[..., Any]] = {_PACK: _pack, _PAD: _pad}
    mine |= {kind: _layer(kind, getattr(recurrent_kernels, kind)) for kind in KINDS}
    try:
        for name, function in mine.items():
            # in front of what the module looks up
            setattr(recurrent_kernels, name, only_here(function, getattr(recurrent_kernels, name)))
        yield
    finally:
        for name in mine:
            vars(recurrent_kernels).pop(name, None)
