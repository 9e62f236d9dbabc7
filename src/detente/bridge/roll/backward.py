"""The form "update inside the backward loop": no full gradient ever exists.

The backward pass walks a loop's stacked layers from the last to the first. For each it recomputes the layer from the
carries that went in, takes that layer's gradients by ``jax.vjp``, applies the optimizer at once and writes parameter
and state back into the stacked arrays in place. At any time the gradients of one layer are alive. This needs an
optimizer that treats each parameter by itself, and no clipping by the global norm: that norm is known only after the
last gradient, when the first updates are long done.

Outside the loops the program is cut into segments between them; each is differentiated as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.graph import Graph, Node, Output, Ref, node_refs, refs
from detente.bridge.lower.driver import Trace, evaluate
from detente.bridge.lower.dtypes import torchs_gradient
from detente.bridge.lower.faults import NO_FAULT
from detente.bridge.roll.fold import ROLL
from detente.bridge.roll.lower import stack_rows

Leaf = tuple[int, int | None]  # id of an input or node, index of its result
State = Mapping[str, Any]

# update(name, row, parameter, gradient, state) -> (parameter, state): the optimizer on one parameter. ``row`` is None,
# or the 0-d int32 index of a layer when parameter, gradient and state are one slice of the stack ``name``.
Update = Callable[[str, Any, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]


@dataclass(frozen=True)
class Updated:
    """``outputs`` as ``driver.evaluate`` gives them (loss, aux, buffers, before the update); ``params`` and ``state``
    by the program's names: only those that the loss depends on."""

    outputs: tuple[Any, ...]
    params: dict[str, jax.Array]
    state: dict[str, Any]


def loops_updated(graph: Graph) -> dict[int, tuple[str, ...]]:
    """Roll nodes (by id) that can update their parameters while they walk back, and the names of those stacks.
    Empty: this form is no other than the rolled one. ``graph`` comes from ``stacks.stacked``."""
    trainable = {i.id: i for i in graph.inputs if i.trainable}
    found = {}
    for node in graph.nodes:
        if node.op == ROLL and not any(m[0] in ("no_grad", "checkpoint") for m in node.marks):
            names = tuple(
                trainable[r.id].name for r in node.args[3] if isinstance(r, Ref) and r.id in trainable
            )
            if names:
                found[node.id] = names
    return found


def step(
    graph: Graph,
    values: Mapping[int, Any],
    state: State,
    update: Update,
    trace: Trace,
    between: Callable[[], None] = lambda: None,
) -> Updated:
    """One training step in this form. ``values`` maps input id to array (constants of the graph may be absent);
    ``state`` maps parameter name to optimizer state (a pytree, its leaves stacked like the parameter). ``between`` is
    called when the forward pass is traced, before anything is updated.

    JAX-traceable; meant for one ``jax.jit`` with parameters and state donated. Random numbers, buffers and fault
    word are those of the other forms.
    """
    back = _Backward(graph, dict(values), dict(state), update, trace)
    back.forward()
    between()
    return back.backward()


