"""What torch.compile hands to Inductor and what Inductor writes, recorded while it compiles; and Inductor whose
programs do not run, for a plan. Private parts of torch, in one place (tested with torch 2.13; written for 2.9 on).
``self_test`` says which of them a new torch has moved.

Recorded are the graphs behind all of torch's own passes, of forward, backward and update, each node with the modules
that Dynamo was in, and the code with the nodes that each of its kernels holds (Inductor's provenance). Graphs that come
out of a cache pass nobody, so that caches are switched off; only a process that captures records.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from detente.programs.operators import SCHEMA
from detente.programs.scope import OPTIMIZER
from detente.stacks.inductor_calls import seconds_of_calls
from detente.stacks.protocol import Capture
from detente.stacks.torch_trace import channels_last, flops_of, tensors_in

# ``L['self'].module.transformer.h[0].ln_1``, ``L__self___module_...`` and the like: what is behind the module itself.
_INDEX = re.compile(r"\[['\"]?([^\]'\"]+)['\"]?\]")
_TANGENT = "tangents_"
# Where Inductor keeps, of the graph that it compiles, which nodes a kernel holds.
_KERNELS = "_inductor_triton_kernel_to_post_grad_node_info"
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class Code:
    """What Inductor wrote for the ``graph``-th graph. ``kernels``: kernel -> the names of the nodes that it holds."""

    text: str
    graph: int
    kernels: Mapping[str, Sequence[str]]


class Recorder:
    """The graphs and the code of a process, in the order in which they were compiled."""

    def __init__(self, module: Any) -> None:
        import torch

        # torch knows a module by what led to it from the function that was compiled; by its class and its end it is
        # found among the model's own.
        self.paths = {path for path, _ in module.named_modules()}
        self.graphs: list[list[dict[str, Any]]] = []
        self.names: list[dict[str, int]] = []  # of each graph: a node's name -> its place among the rows
        self.code: list[Code] = []
        self._updating = False
        torch._inductor.config.force_disable_caches = True
        torch._inductor.config.trace.provenance_tracking_level = 1
        torch._inductor.config.post_grad_custom_post_pass = _pass(self._graph)
        self._patch_code()

    @contextmanager
    def updating(self) -> Iterator[None]:
        """While it lasts, graphs are the optimizer's."""
        self._updating = True
        try:
            yield
        finally:
            self._updating = False

    def captures(self, step: Callable[[], Any], timed: bool) -> tuple[Capture, ...]:
        """The graphs of a step as one list of operators, the kernels that hold them, ``timed`` over some steps, and the
        code of each graph."""
        rows: list[dict[str, Any]] = []
        bases: list[int] = []
        for graph in self.graphs:
            base = len(rows)
            bases.append(base)
            rows += [{**r, "operands": [o if o < 0 else o + base for o in r["operands"]]} for r in graph]
        if not rows:
            return ()
        document = {"schema": SCHEMA, "name": "step", "operations": rows}
        seconds = seconds_of_calls(step, [code.text for code in self.code]) if timed else {}
        if seconds:
            document["kernels"] = [
                {
                    "name": f"{at}.{kernel}",
                    "operations": sorted(
                        bases[code.graph] + self.names[code.graph][n]
                        for n in code.kernels.get(kernel, ())
                        if n in self.names[code.graph]
                    ),
                    "seconds": spent,
                }
                for at, code in enumerate(self.code)
                for kernel, spent in seconds.get(at, {}).items()
            ]
        return (
            Capture("operators", "step", json.dumps(document).encode()),
            *(Capture("inductor", f"kernels-{k}", code.text.encode()) for k, code in enumerate(self.code)),
        )

    def _patch_code(self) -> None:
        from torch._inductor.graph import GraphLowering

        GraphLowering.save_output_code = staticmethod(self._written)  # type: ignore[method-assign]

    def _written(self, text: str) -> None:
        """The nodes of a kernel are known only as long as its graph is being compiled."""
        from torch._inductor import debug

        held = getattr(debug, _KERNELS, {})
        self.code.append(Code(text, len(self.graphs) - 1, {k: tuple(v) for k, v in held.items()}))

    def _graph(self, graph: Any) -> None:
        nodes = list(graph.nodes)
        backward = any(n.op == "placeholder" and str(n.target).startswith(_TANGENT) for n in nodes)
        kind = OPTIMIZER if self._updating else "backward" if backward else "forward"
        rows: list[dict[str, Any]] = []
        names: dict[str, int] = {}
        at: dict[Any, int] = {}
        for node in nodes:
            if node.op != "call_function":
                continue
            sources = [n for n in node.all_input_nodes]
            if _is_plumbing(node):
                at[node] = at.get(sources[0], -1) if sources else -1
                continue
            at[node] = names[node.name] = len(rows)
            rows.append(self._row(node, kind, sorted({at.get(n, -1) for n in sources})))
        self.graphs.append(rows)
        self.names.append(names)

    def _row(self, node: Any, direction: str, operands: list[int]) -> dict[str, Any]:
        from torch.fx import map_arg

        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        found = node.meta.get("val")
        made = list(tensors_in(found))
        return {
            "op": str(node.target),
            "results": [[str(t.dtype).removeprefix("torch."), _numbers(t.shape)] for t in made],
            "operands": operands,
            "path": self._path(node),
            "direction": direction,
            "flops": _flops(node.target, args, kwargs, found),
            "seconds": None,
            **({"channels_last": True} if any(map(channels_last, made)) else {}),
        }

    def _path(self, node: Any) -> str | None:
        stack = node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack")
        if not stack:
            # No module, but a line of the loss: the model's own.
            return "" if node.meta.get("stack_trace") else None
        for named, *_ in reversed(list(stack.values())):
            parts = [p for p in _INDEX.sub(r".\1", str(named)).split(".") if p]
            for k in range(len(parts)):
                if ".".join(parts[k:]) in self.paths:
                    return ".".join(parts[k:])
        return ""


