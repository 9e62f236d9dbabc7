"""``torch.vmap`` inside of the loss: one node, ``detente.vmap``, of the captured program.

The function runs once, on one turn of what it maps over; what it did lies between two markers, and lowering maps that
part of the program with ``jax.vmap``. So derivatives inside of it, which torch's own vmap hides from the capture, are
nodes as everywhere. torch's own stays in charge where only integers are mapped over (the masks of ``transformers``):
there it leaves plain operators, which other passes read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from detente.bridge.capture.draws import draws
from detente.bridge.capture.markers import TURN, TURNS, capturing, marked, spread, unseen
from detente.bridge.capture.where import here
from detente.bridge.private import OpOverload, functorch_apis, functorch_vmap, older_vmap, pytree
from detente.bridge.refusal import refuse
from detente.bridge.threads import only_here

_groups = itertools.count(1)
_functorch: Any = functorch_vmap


@contextmanager
def keep_maps() -> Iterator[None]:
    """``torch.vmap``, and the older one behind ``is_grads_batched`` and ``vectorize``, map over floats by markers."""
    apis: Any = functorch_apis
    older: Any = older_vmap
    plain, plain_older = apis.vmap_impl, older._vmap

    def vmap(
        func: Any, in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if capturing() is None or not _over_floats(func, in_dims, args):
            return plain(func, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
        return mapped(func, in_dims, out_dims, randomness, args, kwargs)

    def vmap_older(
        func: Any, in_dims: Any = 0, out_dims: Any = 0, allow_none_pass_through: bool = False
    ) -> Any:
        def wrapped(*args: Any) -> Any:
            if capturing() is None:
                return plain_older(func, in_dims, out_dims, allow_none_pass_through)(*args)
            return mapped(func, in_dims, out_dims, "error", args, {}, allow_none_pass_through)

        return wrapped

    apis.vmap_impl, older._vmap = only_here(vmap, plain), only_here(vmap_older, plain_older)
    try:
        yield
    finally:
        apis.vmap_impl, older._vmap = plain, plain_older


def _over_floats(func: Any, in_dims: Any, args: tuple[Any, ...]) -> bool:
    _, dims, flat, _ = _functorch._process_batched_inputs(in_dims, args, func)
    return any(
        d is not None and (x.is_floating_point() or x.is_complex()) for d, x in zip(dims, flat, strict=True)
    )


def mapped(
    func: Callable[..., Any],
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    none_through: bool = False,
) -> Any:
    """What ``torch.vmap`` gives. Raises its errors; Refused where the turns would draw different numbers."""
    size, dims, flat, spec = _functorch._process_batched_inputs(in_dims, args, func)
    group, at = next(_groups), [i for i, d in enumerate(dims) if d is not None]
    xs, over = [flat[i] for i in at], [dims[i] for i in at]
    with unseen():
        turns = [x.select(d, 0) for x, d in zip(xs, over, strict=True)]
    for i, turn in zip(at, marked(TURN, turns, xs, over, group), strict=True):
        flat[i] = turn
    graph = capturing().tracer.graph
    before = len(graph.nodes)
    given = func(*pytree.tree_unflatten(flat, spec), **kwargs)
    _check_draws(itertools.islice(graph.nodes, before, None), randomness)
    leaves, out_spec = pytree.tree_flatten(given)
    places = _functorch._broadcast_to_and_flatten(out_dims, out_spec)
    if places is None:
        raise ValueError(f"vmap: out_dims {out_dims} does not fit the structure of the outputs, {out_spec}")
    kept = [i for i, leaf in enumerate(leaves) if not (none_through and leaf is None)]
    for i in kept:
        if not isinstance(leaves[i], torch.Tensor) or not isinstance(places[i], int):
            what = (
                f"torch.vmap of a function that returns {type(leaves[i]).__name__} for out_dims {places[i]}"
            )
            raise refuse("transform", what, here(), "return tensors, each with its dimension in out_dims")
    ys, to = [leaves[i] for i in kept], [places[i] % (leaves[i].ndim + 1) for i in kept]
    with unseen():
        values = [spread(y, size, d) for y, d in zip(ys, to, strict=True)]
    for i, value in zip(kept, marked(TURNS, values, ys, to, size, group), strict=True):
        leaves[i] = value
    return pytree.tree_unflatten(leaves, out_spec)


def _check_draws(nodes: Iterator[Any], randomness: str) -> None:
    """torch raises at a random call unless ``randomness`` says what it means; numbers of its own for every turn the
    program does not have."""
    for node in nodes:
        drawing = isinstance(node.target, OpOverload) and draws(node.target, node.args, node.kwargs)
        if drawing and randomness != "same":
            what = f"{node.target} inside of torch.vmap with randomness={randomness!r}"
            hint = "draw for all turns before vmap and map over what was drawn, or randomness='same'"
            raise refuse("transform", what, here(), hint)