@dataclass
class _Backward:
    graph: Graph
    values: dict[int, Any]
    state: dict[str, Any]
    update: Update
    trace: Trace
    tape: list[Callable[[], None]] = field(
        default_factory=list
    )  # what the backward pass does, first segment first
    cotangents: dict[Leaf, jax.Array] = field(default_factory=dict)
    params: dict[str, jax.Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item in self.graph.inputs:
            if item.id not in self.values:
                self.values[item.id] = jnp.asarray(self.graph.constants[item.name])
        self.inputs = {i.id: i for i in self.graph.inputs}
        self.looped = loops_updated(self.graph)
        self.active = _active(self.graph)
        self.new_state: dict[str, Any] = {}

    # -- forward ----------------------------------------------------------------------------------------------

    def forward(self) -> None:
        run: list[Node] = []
        for position, node in enumerate(self.graph.nodes):
            if node.id in self.looped:
                self.segment(run, self.graph.nodes[position:])
                run = []
                self.loop(node)
            else:
                run.append(node)
        self.segment(run, ())

    def segment(self, nodes: Sequence[Node], later: Sequence[Node]) -> None:
        """Run straight nodes and remember how to go back through them."""
        if not nodes:
            return
        made = {n.id for n in nodes}
        wanted = {r.id for n in later for r in node_refs(n)}
        wanted |= {r.id for o in self.graph.outputs for r in refs(o.value)}
        gives = sorted(made & wanted)
        reads = sorted({r.id for n in nodes for r in node_refs(n)} - made)
        piece = Graph((), tuple(nodes), tuple(Output("aux", "", Ref(i)) for i in gives))
        moving = self.moving(reads)

        def run(moving: dict[Leaf, jax.Array]) -> tuple[Any, Any]:
            inner = self.trace.inner()
            outputs = evaluate(piece, _assemble(self.values, reads, moving), inner)
            flat = _flatten(dict(zip(gives, outputs, strict=True)))
            live = {k: v for k, v in flat.items() if self.is_active(k, v)}
            return live, ({k: v for k, v in flat.items() if k not in live}, inner.word())

        live, pull, (still, word) = jax.vjp(run, moving, has_aux=True)
        self.trace.words.append(word)
        self.values.update(_unflatten({**live, **still}, gives))

        def back() -> None:
            given = {k: self.cotangent(k, v) for k, v in live.items()}
            (pulled,) = pull(given)
            for leaf, value in pulled.items():
                self.accumulate(leaf, value)

        if live and moving:
            self.tape.append(back)

    def loop(self, node: Node) -> None:
        """Run a roll node, keeping what goes into each layer, and remember how to walk back through it."""
        body, count, carries, stacked, invariants = node.args
        draws = dict(node.kwargs).get("draws", 0)
        own = {r.id: self.inputs[r.id].name for r in stacked if isinstance(r, Ref) and r.id in self.inputs}
        own = {i: name for i, name in own.items() if name in self.looped[node.id]}
        row_inputs = body.inputs[len(carries) : len(carries) + len(stacked)]
        firsts = tuple(jnp.asarray(self.look(c)) for c in carries)
        rows = tuple(stack_rows(self.look(s), i) for s, i in zip(stacked, row_inputs, strict=True))
        shared = tuple(self.look(v) for v in invariants)
        parameters = {k: own[s.id] for k, s in enumerate(stacked) if isinstance(s, Ref) and s.id in own}
        steps = jnp.arange(count, dtype=jnp.int32)

        def layer(k: Any, carried: Any, own_rows: Any, given: Any) -> tuple[tuple[Any, ...], jax.Array]:
            inner = self.trace.inner(k * draws if draws else 0)
            args = (*carried, *own_rows, *given)
            outputs = evaluate(body, {i.id: a for i, a in zip(body.inputs, args, strict=True)}, inner)
            return outputs, inner.word()

        still_rows = tuple(None if k in parameters else r for k, r in enumerate(rows))
        own_stacks = {name: rows[k] for k, name in parameters.items()}

        def ahead(carry: Any, x: Any) -> tuple[Any, Any]:
            carried, word = carry
            k, still = x
            # The barrier ties the weights to this turn of the loop. Without it a compiler that widens bfloat16 for its
            # products moves the widening of the whole stack out of the loop, and holds every weight a second time.
            here, held = lax.optimization_barrier((k, own_stacks))
            mine = {n: lax.dynamic_index_in_dim(s, here, keepdims=False) for n, s in held.items()}
            own_rows = tuple(mine[parameters[j]] if j in parameters else r for j, r in enumerate(still))
            outputs, own_word = layer(k, carried, own_rows, shared)
            following = (outputs[: len(firsts)], jnp.minimum(word, own_word))
            return following, (carried, outputs[len(firsts) :])

        first = (firsts, jnp.int32(NO_FAULT))
        (last, word), (kept, ys) = lax.scan(ahead, first, (steps, still_rows), length=count)
        self.trace.words.append(word)
        results = (*last, *ys)
        self.values[node.id] = results

        moves_carry = [_is_float(c) for c in firsts]
        moves_row = [
            _is_float(r) and (k in parameters or self.reads_active(s))
            for k, (r, s) in enumerate(zip(rows, stacked, strict=True))
        ]
        moves_shared = [
            _is_float(v) and self.reads_active(s) for v, s in zip(shared, invariants, strict=True)
        ]
        moves_result = [_is_float(r) for r in results]

        def back() -> None:
            given = [
                self.cotangent((node.id, k), r) if moving else None
                for k, (r, moving) in enumerate(zip(results, moves_result, strict=True))
            ]
            d_last = _pick(given[: len(firsts)], moves_carry)
            d_ys = _pick(given[len(firsts) :], moves_result[len(firsts) :])
            stacks = own_stacks
            states = {name: self.state.get(name) for name in stacks}
            d_shared = tuple(jnp.zeros_like(v) for v in _pick(shared, moves_shared))

            def behind(carry: Any, x: Any) -> tuple[Any, Any]:
                d_carried, d_shared, stacks, states = carry
                k, carried, still, d_ys_row = x
                mine = {n: lax.dynamic_index_in_dim(s, k, keepdims=False) for n, s in stacks.items()}
                own_rows = tuple(mine[parameters[j]] if j in parameters else r for j, r in enumerate(still))

                def run(a: Any, b: Any, c: Any) -> Any:
                    outputs, _ = layer(
                        k,
                        _replace(carried, a, moves_carry),
                        _replace(own_rows, b, moves_row),
                        _replace(shared, c, moves_shared),
                    )
                    return _pick(outputs, moves_result)

                _, pull = jax.vjp(
                    run, _pick(carried, moves_carry), _pick(own_rows, moves_row), _pick(shared, moves_shared)
                )
                d_carried, d_rows, d_more = pull((*d_carried, *d_ys_row))
                d_shared = tuple(a + b for a, b in zip(d_shared, d_more, strict=True))
                by_row = dict(zip([j for j, moving in enumerate(moves_row) if moving], d_rows, strict=True))
                for j, name in parameters.items():
                    slice_state = jax.tree.map(
                        lambda s: lax.dynamic_index_in_dim(s, k, keepdims=False), states[name]
                    )
                    param, fresh = self.update_apart(
                        name, k, mine[name], torchs_gradient(by_row.pop(j)), slice_state
                    )
                    stacks = {**stacks, name: lax.dynamic_update_index_in_dim(stacks[name], param, k, 0)}
                    states = {
                        **states,
                        name: jax.tree.map(
                            lambda s, f: lax.dynamic_update_index_in_dim(s, f, k, 0), states[name], fresh
                        ),
                    }
                return (d_carried, d_shared, stacks, states), by_row

            (d_first, d_shared, stacks, states), d_rest = lax.scan(
                behind,
                (d_last, d_shared, stacks, states),
                (steps, kept, still_rows, d_ys),
                length=count,
                reverse=True,
            )
            self.params.update(stacks)
            self.new_state.update(states)
            for ref, value in zip(_pick(carries, moves_carry), d_first, strict=True):
                self.accumulate_at(ref, value)
            for ref, value in zip(_pick(invariants, moves_shared), d_shared, strict=True):
                self.accumulate_at(ref, value)
            for j, value in d_rest.items():
                if isinstance(stacked[j], tuple):
                    for k, ref in enumerate(stacked[j]):
                        self.accumulate_at(ref, value[k])
                else:
                    self.accumulate_at(stacked[j], value)

        self.tape.append(back)

    def update_apart(self, name: str, k: jax.Array, param: jax.Array, gradient: jax.Array, state: Any) -> Any:
        """``update`` of one layer's slices. On a CPU they are handed over as they are, and not as places in the stacks.

        XLA's CPU compiler puts the reading of a slice into the fusion that needs it, and the whole stack with it. A new
        parameter is made of moments that another fusion writes in place at the same time, so that both stacks were
        copied, whole, in every turn of the loop: AdamW's moments of GPT-2 of 24 layers planned 207 MB beside 48. A
        branch takes buffers of its own. It is taken in every turn, which the compiler does not see of a loop's counter;
        where a later one does, the copies are back and tests/bridge/roll/test_inside.py says so. Accelerators fuse as
        before.
        """

        def here(param: jax.Array, gradient: jax.Array, state: Any) -> Any:
            return self.update(name, k, param, gradient, state)

        def branched(param: jax.Array, gradient: jax.Array, state: Any) -> Any:
            return lax.cond(k >= 0, here, lambda p, _, s: (p, s), param, gradient, state)

        return lax.platform_dependent(param, gradient, state, cpu=branched, default=here)

    # -- backward ---------------------------------------------------------------------------------------------

    def backward(self) -> Updated:
        for output in self.graph.outputs:
            if output.kind == "loss" and isinstance(output.value, Ref):
                self.accumulate_at(output.value, jnp.ones_like(self.look(output.value)))
        for back in reversed(self.tape):
            back()
        for item in self.graph.inputs:
            gradient = self.cotangents.get((item.id, None))
            if not item.trainable or item.name in self.params or gradient is None:
                continue
            self.params[item.name], self.new_state[item.name] = self.update(
                item.name, None, self.values[item.id], torchs_gradient(gradient), self.state.get(item.name)
            )
        outputs = tuple(self.look(o.value) for o in self.graph.outputs)
        return Updated(outputs, self.params, self.new_state)

    # -- values and cotangents --------------------------------------------------------------------------------

    def look(self, value: Any) -> Any:
        if isinstance(value, Ref):
            found = self.values[value.id]
            return found if value.index is None else found[value.index]
        return tuple(self.look(v) for v in value) if isinstance(value, tuple) else value

    def moving(self, ids: Sequence[int]) -> dict[Leaf, jax.Array]:
        """The float leaves of these values that depend on a trainable parameter."""
        flat = _flatten({i: self.values[i] for i in ids})
        return {k: v for k, v in flat.items() if self.is_active(k, v)}

    def is_active(self, leaf: Leaf, value: Any) -> bool:
        return leaf[0] in self.active and _is_float(value)

    def reads_active(self, value: Any) -> bool:
        return any(r.id in self.active for r in refs(value))

    def cotangent(self, leaf: Leaf, value: jax.Array) -> jax.Array:
        found = self.cotangents.pop(leaf, None)
        return jnp.zeros_like(value) if found is None else found

    def accumulate(self, leaf: Leaf, value: jax.Array) -> None:
        known = self.cotangents.get(leaf)
        self.cotangents[leaf] = value if known is None else known + value

    def accumulate_at(self, ref: Any, value: jax.Array) -> None:
        if isinstance(ref, Ref) and ref.id in self.active:
            self.accumulate((ref.id, ref.index), value)


def _active(graph: Graph) -> set[int]:
    """Ids of values that depend on a trainable parameter."""
    active = {i.id for i in graph.inputs if i.trainable}
    for node in graph.nodes:
        if ("no_grad",) not in node.marks and any(r.id in active for r in node_refs(node)):
            active.add(node.id)
    return active


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.inexact))


