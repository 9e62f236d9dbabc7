"""Kinks: where a function has no derivative, rounding decides which of two a backward pass takes.

A ReLU whose input is within rounding of zero lets the gradient through in one framework and not in another. Of
ResNet-50 in fp32 that is 1.4e-2 of a gradient tensor between two right programs, and a tolerance as wide hides
gradients that were computed in bf16. So the point is chosen, and not the tolerance: every bias in front of a ReLU
moves, channel by channel, by at most ``WITHIN`` into the middle of the widest gap that its inputs leave around zero,
over all rotating batches.

The forward pass that finds the inputs is torch's in float64, on all batches in one, each normalised by its own
statistics; what is moved is moved on the way, so that one pass does it for all layers.

How it can fail: a bias is followed from the product or normalisation that adds it through sums, views and
permutations; behind anything else a ReLU has none, and is ``left``. The gaps are those of the loaded weights: behind
the first update the inputs lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detente.records.kinks import Kinks
from detente.stacks.torch_eager import TorchRunning

# How far a bias may move: of an input of standard deviation 1 this moves 1 % of the signs, and leaves the model what it
# is. Wider gaps would not help: 0.02 holds thousands of inputs of a channel.
WITHIN = 0.02

# By the operator's name in ATen, without overload. Those at zero, of which the input can be shifted; and further ones
# where a rounding decides (which of two equal values was the larger, say), which can only be met.
AT_ZERO = frozenset({"relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "_prelu_kernel"})
ELSEWHERE = frozenset(
    {
        "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "mkldnn_max_pool2d", "adaptive_max_pool2d",
        "hardtanh", "hardtanh_", "hardswish", "hardswish_", "hardsigmoid", "hardsigmoid_", "hardshrink", "softshrink",
        "threshold", "threshold_", "abs", "abs_", "amax", "amin", "topk", "sort", "round", "sign", "floor", "ceil",
    }
)  # fmt: skip
_NORMALISES = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm"}
)
# Operator -> which argument is the bias, and which axis of the result it is added along.
_BIASED = {
    "convolution": (2, 1),
    "addmm": (0, -1),
    "native_group_norm": (2, 1),
    "native_layer_norm": (3, -1),
    **dict.fromkeys(_NORMALISES, (2, 1)),
}


def look(module: torch.nn.Module, run: Callable[[], Any]) -> Kinks:
    """The kinks of one forward pass of ``module``; nothing is moved, and its buffers are as before."""
    before = {n: b.clone() for n, b in module.named_buffers()}
    walk = _Walk({}, 1)
    with torch.no_grad():
        with walk:
            run()
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    return walk.found()


def clear(
    running: TorchRunning, run: Callable[[Any], Any], batches: Sequence[Mapping[str, np.ndarray]]
) -> tuple[Kinks, dict[str, np.ndarray]]:
    """Moves the biases in front of ReLUs. ``run(batch)`` is the forward pass of ``running``, which is in float64 and in
    the mode that trains. Returned are the kinks and the moved biases in float32, which the float64 module holds
    exactly."""
    named = dict(running.module.named_parameters())
    rows = {a.shape[0] if a.ndim else 0 for batch in batches for a in batch.values()}
    # Rows that do not stand along one axis cannot be told apart: then the first batch has to do.
    together = len(rows) == 1 and min(rows) > 0
    given = {n: np.concatenate([b[n] for b in batches]) for n in batches[0]} if together else batches[0]
    biases = {p.data_ptr(): n for n, p in named.items() if p.dim() == 1}
    walk = _Walk(biases, len(batches) if together else 1)
    with torch.no_grad(), walk:
        run(running.place(given))
    moved = {n: named[n].detach().cpu().numpy().astype(np.float32) for n in walk.moved}
    return walk.found(), moved


class _Walk(TorchDispatchMode):
    """Follows biases through a forward pass, and moves them where a ReLU asks for its input.

    ``biases``: memory -> name of those that may be moved. ``parts``: how many batches the first axis holds.
    """

    def __init__(self, biases: Mapping[int, str], parts: int) -> None:
        super().__init__()
        self.met: dict[str, int] = {}
        self.moved: dict[str, float] = {}  # the largest move of a channel
        self.nearest, self.left = float("inf"), 0
        self._biases, self._parts = biases, parts
        # Of a tensor that lives: the biases that were added to it, with the axis that they were added along.
        self._behind: dict[int, list[tuple[torch.Tensor, int]]] = {}
        self._alive: list[Any] = []

    def found(self) -> Kinks:
        nearest = self.nearest if self.moved else None
        furthest = max(self.moved.values(), default=0.0)
        return Kinks(self.met, len(self.moved), furthest, nearest, self.left)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in AT_ZERO and args[0].is_floating_point():
            self._count(name)
            self._move(args[0])
        elif name in ELSEWHERE and args[0].is_floating_point():
            self._count(name)
        if name in _NORMALISES and self._parts > 1:
            return self._note(name, args, self._by_parts(func, args, kwargs))
        return self._note(name, args, func(*args, **kwargs))

    def _count(self, name: str) -> None:
        self.met[name] = self.met.get(name, 0) + 1

    def _by_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Each batch normalised by its own statistics."""
        found = [func(part, *args[1:], **kwargs) for part in args[0].chunk(self._parts)]
        return (torch.cat([one[0] for one in found]), *found[0][1:])

    def _note(self, name: str, args: Any, result: Any) -> Any:
        out = result[0] if isinstance(result, tuple | list) else result
        if not isinstance(out, torch.Tensor) or not self._biases:
            return result
        known: list[tuple[torch.Tensor, int]] = []
        if name in _BIASED:
            place, axis = _BIASED[name]
            bias = args[place] if len(args) > place else None
            if bias is not None and bias.data_ptr() in self._biases:
                known = [(bias, axis % out.dim())]
        elif name in ("add", "add_"):
            for one in args[:2]:
                if isinstance(one, torch.Tensor):
                    if one.data_ptr() in self._biases and one.dim() == 1:
                        known.append((one, out.dim() - 1))
                    elif one.shape == out.shape:
                        known += self._behind.get(id(one), [])
        elif args and isinstance(args[0], torch.Tensor):
            for bias, axis in self._behind.get(id(args[0]), []):
                if (now := _axis_behind(name, args, out, axis)) is not None:
                    known.append((bias, now))
        if known:
            self._behind[id(out)] = known
            self._alive.append(out)  # or its id is another's
        return result

    def _move(self, x: torch.Tensor) -> None:
        """The bias that was added last, and that cleared no ReLU yet, moves; the input moves with it."""
        free = [
            (b, a) for b, a in self._behind.get(id(x), []) if self._biases[b.data_ptr()] not in self.moved
        ]
        if not free:
            self.left += 1
            return
        bias, axis = free[0]
        rows = x.movedim(axis, 0).reshape(x.shape[axis], -1)
        wanted = torch.tensor([_into_widest_gap(row) for row in rows], dtype=x.dtype, device=x.device)
        # What the float32 file holds is what every framework will compute with.
        new = (bias + wanted).float().to(x.dtype)
        shift = new - bias
        bias.copy_(new)
        x.add_(shift.view(-1, *[1] * (x.dim() - axis - 1)))
        self.moved[self._biases[bias.data_ptr()]] = float(shift.abs().max())
        self.nearest = min(self.nearest, float(x.abs().min() / x.std()))


