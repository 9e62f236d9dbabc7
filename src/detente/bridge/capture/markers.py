"""Operators that stand in the captured program for what Python does with autograd's tape: *markers*.

While a program is captured, tensors are fake and autograd's tape is real: torch itself says which gradient is None,
what raises, and what a result is connected to. So a marker is two things under one name: the value, computed by torch
on the fake tensors where the capture does not see it, and the node that the capture sees. ``adopt`` joins them.

Leans on private parts of torch (the slot that keeps a tensor's node); ``tests/bridge/semantics/test_derivatives.py`` is
the self-test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from detente.bridge.private import set_grad, without_functions

DERIVATIVE = "detente::derivative"  # outputs by inputs, given the gradients of the outputs
LEAF = "detente::leaf"  # from here on the tensor is one that a gradient is taken of
TURN = "detente::turn"  # one turn of each tensor that vmap maps over
TURNS = "detente::turns"  # what every turn gave, side by side

# name -> schema, and the shapes of the results
_SCHEMAS: dict[str, tuple[str, Callable[..., list[torch.Tensor]]]] = {
    DERIVATIVE: (
        "(Tensor[] outputs, Tensor[] inputs, Tensor?[] cotangents, bool create) -> Tensor[]",
        lambda outputs, inputs, cotangents, create: [torch.empty_like(x) for x in inputs],
    ),
    LEAF: ("(Tensor[] x) -> Tensor[]", lambda x: [torch.empty_like(t) for t in x]),
    TURN: (
        "(Tensor[] xs, int[] dims, int group) -> Tensor[]",
        lambda xs, dims, group: [torch.empty_like(x.select(d, 0)) for x, d in zip(xs, dims, strict=True)],
    ),
    TURNS: (
        "(Tensor[] ys, int[] dims, int size, int group) -> Tensor[]",
        lambda ys, dims, size, group: [
            torch.empty_like(spread(y, size, d)) for y, d in zip(ys, dims, strict=True)
        ],
    ),
}


def spread(y: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """``size`` turns that all gave ``y``, along ``dim`` of the result."""
    return y.unsqueeze(0).expand(size, *y.shape).movedim(0, dim)


def _never(*_: Any) -> list[torch.Tensor]:
    raise NotImplementedError("a marker runs in the compiled program only")


@cache
def operator(name: str) -> Any:
    """The marker's operator; made once, since an operator lives as long as the process."""
    schema, shapes = _SCHEMAS[name]
    made = torch.library.custom_op(name, _never, mutates_args=(), schema=schema)
    made.register_fake(shapes)
    return made


def node_name(name: str) -> str:
    """A marker's name in the decomposed program: ``detente.leaf.default``."""
    return name.replace("::", ".") + ".default"


def is_marker(node: Any, name: str) -> bool:
    """Whether a node of the exported program is this marker's."""
    return node.op == "call_function" and node.target is operator(name)._opoverload


def capturing() -> Any:
    """The capture's mode; None where nothing is captured (also inside of ``unseen``)."""
    return proxy_tensor.get_proxy_mode()


@contextmanager
def unseen() -> Iterator[None]:
    """What runs inside runs on the fake tensors and leaves no node."""
    with proxy_tensor.disable_proxy_modes_tracing():
        yield


def seen(tensor: torch.Tensor) -> bool:
    """Whether the capture has a node for this tensor."""
    mode = capturing()
    return mode is not None and proxy_tensor.get_proxy_slot(tensor, mode.tracer, None) is not None


def of_every_turn() -> Callable[[torch.Tensor], bool]:
    """Whether a tensor is a value of the program as a whole: the capture has a node for it, and it is none of the one
    turn that stands for all those of ``torch.vmap``."""
    tracer, inside = capturing().tracer, set[Any]()
    for node in tracer.graph.nodes:
        turning = is_marker(node, TURN) or any(other in inside for other in node.all_input_nodes)
        if turning and not is_marker(node, TURNS):
            inside.add(node)

    def whole(tensor: torch.Tensor) -> bool:
        return seen(tensor) and proxy_tensor.get_proxy_slot(tensor, tracer).proxy.node not in inside

    return whole


def adopt(value: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
    """``value``, known from here on as the node of ``node``."""
    tracer = capturing().tracer
    proxy_tensor.set_proxy_slot(value, tracer, proxy_tensor.get_proxy_slot(node, tracer))
    return value


def marked(name: str, values: Sequence[torch.Tensor], *arguments: Any) -> list[torch.Tensor]:
    """A node of the marker on these arguments, whose results are ``values``. A value that is another's object, or that
    the capture knows already, is copied: two nodes cannot have one tensor."""
    nodes = operator(name)(*arguments)
    found: list[torch.Tensor] = []
    for value, node in zip(values, nodes, strict=True):
        own = value
        if seen(value) or any(value is other for other in found):
            with unseen(), quietly_enabled(value.requires_grad):
                own = value.clone()
        found.append(adopt(own, node))
    return found


@contextmanager
def quietly_enabled(grad: bool) -> Iterator[None]:
    """Grad mode without the node that the capture makes of a change of it."""
    before = torch.is_grad_enabled()
    with without_functions():
        set_grad(grad)
    try:
        yield
    finally:
        with without_functions():
            set_grad(before)


@contextmanager
def enabled() -> Iterator[None]:
    """Grad mode on, told to the capture where it was off."""
    if torch.is_grad_enabled():
        yield
        return
    with torch.enable_grad():
        yield


def leaf(x: torch.Tensor) -> torch.Tensor:
    """``x`` as a tensor that a gradient can be taken of: what reads ``x`` itself is no part of that gradient. The
    gradient goes on to ``x`` where it has one. Raises torch's error for integers."""
    with unseen():
        value = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
    return marked(LEAF, [value], [x])[0]