def _flatten(values: Mapping[int, Any]) -> dict[Leaf, Any]:
    flat: dict[Leaf, Any] = {}
    for number, value in values.items():
        if isinstance(value, tuple | list):
            flat.update({(number, k): v for k, v in enumerate(value) if v is not None})
        else:
            flat[number, None] = value
    return flat


def _unflatten(flat: Mapping[Leaf, Any], ids: Sequence[int]) -> dict[int, Any]:
    whole: dict[int, Any] = {}
    for number in ids:
        if (number, None) in flat:
            whole[number] = flat[number, None]
        else:
            parts = {k: v for (i, k), v in flat.items() if i == number and k is not None}
            whole[number] = tuple(parts.get(k) for k in range(1 + max(parts)))
    return whole


def _assemble(values: Mapping[int, Any], ids: Sequence[int], moving: Mapping[Leaf, Any]) -> dict[int, Any]:
    return _unflatten({**_flatten({i: values[i] for i in ids}), **moving}, ids)


def _pick(values: Sequence[Any], chosen: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(v for v, c in zip(values, chosen, strict=True) if c)


def _replace(values: Sequence[Any], moving: Sequence[Any], chosen: Sequence[bool]) -> tuple[Any, ...]:
    fresh = iter(moving)
    return tuple(next(fresh) if c else v for v, c in zip(values, chosen, strict=True))