def _axis_behind(name: str, args: Any, out: torch.Tensor, axis: int) -> int | None:
    """The axis of ``out`` along which a bias lies that lay along ``axis`` of the first argument; None: it is lost."""
    dims = args[0].dim()
    if name in ("view", "_unsafe_view", "reshape", "clone", "contiguous", "detach", "alias", "dropout"):
        if args[0].shape == out.shape:
            return axis
        last = axis == dims - 1 and out.shape[-1] == args[0].shape[-1]
        return out.dim() - 1 if last else None
    if name == "permute":
        return [d % dims for d in args[1]].index(axis)
    if name in ("transpose", "t"):
        one, other = (args[1] % dims, args[2] % dims) if name == "transpose" else (0, 1)
        return {one: other, other: one}.get(axis, axis)
    return None


def _into_widest_gap(values: torch.Tensor) -> float:
    """The shift, of at most ``WITHIN``, behind which the nearest of these is furthest from zero."""
    near = values[values.abs() <= 2 * WITHIN]
    edges = torch.tensor([-2 * WITHIN, 2 * WITHIN], dtype=values.dtype)
    marks = torch.cat([near, edges]).sort().values
    middles = ((marks[1:] + marks[:-1]) / 2).clamp(-WITHIN, WITHIN)
    # Of a gap that reaches over the border the point at the border is what counts.
    free = torch.minimum(middles - marks[:-1], marks[1:] - middles)
    return -float(middles[free.argmax()])
