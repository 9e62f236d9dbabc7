"""``tensor.register_hook`` inside forward: export drops it; here the hook becomes part of the program.

A hook sees the whole gradient of its tensor, whatever uses stand before or after it. So the call leaves one
node ``detente.hookN(x)`` in the graph, and afterwards every other use of ``x`` is made to read that node: an
identity whose backward is the hook.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from detente.bridge.capture.functions import Kept, _Slot
from detente.bridge.capture.markers import DERIVATIVE, is_marker
from detente.bridge.capture.where import code_place, here
from detente.bridge.private import kept_in_graphs, without_functions
from detente.bridge.refusal import refuse
from detente.bridge.threads import only_here

_numbers = itertools.count(1)


@dataclass
class _Handle:
    """What ``register_hook`` returns while a program is captured."""

    hook: Callable[..., Any]

    def remove(self) -> None:
        raise refuse("hook", "a hook is removed inside forward", code_place(self.hook))


def _identity(hook: Callable[..., Any]) -> Any:
    """An autograd.Function-like class: forward returns its input, backward is the hook."""

    class Hook:
        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """Nothing to save."""

        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            changed = hook(grad)
            if changed is None:
                raise refuse(
                    "hook", "a tensor hook returns None: it acts outside the program", code_place(hook)
                )
            return changed

    Hook.__name__ = f"hook {getattr(hook, '__name__', '?')}"
    return Hook


@contextmanager
def keep_hooks(kept: dict[str, Kept]) -> Iterator[set[Any]]:
    """Hooks registered inside join ``kept``; yields the operators whose nodes ``rewire`` must connect."""
    operators: set[Any] = set()
    plain = {name: getattr(torch.Tensor, name) for name in ("register_hook", "retain_grad")}

    def register_hook(self: torch.Tensor, hook: Callable[..., Any]) -> Any:
        name = f"detente::hook{next(_numbers)}"

        def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            raise NotImplementedError("a captured hook runs in the compiled program only")

        made = torch.library.custom_op(name, run, mutates_args=(), schema="(Tensor[] tensors) -> Tensor[]")
        made.register_fake(lambda tensors: [torch.empty_like(tensors[0])])
        overload = made._opoverload
        kept_in_graphs.add(overload)  # nobody uses the node yet: it must survive elimination
        operators.add(overload)
        if self.requires_grad:
            with without_functions():  # torch's method would come back here
                plain["register_hook"](self, hook)  # a derivative inside of the loss runs it on the tape, too
        call = Kept(_identity(hook), (_Slot,), (0,), name.replace("::", ".") + ".default")
        kept[call.op] = call
        made([self])
        return _Handle(hook)

    def refused(name: str) -> Callable[..., Any]:
        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            what = f"tensor.{name}() inside forward asks for a gradient that Python would see"
            raise refuse("hook", what, here())

        return method

    for name, ours in (("register_hook", register_hook), ("retain_grad", refused("retain_grad"))):
        setattr(torch.Tensor, name, only_here(ours, plain[name]))
    try:
        yield operators
    finally:
        for name, method in plain.items():
            setattr(torch.Tensor, name, method)
        for overload in operators:
            kept_in_graphs.discard(overload)


def rewire(module: torch.fx.GraphModule, operators: set[Any]) -> None:
    """Every use of a hooked value reads the hook's node instead. Several hooks on one value run in the order
    of registration, as in torch: the first stands nearest to the uses, the last nearest to the value."""
    if not operators:  # making the code of a graph again takes its time
        return
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _rewire(part, operators, part is module)


def _rewire(module: torch.fx.GraphModule, operators: set[Any], outermost: bool) -> None:
    graph = module.graph
    source: dict[torch.fx.Node, torch.fx.Node] = {}  # a hook's result -> the value it guards
    nearest: dict[torch.fx.Node, torch.fx.Node] = {}  # a value -> its last hook
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in operators:
            continue
        value = source.get(node.args[0][0], node.args[0][0])
        if value.op == "placeholder" and not outermost:
            raise refuse("hook", "a tensor from outside is hooked inside a no_grad or autocast region")
        if any(_writes(user, value) for user in value.users):
            raise refuse("hook", "a hooked tensor is written in place")
        anchor = value
        while anchor.op == "placeholder" and anchor.next.op in ("placeholder", "get_attr"):
            anchor = anchor.next
        anchor.append(node)
        with graph.inserting_after(node):
            result = graph.call_function(operator.getitem, (node, 0))
        result.meta = dict(value.meta)
        if value in nearest:
            nearest[value].args = ([result],)
        else:
            value.replace_all_uses_with(result)
        node.args = ([value],)
        source[result], nearest[value] = value, node
    # what a derivative is taken by stands before its hooks: they are part of the way back to it
    for node in graph.nodes:
        if is_marker(node, DERIVATIVE):
            if not outermost:
                raise refuse(
                    "hook", "a tensor is hooked, and a derivative is taken inside of no_grad or autocast"
                )
            outputs, inputs, *rest = node.args
            node.args = (outputs, [source.get(i, i) for i in inputs], *rest)
    graph.lint()
    module.recompile()


def _writes(user: torch.fx.Node, value: torch.fx.Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return False
    return any(
        a.alias_info is not None and a.alias_info.is_write and user.args[i : i + 1] == (value,)
        for i, a in enumerate(schema.arguments)
    )
