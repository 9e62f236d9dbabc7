"""Regions that export drops: ``torch.utils.checkpoint``, ``no_grad`` and ``autocast`` bodies, kept as node
metadata.

Everything here leans on private parts of torch (tested with 2.13, written for 2.9 on): ``torch.fx.traceback.annotate``,
the two wrap operators and the generator inside ``torch.utils.checkpoint``. ``tests/bridge/capture`` is the
self-test.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx.proxy
import torch.fx.traceback
import torch.utils.checkpoint

from detente.bridge.capture.where import foreign
from detente.bridge.private import checkpoint_operators as wrap
from detente.bridge.threads import only_here

REGION = "detente_checkpoint"  # key in node.meta["custom"]: region numbers, outermost first

_open: ContextVar[tuple[int, ...]] = ContextVar("open checkpoint regions", default=())


@contextmanager
def checkpoint_region(number: int) -> Iterator[None]:
    """Everything traced inside belongs to checkpoint region ``number`` (and to the regions around it)."""
    inside = (*_open.get(), number)
    token = _open.set(inside)
    try:
        with getattr(torch.fx.traceback, "annotate", _noted)({REGION: inside}):
            yield
    finally:
        _open.reset(token)


@contextmanager
def _noted(notes: dict[str, Any]) -> Iterator[None]:
    """``annotate`` for torch 2.9, which copies these notes from node to node and has no function that makes them."""
    marks: Any = torch.fx.traceback
    before = marks.current_meta.get("custom")
    marks.current_meta["custom"] = {**(before or {}), **notes}
    try:
        yield
    finally:
        marks.current_meta["custom"] = before or {}


def _bare_outputs(create: Any) -> Any:
    """torch 2.9 asserts that the node of a program's outputs carries no notes, and makes them itself."""

    def create_node(self: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
        node = create(self, kind, *args, **kwargs)
        if kind == "output":
            node.meta.clear()
        return node

    return create_node


@contextmanager
def keep_checkpoints() -> Iterator[itertools.count[int]]:
    """Both forms of ``torch.utils.checkpoint`` only mark what they run; yields the counter of region numbers.

    The names inside the module are replaced, not ``checkpoint`` itself, which users import by name.
    """
    module: Any = torch.utils.checkpoint
    numbers = itertools.count(1)

    def generator(fn: Any, preserve: Any = True, *rest: Any, **kwargs: Any) -> Iterator[None]:
        with checkpoint_region(next(numbers)):
            yield

    plain = module._checkpoint_without_reentrant_generator
    module._checkpoint_without_reentrant_generator = only_here(generator, plain)
    try:
        yield numbers
    finally:
        module._checkpoint_without_reentrant_generator = plain


@contextmanager
def keep_metadata() -> Iterator[None]:
    """The bodies of no_grad and autocast regions run node by node while they are inlined, so that every node
    of the decomposed program still knows its line, module and marks (plain inlining runs generated code and
    forgets).
    A node's stack trace becomes the innermost frame that is the user's; torch keeps frames named ``forward`` alone."""
    kinds = (wrap.WrapWithSetGradEnabled, wrap.WrapWithAutocast)
    plain = [kind.__call__ for kind in kinds]

    def watched(call: Any, body_at: int) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            body = args[body_at]
            if isinstance(body, torch.fx.GraphModule):
                interpreted = torch.fx.Interpreter(body).run
                args = (*args[:body_at], interpreted, *args[body_at + 1 :])
            return call(self, *args, **kwargs)

        return run

    def user_frames(self: Any, summary: Any) -> Any:
        own = [frame for frame in summary if foreign(frame.filename)]
        return traceback.StackSummary.from_list(own[-1:])

    def annotate(notes: dict[str, Any]) -> Any:
        # torch notes its own disabled functions, differently inside and outside of a branch of torch.cond, and then
        # stumbles over the difference
        return nullcontext() if "_torchdynamo_disable" in notes else noting(notes)

    marks: Any = torch.fx.traceback
    noting: Any = getattr(marks, "annotate", None)  # not there in torch 2.9
    if noting is not None:
        annotate.__wrapped__ = noting.__wrapped__  # type: ignore[attr-defined]  (torch's own rules look for it)
        marks.annotate = annotate
    tracer: Any = torch.fx.proxy.TracerBase
    frames = tracer._filter_traceback_frames
    tracer._filter_traceback_frames = only_here(user_frames, frames)
    create = tracer.create_node
    if noting is None:
        tracer.create_node = only_here(_bare_outputs(create), create)
    wrap.WrapWithSetGradEnabled.__call__ = only_here(watched(plain[0], 1), plain[0])
    wrap.WrapWithAutocast.__call__ = only_here(watched(plain[1], 4), plain[1])
    try:
        with torch.fx.traceback.preserve_node_meta():
            yield
    finally:
        tracer._filter_traceback_frames = frames
        tracer.create_node = create
        if noting is not None:
            marks.annotate = noting
        for kind, call in zip(kinds, plain, strict=True):
            kind.__call__ = call