def _pass(call: Any) -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Recorded(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            call(graph)

        def uuid(self) -> None:
            return None  # what holds a pass without a name of its own is not cached

    return Recorded()


def _is_plumbing(node: Any) -> bool:
    """What picks a result out of several, and views: no operation."""
    if getattr(node.target, "__name__", "") == "getitem":
        return True
    return bool(getattr(node.target, "is_view", False)) or not list(tensors_in(node.meta.get("val")))


def _numbers(shape: Any) -> list[int]:
    return [int(n) for n in shape]


def _flops(target: Any, args: Any, kwargs: Any, found: Any) -> int:
    if not hasattr(target, "_overloadpacket"):
        return 0
    return flops_of(target, args, kwargs, found)


@contextmanager
def compiled_and_not_run() -> Iterator[Callable[..., Any]]:
    """A backend of torch.compile that is Inductor, and whose graphs do not run: they give tensors of the shapes and
    strides that they would, which on fake tensors are nothing. No C++ is compiled; what Inductor keeps on disk is gone
    afterwards, so that nobody's first step is shorter for it."""
    import torch
    from torch._inductor import compile_fx
    from torch._inductor.async_compile import AsyncCompile

    def inner(graph: Any, inputs: Any, **how: Any) -> Any:
        (output,) = graph.graph.find_nodes(op="output")
        wanted = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in output.args[0]]
        compiled = compile_fx.compile_fx_inner(graph, inputs, **how)

        def run(given: list[Any]) -> list[Any]:
            given.clear()
            return [_like(w) for w in wanted]

        run._boxed_call = True  # type: ignore[attr-defined]
        run.held = compiled  # type: ignore[attr-defined]  as the row's process holds it
        return run

    def backend(graph: Any, inputs: Any, **_: Any) -> Any:
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    kept, folder = AsyncCompile.cpp_pybinding, os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory() as made:
        os.environ[_CACHE] = made
        AsyncCompile.cpp_pybinding = lambda *_, **__: _nothing  # type: ignore[method-assign]
        try:
            yield backend
        finally:
            AsyncCompile.cpp_pybinding = kept  # type: ignore[method-assign]
            if folder is None:
                del os.environ[_CACHE]
            else:
                os.environ[_CACHE] = folder


def _nothing(*_: Any) -> None:
    """In place of a kernel."""


def _like(wanted: Any) -> Any:
    import torch

    if not isinstance(wanted, torch.Tensor):
        return wanted
    return torch.empty_strided(wanted.shape, wanted.stride(), dtype=wanted.dtype, device=wanted.device)


def self_test() -> list[str]:
    """What is missing in this torch, by name; empty when everything is where it is expected."""
    from torch._inductor import compile_fx, config, debug
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.graph import GraphLowering

    missing = [
        f"torch._inductor.config.{name}"
        for name in ("post_grad_custom_post_pass", "force_disable_caches")
        if not hasattr(config, name)
    ]
    if not hasattr(config.trace, "provenance_tracking_level"):
        missing.append("torch._inductor.config.trace.provenance_tracking_level")
    if not hasattr(debug, _KERNELS):
        missing.append(f"torch._inductor.debug.{_KERNELS}")
    if not hasattr(GraphLowering, "save_output_code"):
        missing.append("torch._inductor.graph.GraphLowering.save_output_code")
    if not hasattr(compile_fx, "compile_fx_inner"):
        missing.append("torch._inductor.compile_fx.compile_fx_inner")
    if not hasattr(AsyncCompile, "cpp_pybinding"):
        missing.append("torch._inductor.async_compile.AsyncCompile.cpp_pybinding")
    if importlib.util.find_spec("torch._inductor.custom_graph_pass") is None:
        missing.append("torch._inductor.custom_graph_pass")
    return missing
