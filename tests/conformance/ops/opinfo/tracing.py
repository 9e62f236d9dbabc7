"""A torch function and its inputs as a neutral graph, at the level that the bridge lowers ({}-decomposed).

It is deliberately apart from ``bridge.capture``: these tests judge the table alone.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.fx import GraphModule

from detente.bridge.capture.ctc import keep_ctc
from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy as numpy, bfloat16 included."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


class _Holder(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def _aval(value: Any) -> Aval | None:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return Aval(tuple(int(n) for n in value.shape), str(value.dtype).removeprefix("torch."))
    kinds = {bool: "bool", int: "int64", float: "float64", torch.SymFloat: "float64", torch.SymBool: "bool"}
    return Aval((), kinds.get(type(value), "int64"))


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return str(target)


def graph_of(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Graph:
    """``function(*tensors)`` exported without strictness and functionalised with composites intact."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The flattened list: a tensor that comes twice must stay two inputs, so none is aliased.
        with keep_ctc():  # torch cannot trace ctc_loss; everything else is torch's own export
            exported = torch.export.export(_Holder(function), tuple(tensors), strict=False)
            exported = exported.run_decompositions({})
    values: dict[Any, Any] = {}
    inputs: list[Input] = []
    constants: dict[str, Any] = {}
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    user = 0
    for node, spec in zip(placeholders, exported.graph_signature.input_specs, strict=True):
        number = len(values)
        if spec.kind.name == "USER_INPUT":
            inputs.append(Input(number, "batch", str(user), _aval(node.meta["val"])))
            user += 1
        else:
            inputs.append(Input(number, "constant", spec.target, _aval(node.meta["val"])))
            held = exported.constants.get(spec.target, exported.state_dict.get(spec.target))
            constants[spec.target] = to_numpy(held)
        values[node] = Ref(number)
    nodes: list[Node] = []
    count = [len(values)]
    _body(exported.graph_module, values, nodes, count)
    given = next(n for n in exported.graph.nodes if n.op == "output").args[0]
    outputs = []
    for value, spec in zip(given, exported.graph_signature.output_specs, strict=True):
        if spec.kind.name == "USER_OUTPUT":
            outputs.append(Output("aux", str(len(outputs)), _literal(value, values, None)))
    return Graph(tuple(inputs), tuple(nodes), tuple(outputs), constants)


def _body(module: GraphModule, values: dict[Any, Any], nodes: list[Node], count: list[int]) -> None:
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            whole = values[node.args[0]]
            values[node] = Ref(whole.id, node.args[1])
            continue
        value = node.meta.get("val")
        out = tuple(_aval(v) for v in value) if isinstance(value, list | tuple) else _aval(value)
        args = tuple(_literal(a, values, module) for a in node.args)
        kwargs = tuple((k, _literal(v, values, module)) for k, v in node.kwargs.items())
        nodes.append(Node(count[0], _name(node.target), args, kwargs, out, draw=len(nodes)))
        values[node] = Ref(count[0])
        count[0] += 1


def _literal(value: Any, values: dict[Any, Any], module: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        if value.op == "get_attr" and isinstance(getattr(module, str(value.target), None), GraphModule):
            return _subgraph(getattr(module, str(value.target)))
        return values[value]
    if isinstance(value, list | tuple):
        return tuple(_literal(v, values, module) for v in value)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return value.type
    return value


def _subgraph(module: GraphModule) -> Graph:
    values: dict[Any, Any] = {}
    inputs = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = Ref(len(values))
            inputs.append(Input(values[node].id, "batch", node.name, _aval(node.meta["val"])))
    nodes: list[Node] = []
    _body(module, values, nodes, [len(values)])
    given = next(n for n in module.graph.nodes if n.op == "output").args[0]
    given = given if isinstance(given, list | tuple) else (given,)
    outputs = tuple(Output("aux", str(i), _literal(v, values, module)) for i, v in enumerate(given))
    return Graph(tuple(inputs), tuple(nodes), outputs)
