"""Interpret a neutral ``Graph`` with the table: the one place where a torch program becomes a JAX function.

Integers and doubles. The driver and everything it calls run with jax's x64 mode on (``precision.x64``), so
int64 stays int64 and float64 stays float64, as in torch; no value is narrowed silently. An entry must
therefore name its dtypes (``jnp.zeros(shape, jnp.float32)``, never ``jnp.zeros(shape)``), because JAX's
defaults are 64 bits wide here. Every output is checked against the node's ``Aval`` while tracing, so a wrong
promotion is an error at compile time that names operator and line, never a silent difference.

Regions. Nodes marked ``("checkpoint", n)`` become one ``jax.checkpoint``; a node marked ``("no_grad",)`` has
its outputs behind ``stop_gradient``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.graph import Aval, Graph, Node, Ref, avals, graphs_in, node_refs, refs
from detente.bridge.lower.channels_last import EACH, Last, each, met, plainly
from detente.bridge.lower.dtypes import NotForComplex
from detente.bridge.lower.faults import NO_FAULT, Sites
from detente.bridge.lower.sharing import Shared
from detente.bridge.lower.table import TABLE, USERS, Entry
from detente.bridge.random.keys import call_key
from detente.bridge.refusal import Reason, Refused


class LoweringError(RuntimeError):
    """An entry of the table returned something that is not what ATen returns: our bug, named with op and
    line."""


@cache
def load_table() -> None:
    """Import every file of ``lower/ops`` (each registers its entries) and the driver's own operators."""
    from detente.bridge.lower import ops

    for module in pkgutil.iter_modules(ops.__path__):
        importlib.import_module(f"{ops.__name__}.{module.name}")
    importlib.import_module("detente.bridge.lower.function")  # detente.function
    importlib.import_module("detente.bridge.lower.derivative")  # detente.derivative, detente.vmap


def every_node(graph: Graph) -> Iterable[Node]:
    """All nodes, those of sub-graphs (branches, bodies, custom functions) included."""
    for node in graph.nodes:
        yield node
        for sub in graphs_in((node.args, tuple(v for _, v in node.kwargs))):
            yield from every_node(sub)


def missing(graph: Graph) -> list[Reason]:
    """One reason per operator that the table lacks, at its first use, with shapes and how to register it."""
    load_table()
    known = avals(graph)
    found: dict[str, Reason] = {}
    for node in every_node(graph):
        if node.op in TABLE or node.op in found:
            continue
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for ref in node_refs(node) if (a := known.get(ref)))
        found[node.op] = Reason(
            "op",
            f"{node.op}({shapes}) -> {_show(node.out)} has no lowering",
            node.where,
            f"register one: detente.extend({node.op!r}, lambda call, *args, **kwargs: ...)",
        )
    return list(found.values())


@dataclass
class Trace:
    """What one trace of a graph carries: the step key, the fault sites, and the fault words met so far."""

    sites: Sites
    key: jax.Array | None = None
    offset: Any = 0
    words: list[jax.Array] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)  # how many words there were behind each node
    shared: Shared = field(default_factory=Shared)

    def inner(self, offset: Any = 0) -> Trace:
        """A trace of a sub-program: same key and sites, its own words."""
        return Trace(self.sites, self.key, self.offset + offset, shared=self.shared)

    def word(self) -> jax.Array:
        """The smallest site that faulted so far (0-d int32), ``NO_FAULT`` when none did."""
        return _smallest(self.words)

    def word_before(self, ids: Sequence[int]) -> jax.Array | None:
        """As ``word``, of what was run before these nodes were over; None where nothing of that can fault."""
        words = self.words[: max((self.reached.get(number, 0) for number in ids), default=0)]
        return _smallest(words) if words else None


def _smallest(words: Sequence[jax.Array]) -> jax.Array:
    word = jnp.int32(NO_FAULT)
    for other in words:
        word = jnp.minimum(word, other)
    return word


