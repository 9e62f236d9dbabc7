"""``torch.autograd.Function``: export inlines its forward and loses its backward; here both are kept.

While a program is exported, ``Function.apply`` of the user's classes becomes one opaque operator whose shape
rule is the real forward. Afterwards forward and backward are traced together, with a plain object for
``ctx``, into one joint graph: inputs and output gradients in, outputs and input gradients out.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint

from detente.bridge.capture.draws import INSIDE, draws
from detente.bridge.capture.regions import checkpoint_region
from detente.bridge.capture.where import code_place
from detente.bridge.private import (
    FakeTensorMode,
    TorchDispatchMode,
    forward_has_context,
    hooks_at_node,
    pytree,
)
from detente.bridge.refusal import Reason, refuse

_numbers = itertools.count(1)  # operator names live as long as the process


class Context:
    """What ``ctx`` is while a Function is traced: save, read back, and any attribute the user sets."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.materialize_grads = True
        self.without_gradient: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Forward-mode only; the bridge differentiates by reverse mode."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.without_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value

    def mark_dirty(self, *tensors: Any) -> None:
        if tensors:
            raise _WritesInput

    def remember(self, inputs: Sequence[Any], outputs: Sequence[Any], known: Sequence[Any]) -> None:
        """What backward will read, as autograd's tape has it when a gradient is differentiated again: an output is
        the tensor outside (``known``), whose derivative is this Function's own; what else forward computed is a
        constant."""
        given = {id(o): k for o, k in zip(outputs, known, strict=True)}

        def of(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or any(value is t for t in inputs):
                return value
            return given[id(value)] if id(value) in given else value.detach()

        self.saved_tensors = tuple(of(t) for t in self.saved_tensors)
        for name, value in list(vars(self).items()):
            if isinstance(value, torch.Tensor):
                setattr(self, name, of(value))


class _WritesInput(Exception):
    """ctx.mark_dirty was called."""


@dataclass
class Kept:
    """One call of an autograd.Function: the class, its arguments, and what its forward returned (as
    structure)."""

    cls: Any
    args: tuple[Any, ...]
    at: tuple[int, ...]  # positions of the tensors in args
    op: str = ""
    single: bool = True
    static: dict[int, Any] = field(default_factory=dict)  # outputs that are no tensors
    detached: frozenset[int] = frozenset()  # outputs that are marked as not differentiable

    def place(self, tensors: Any) -> list[Any]:
        full = list(self.args)
        for position, tensor in zip(self.at, tensors, strict=True):
            full[position] = tensor
        return full

    def forward(self, tensors: Any) -> tuple[Context, list[torch.Tensor]]:
        """Run the user's forward; ctx and the output tensors."""
        # of every tensor: whether one needs its gradient is not known inside the exported program, and one too many
        # costs nothing (XLA drops it), while one too few is a gradient lost
        ctx = Context(tuple(position in self.at for position in range(len(self.args))))
        full = self.place(tensors)
        with torch.no_grad():
            if _uses_setup_context(self.cls):
                outputs = self.cls.forward(*full)
                self.cls.setup_context(ctx, tuple(full), outputs)
            else:
                outputs = self.cls.forward(ctx, *full)
        self.single = not isinstance(outputs, tuple)
        outputs = (outputs,) if self.single else outputs
        self.static = {i: o for i, o in enumerate(outputs) if not isinstance(o, torch.Tensor)}
        marked = ctx.without_gradient
        self.detached = frozenset(i for i, o in enumerate(outputs) if any(o is t for t in marked))
        # an output that is an input itself must not alias it: the operator is functional
        return ctx, [
            o.view_as(o) if any(o is t for t in tensors) else o
            for o in outputs
            if isinstance(o, torch.Tensor)
        ]

    def on_tape(self, saved: Any, grads: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The user's backward on fake tensors, for what a derivative inside of the loss is connected to. An output that
        was saved is linked with the inputs, as it is in torch."""
        tensors = list(saved.saved_tensors)
        ctx, outputs = self.forward(tensors)
        link = torch.zeros(())
        for tensor in (t for t in tensors if t.requires_grad):
            link = link + tensor.sum() * 0
        ctx.remember(
            tensors, outputs, [o + link.to(o.dtype) if o.is_floating_point() else o for o in outputs]
        )
        rest = iter(grads)
        total = len(outputs) + len(self.static)
        back = self.cls.backward(ctx, *[None if i in self.static else next(rest) for i in range(total)])
        back = back if isinstance(back, tuple) else (back,)
        return [back[i] for i in self.at]

    def joint(
        self, count: int, unused: frozenset[int] = frozenset()
    ) -> Callable[..., tuple[torch.Tensor, ...]]:
        """``f(*tensors, *outputs, *output_gradients) -> (*outputs, *input_gradients)``, ``count`` tensors going in.
        Nothing reads the tensors among the outputs that are ``unused``: where ctx asks for it, their gradients are
        None, as those of outputs that are marked as not differentiable."""

        def both(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            tensors, given = values[:count], values[count:]
            ctx, outputs = self.forward(tensors)
            ctx.remember(tensors, outputs, given[: len(outputs)])
            grads = iter(given[len(outputs) :])
            total = len(outputs) + len(self.static)
            cotangents = [None if i in self.static else next(grads) for i in range(total)]
            if not ctx.materialize_grads:
                tensors_at = [i for i in range(total) if i not in self.static]
                for i in (*self.detached, *(tensors_at[k] for k in unused)):
                    cotangents[i] = None
            with torch.no_grad():
                back = self.cls.backward(ctx, *cotangents)
            back = back if isinstance(back, tuple) else (back,)
            if len(back) < len(self.args):
                raise refuse(
                    "function",
                    f"{self.cls.__name__}.backward returns {len(back)} gradients for {len(self.args)} arguments",
                    code_place(self.cls.backward),
                )
            picked = [back[i] for i in self.at]
            zeros = [torch.zeros_like(t) if g is None else g for g, t in zip(picked, tensors, strict=True)]
            return (*outputs, *zeros)

        return both


def _uses_setup_context(cls: Any) -> bool:
    return not forward_has_context(cls)


@contextmanager
def keep_functions(regions: itertools.count[int]) -> Iterator[dict[str, Kept]]:
    """Calls of autograd.Function inside become operators; yields the table operator name -> ``Kept``."""
    kept: dict[str, Kept] = {}
    plain, mine = torch.autograd.Function.__dict__["apply"], threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != mine:  # a second model that trains meanwhile
            return plain.__get__(None, cls)(*args, **kwargs)
        if cls is torch.utils.checkpoint.CheckpointFunction:  # the reentrant form
            if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args[2:]):
                with torch.no_grad():  # as torch's own: nothing inside of it gets a gradient
                    return args[0](*args[2:])
            with checkpoint_region(next(regions)):  # run the body in a region
                return args[0](*args[2:])
        if cls.__module__.startswith("torch.") or not any(isinstance(a, torch.Tensor) for a in args):
            return plain.__get__(None, cls)(*args, **kwargs)
        return _as_operator(cls, args, kwargs, kept)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        torch.autograd.Function.apply = plain


def _as_operator(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kept: dict[str, Kept]) -> Any:
    place = code_place(cls.forward)
    nested = [a for a in args if not isinstance(a, torch.Tensor) and _hides_tensor(a)]
    if nested or kwargs:
        raise refuse(
            "function",
            f"{cls.__name__}.apply takes tensors inside {type(nested[0]).__name__}"
            if nested
            else f"{cls.__name__}.apply takes keyword arguments",
            place,
        )
    at = tuple(i for i, a in enumerate(args) if isinstance(a, torch.Tensor))
    call = Kept(cls, tuple(None if i in at else a for i, a in enumerate(args)), at)
    call.args = tuple(_Slot if i in at else a for i, a in enumerate(args))
    name = f"detente::function{next(_numbers)}"

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        raise NotImplementedError("a captured autograd.Function runs in the compiled program only")

    operator = torch.library.custom_op(name, run, mutates_args=(), schema="(Tensor[] tensors) -> Tensor[]")

    def shapes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        try:
            with _Drawing() as drawing:
                outputs = call.forward(tensors)[1]
            INSIDE[name.replace("::", ".")] = drawing.count
            return outputs
        except _WritesInput:
            raise refuse("function", f"{cls.__name__} writes its input (ctx.mark_dirty)", place) from None

    operator.register_fake(shapes)
    operator.register_autograd(call.on_tape, setup_context=_save)
    call.op = name.replace("::", ".") + ".default"
    kept[call.op] = call
    outputs = list(operator([args[i] for i in at]))
    total = len(outputs) + len(call.static)
    rest = iter(outputs)
    full = tuple(call.static[i] if i in call.static else next(rest) for i in range(total))
    full = tuple(o.detach() if i in call.detached else o for i, o in enumerate(full))
    return full[0] if call.single else full


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[0])


class _Drawing(TorchDispatchMode):
    """Counts the random calls of a forward, so that the calls after it keep their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += draws(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _Slot:
    """Stands in ``Kept.args`` where a tensor goes."""


def _hides_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def trace(
    call: Kept, inputs: list[Any], outputs: list[Any], unused: frozenset[int] = frozenset()
) -> torch.fx.GraphModule:
    """The joint graph, functional, on shapes alone; nothing reads the outputs ``unused``. Raises Refused
    (``function``) when it reads other tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    both = call.joint(len(inputs), unused)
    mode = FakeTensorMode()
    with mode:
        example = [
            torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in (*inputs, *outputs, *outputs)
        ]
    try:
        with mode, torch.fx.traceback.preserve_node_meta():
            return make_fx(
                torch.func.functionalize(both, remove="mutations_and_views"), record_stack_traces=True
            )(*example)
    except Exception as error:
        if type(error).__name__ == "Refused":
            raise
        raise refuse(
            "function",
            f"{call.cls.__name__} cannot be traced: {type(error).__name__}: {str(error).splitlines()[0][:300]}",
            code_place(call.cls.backward),
        ) from error


# Tables of hooks on the gradients of every module.
_OF_ALL_MODULES = ("_global_backward_hooks", "_global_backward_pre_hooks")


def unkept(module: torch.nn.Module, beside: Sequence[tuple[str, torch.nn.Module]] = ()) -> list[Reason]:
    """Hooks on parameters and modules, which would run on gradients that the program never shows to
    Python. ``beside``: modules that are no part of this one, by name (a criterion)."""
    found = []
    for name, parameter in module.named_parameters():
        tables = (getattr(parameter, t, None) for t in ("_backward_hooks", "_post_accumulate_grad_hooks"))
        for hook in (h for table in tables if table for h in table.values()):
            found.append(Reason("hook", f"parameter {name} has a gradient hook", code_place(hook)))
        for hook in hooks_at_node(parameter) if parameter.requires_grad else ():
            found.append(
                Reason("hook", f"the node of parameter {name}'s gradient has a hook", code_place(hook))
            )
    for name, part in (*module.named_modules(), *beside):
        for hook in (*part._backward_hooks.values(), *part._backward_pre_hooks.values()):
            found.append(Reason("hook", f"module {name or 'itself'} has a backward hook", code_place(hook)))
    for table in _OF_ALL_MODULES:
        for hook in vars(torch.nn.modules.module)[table].values():
            found.append(Reason("hook", "every module has a backward hook", code_place(hook)))
    return found