@dataclass
class NodeCall:
    """``table.Call`` for one node of one trace."""

    node: Node
    trace: Trace

    @property
    def out(self) -> Aval | tuple[Aval | None, ...] | None:
        return self.node.out

    def key(self, offset: int = 0) -> jax.Array:
        if self.trace.key is None or self.node.draw is None:
            raise LoweringError(
                f"{self.node.op} at {self.node.where} asks for a random key and has no draw ordinal"
            )
        return call_key(self.trace.key, self.node.draw + self.trace.offset + offset)

    def fault(self, condition: jax.Array, message: str) -> None:
        site = self.trace.sites.number(message, self.node.where)
        bad = jnp.any(lax.stop_gradient(condition))
        self.trace.words.append(jnp.where(bad, jnp.int32(site), jnp.int32(NO_FAULT)))

    def run(self, graph: Graph, *args: Any) -> tuple[Any, ...]:
        inner = self.trace.inner()
        outputs = evaluate(graph, _bind(graph, args), inner)
        self.trace.words.extend(inner.words)
        return outputs

    def function(self, graph: Graph) -> Callable[..., tuple[tuple[Any, ...], jax.Array]]:
        def body(*args: Any, draw_offset: Any = 0) -> tuple[tuple[Any, ...], jax.Array]:
            inner = self.trace.inner(draw_offset)
            outputs = evaluate(graph, _bind(graph, args), inner)
            return outputs, inner.word()

        return body

    def merge(self, word: jax.Array) -> None:
        self.trace.words.append(word)


def evaluate(graph: Graph, inputs: Mapping[int, Any], trace: Trace) -> tuple[Any, ...]:
    """The graph's outputs, in order (arrays, or the literals that the graph returns).

    ``inputs`` maps input id to array; constants that are not in it are taken from ``graph.constants``.
    """
    load_table()
    values: dict[Any, Any] = dict(inputs)
    for item in graph.inputs:
        if item.id not in values:
            values[item.id] = jnp.asarray(graph.constants[item.name])
    last = {ref.id for output in graph.outputs for ref in refs(output.value)}
    _run(graph.nodes, values, trace, last, depth=0)
    return tuple(plainly(_resolve(output.value, values)) for output in graph.outputs)


def _run(nodes: Sequence[Node], values: dict[Any, Any], trace: Trace, live: set[int], depth: int) -> None:
    """Run nodes in order into ``values``; consecutive nodes of one checkpoint region run as one.

    ``live`` are ids read after the last of these nodes; ``depth`` is how many regions we are inside of.
    """
    start = 0
    while start < len(nodes):
        region = _region(nodes[start], depth)
        stop = start + 1
        if region is None:
            _run_node(nodes[start], values, trace)
        else:
            while stop < len(nodes) and _region(nodes[stop], depth) == region:
                stop += 1
            after = live | {ref.id for node in nodes[stop:] for ref in node_refs(node)}
            _run_checkpoint(nodes[start:stop], values, trace, after, depth + 1)
        trace.reached.update((node.id, len(trace.words)) for node in nodes[start:stop])
        start = stop


def _run_checkpoint(
    nodes: Sequence[Node], values: dict[Any, Any], trace: Trace, after: set[int], depth: int
) -> None:
    made = {node.id for node in nodes}
    reads = sorted({ref.id for node in nodes for ref in node_refs(node)} - made)
    gives = sorted(made & after)

    def region(*args: Any) -> tuple[list[Any], jax.Array]:
        inner, inside = trace.inner(), dict(zip(reads, args, strict=True))
        _run(nodes, inside, inner, after, depth)
        return [inside[i] for i in gives], inner.word()

    outputs, word = jax.checkpoint(region)(*(values[i] for i in reads))
    values.update(zip(gives, outputs, strict=True))
    trace.words.append(word)


def _run_node(node: Node, values: dict[Any, Any], trace: Trace) -> None:
    entry = TABLE.get(node.op)
    if entry is None:
        raise Refused([Reason("op", f"{node.op} has no lowering", node.where)])
    args = _resolve(node.args, values)
    kwargs = {name: _resolve(value, values) for name, value in node.kwargs}
    call = NodeCall(node, trace)
    try:
        with jax.named_scope(node.scope or "root"):
            result = _lowered(entry, call, args, kwargs)
    except (Refused, LoweringError):
        raise
    except NotForComplex:
        what = f"{node.op} of complex numbers"
        hint = "compute it from x.real and x.imag, or register a lowering with detente.extend"
        raise Refused([Reason("op", what, node.where, hint)]) from None
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError):
        # Python decides by a number that the program computes (``pow(x, loss.item())``).
        what = f"{node.op} with a number that the program computes (.item()), where it needs Python's"
        hint = "give it a tensor where it takes one, or a Python number"
        raise Refused([Reason("op", what, node.where, hint)]) from None
    except Exception as error:
        raise LoweringError(
            f"the lowering of {node.op} failed: {type(error).__name__}: {error}\n    at {node.where}\n"
            f"    arguments: {_show_values((args, kwargs))}"
        ) from error
    result = _checked(node, result)
    if ("no_grad",) in node.marks:
        result = jax.tree.map(lax.stop_gradient, result)
    values[node.id] = result


def _lowered(entry: Entry, call: NodeCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The entry's result; values whose channels are last go to those that can take them."""
    if entry.aware or not met((*args, *kwargs.values())):
        return _called(entry, call, args, kwargs)
    if entry.op in EACH and entry.note != USERS:
        found = each(entry.lower, call, args, kwargs)
        if found is not None:
            return found
    return _called(entry, call, plainly(tuple(args)), {name: plainly(a) for name, a in kwargs.items()})


def _called(entry: Entry, call: NodeCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    lower = partial(entry.lower, call)
    return call.trace.shared(lower, call.node, args, kwargs) if entry.shared else lower(*args, **kwargs)


def _checked(node: Node, result: Any) -> Any:
    """The result, after comparing it with what ATen said: a wrong dtype must not travel on."""
    if node.out is None:
        return result
    many = isinstance(node.out, tuple)
    expected = node.out if isinstance(node.out, tuple) else (node.out,)
    got = tuple(result) if many else (result,)
    if len(got) != len(expected):
        raise LoweringError(f"{node.op} gives {len(got)} values, ATen {len(expected)}\n    at {node.where}")
    for index, (aval, value) in enumerate(zip(expected, got, strict=True)):
        if aval is None:
            continue
        shape, kind = _seen(value)
        if shape != aval.shape or kind != aval.dtype:
            has = "None" if shape is None else f"{kind}{list(shape)}"
            raise LoweringError(
                f"{node.op}: output {index} is {has}, ATen gives {aval.dtype}{list(aval.shape)}\n    at {node.where}"
            )
    return got if many else result


def _seen(value: Any) -> tuple[tuple[int, ...] | None, str]:
    """Shape, as torch has it, and the name of the dtype; None for what is not there."""
    if value is None:
        return None, ""
    shape = value.shape if isinstance(value, Last) else jnp.shape(value)
    return tuple(shape), jnp.result_type(value.array if isinstance(value, Last) else value).name


def _region(node: Node, depth: int) -> int | None:
    regions = [mark[1] for mark in node.marks if mark[0] == "checkpoint"]
    return regions[depth] if depth < len(regions) else None


def _bind(graph: Graph, args: Sequence[Any]) -> dict[int, Any]:
    """Positional values for the inputs that are not constants of the graph itself."""
    free = [item for item in graph.inputs if item.name not in graph.constants]
    if len(free) != len(args):
        raise LoweringError(f"a sub-graph of {len(free)} inputs was given {len(args)} values")
    return {item.id: value for item, value in zip(free, args, strict=True)}


def _resolve(value: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(value, Ref):
        found = values[value.id]
        return found if value.index is None else found[value.index]
    if isinstance(value, tuple | list):
        return type(value)(_resolve(item, values) for item in value)
    return value


def _show(out: Aval | tuple[Aval | None, ...] | None) -> str:
    if out is None:
        return "nothing"
    if isinstance(out, Aval):
        return f"{out.dtype}{list(out.shape)}"
    return "(" + ", ".join(_show(item) for item in out) + ")"


def _show_values(value: Any) -> str:
    shown = jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else x, value)
    return str(shown)[:600]
