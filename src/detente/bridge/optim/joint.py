"""One trace of a whole ``optimizer.step()``: every parameter and group, and everything that the optimizer reaches.

For optimizers whose parameters see each other (a norm over all of them, a step size from all gradients), that keep
lists, dictionaries and objects as state, write attributes, or wrap another optimizer. tracer.py makes one small rule
per shape; this makes one graph for all.

Numbers stay on the host: each float, and each count that the step writes, is an input of the program, so that an ``if``
on a count is a guard and ``group["d"]`` can be read at any time. What stands at a place after the step is one of: a
tensor of the graph; a number that follows from numbers (Python computes it before the step runs); a number that follows
from a tensor (read from the program when it has run); the same as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from detente.bridge.graph import Graph, Input, Output, Ref
from detente.bridge.optim.accept import step_of
from detente.bridge.optim.lifting import Factories, lifted_builtins
from detente.bridge.optim.number import is_number, number_of
from detente.bridge.optim.program import Guard, Path, live
from detente.bridge.optim.reach import Place, Table, double, in_state, spots
from detente.bridge.optim.reasons import BRANCHES
from detente.bridge.optim.recording import Recording, aval_of
from detente.bridge.refusal import Refused, refuse

MAX_PATHS = 32
VECTORS = {
    "aten._linalg_eigh.default": (1,),
    "aten._linalg_svd.default": (0, 2),
    "aten.linalg_svd.default": (0, 2),
}
VIEWS = {"aten._to_copy.default", "aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.clone.default",
         "aten.flip.default", "aten.slice.Tensor", "aten.slice_copy.Tensor", "aten.t_copy.default", "aten.copy.default",
         "aten.transpose_copy.int", "aten.mT.default"}  # fmt: skip


@dataclass(frozen=True)
class Joint:
    """``paths`` are graphs from ``param:NAME``, ``grad:NAME``, ``at:KEY`` (tensors by place) and ``hyper:KEY`` to
    ``param:NAME`` for each of ``names`` and ``KEY`` for each of ``kept``, with the tests at the end. ``due`` gives the
    numbers after the step that follow from those before; ``drawn`` are the places whose number the program computes."""

    names: tuple[str, ...]
    before: Table
    after: Table
    numbers: dict[str, Place]  # hyper input -> place
    counts: frozenset[Place]  # ints that are inputs
    kept: tuple[Place, ...]  # what the program gives back besides parameters
    taken: tuple[Place, ...]  # tensors that it takes
    due: dict[Place, Callable[[Mapping[str, float]], Any]]
    drawn: tuple[Place, ...]
    paths: tuple[Path, ...]
    guards: tuple[Guard, ...] = field(default=(), compare=False)

    @property
    def steady(self) -> bool:
        """Whether the next step is the same program."""
        return self.before.at == self.after.at


class Counted(Exception):
    """The step writes these ints, which were taken for constants."""

    def __init__(self, places: set[Place]) -> None:
        super().__init__(f"{len(places)} counts")
        self.places = places


def key_of(place: Place) -> str:
    """A name for a place: the path itself within a parameter's state, ``#`` and the path elsewhere.

    >>> key_of((("attr", "state"), ("param", "w"), ("item", "GG"), ("item", 0)))
    'GG/0'
    >>> key_of((("attr", "rho"),))
    '#rho'
    """
    if place[0] == ("attr", "state") and len(place) > 2 and place[1][0] == "param":
        return "/".join(str(key) for _, key in place[2:])
    return "#" + "/".join(str(key) for _, key in place)


def trace_joint(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Joint:
    """The next step of this optimizer as one graph. ``names`` are the parameters' by identity. Raises Refused."""
    counts: frozenset[Place] = frozenset()
    while True:
        try:
            return _traced(optimizer, names, counts)
        except Counted as more:
            counts |= more.places


def _traced(optimizer: torch.optim.Optimizer, names: Mapping[int, str], counts: frozenset[Place]) -> Joint:
    before = spots(optimizer, names)
    _own_memory(before, type(optimizer).__name__)
    numbers = {
        key_of(place) if not in_state(place) else "/".join(f"{key}" for _, key in place): place
        for place in before.of("float", "scalar", "int")
        if before.at[place].kind != "int" or place in counts
    }
    pending: list[tuple[bool, ...]] = [()]
    runs: list[_Run] = []
    while pending:
        forced = pending.pop()
        run = _Run(optimizer, names, before, numbers, forced)
        run.trace()
        if runs and run.after.at != runs[0].after.at:
            raise refuse(
                "optimizer",
                f"{run.name} keeps a different state on different branches of step()",
                step_of(optimizer),
                hint=BRANCHES,
            )
        runs.append(run)
        outcomes = tuple(outcome for _, outcome in run.decisions)
        pending += [(*outcomes[:i], False) for i in range(len(forced), len(outcomes))]
        if len(runs) + len(pending) > MAX_PATHS:
            raise refuse(
                "optimizer",
                f"{run.name} branches on run-time values in more than {MAX_PATHS} ways",
                step_of(optimizer),
                hint=BRANCHES,
            )
    return _joined(runs, numbers, counts)


def _joined(runs: list[_Run], numbers: dict[str, Place], counts: frozenset[Place]) -> Joint:
    """One record of all paths. A number that two of them compute differently is the program's."""
    first = runs[0]
    due: dict[Place, Any] = {}
    for run in runs:
        due.update({place: now for place, (_, now) in run.written.items() if place not in due})
    written = tuple(due)
    drawn = [
        place
        for place in written
        if due[place] is None or any(_formula(run, place) != _formula(first, place) for run in runs)
    ]
    taken = tuple(first.before.of("tensor"))
    kept = tuple(dict.fromkeys([*first.after.of("tensor"), *written]))
    paths = []
    for run in runs:
        outputs = [Output("buffer", f"param:{name}", ref) for name, ref in run.results.items()]
        outputs += [Output("buffer", key_of(place), run.value(place)) for place in kept]
        outputs += [Output("aux", f"test{i}", ref) for i, (ref, _) in enumerate(run.decisions)]
        graph = live(Graph(tuple(run.inputs), tuple(run.nodes), tuple(outputs)))
        trained = {f"param:{name}" for name in first.results}
        frozen = [i.name for i in graph.inputs if i.kind == "parameter" and i.name not in trained]
        if frozen:
            raise refuse("optimizer", f"{first.name}.step() reads {frozen[0][6:]}, which is frozen")
        paths.append(Path(tuple(outcome for _, outcome in run.decisions), graph))
    guards = tuple(guard for run in runs for guard in run.guards)
    return Joint(
        tuple(first.results),
        first.before,
        first.after,
        numbers,
        counts,
        kept,
        taken,
        {p: now for p, now in due.items() if p not in drawn},
        tuple(drawn),
        tuple(paths),
        guards,
    )


def _formula(run: _Run, place: Place) -> Any:
    """What a path computes for a number, as nested operations on inputs."""
    made = {node.id: node for node in run.nodes}
    names = {item.id: item.name for item in run.inputs}

    def of(value: Any) -> Any:
        if isinstance(value, Ref):
            node = made.get(value.id)
            return names[value.id] if node is None else (node.op, value.index, *map(of, node.args))
        return value

    return of(run.value(place))


def _own_memory(table: Table, name: str) -> None:
    """Two tensors of one memory would be two in the program. Raises Refused."""
    held = [(place, table.at[place], table.values[place]) for place in table.of("tensor", "scalar", "param")]
    params = {spot.detail: (place, tensor) for place, spot, tensor in held if spot.kind == "param"}
    mine = [(place, tensor) for place, spot, tensor in held if spot.kind != "param"]
    _disjoint(name, [(_said(p), t) for p, t in (*params.values(), *mine) if not t.is_meta])


def _disjoint(name: str, tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Raises Refused where two tensors share elements; rows of one stack do not."""
    known: dict[int, list[tuple[int, int, str]]] = {}
    for said, tensor in tensors:
        if not tensor.numel():
            continue
        first = tensor.storage_offset()
        last = first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        others = known.setdefault(tensor.untyped_storage()._cdata, [])
        for begin, end, other in others:
            if first <= end and begin <= last:
                raise refuse("optimizer", f"{name} keeps two tensors in one memory: {other} and {said}")
        others.append((first, last, said))


def _said(place: Place) -> str:
    return ".".join(str(key) for _, key in place)


class _Run(Recording):
    """One trace along one path."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[int, str],
        before: Table,
        numbers: dict[str, Place],
        forced: tuple[bool, ...],
    ) -> None:
        values = {key: float(before.values[place]) for key, place in numbers.items()}
        super().__init__(optimizer, values, forced)
        self.ids, self.before, self.places = names, before, numbers
        self.results: dict[str, Ref] = {}
        self.written: dict[Place, tuple[Any, Callable[[Mapping[str, float]], Any] | None]] = {}
        self.tensors: dict[Place, Any] = {}
        self.after: Table

    def trace(self) -> None:
        inputs: dict[str, Any] = {}
        key_at = {place: key for key, place in self.places.items()}
        params = {id(v): v for p, v in self.before.values.items() if self.before.at[p].kind == "param"}
        keys = self._keys_alone(params)
        for param in (params := params | keys).values():
            name = self.ids[id(param)]
            inputs[f"param:{name}"] = self._input("parameter", f"param:{name}", aval_of(param))
            if param.requires_grad and id(param) not in keys:
                inputs[f"grad:{name}"] = self._input("batch", f"grad:{name}", aval_of(param))
        for place in self.before.of("tensor"):
            key = f"at:{'/'.join(str(k) for _, k in place)}"
            inputs[key] = self._input("buffer", key, self.before.at[place].detail)
        symbols = {key: self._hyper(key) for key in self.places}
        box: dict[str, Any] = {}
        factories = Factories(self.name, self._where)

        def body(*flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = dict(zip(inputs, flat, strict=True))
            stand: dict[int, str] = {}

            def leaf(place: Place, value: Any) -> Any:
                if id(value) in self.ids:
                    name = self.ids[id(value)]
                    new = given[f"param:{name}"]
                    if id(new) not in stand:
                        new.grad = given.get(f"grad:{name}")
                        if new.grad is not None:
                            factories.trained.add(id(new))
                    stand[id(new)] = name
                    return new
                if place in key_at:
                    number = symbols[key_at[place]]
                    if isinstance(value, torch.Tensor):
                        return torch.full(value.shape, number, dtype=value.dtype, device="meta")
                    return number
                if isinstance(value, torch.Tensor):
                    return given[f"at:{'/'.join(str(k) for _, k in place)}"]
                return value

            clone = double(self.optimizer, self.ids, leaf)
            kept = list(stand)  # ids of what stays alive in ``given``
            assert len(kept) == len(params)
            type(self.optimizer).step(clone)
            self.after = spots(clone, stand, self._plain_key)
            box["names"] = [self.ids[i] for i in params]
            places = list(self.after.of("tensor", "scalar"))
            box["places"] = places
            self._apart(given, places)
            return (
                *(given[f"param:{name}"] for name in box["names"]),
                *(self.after.values[place] for place in places),
            )

        try:
            with torch.no_grad(), lifted_builtins(self.optimizer), self, factories:
                results = torch.func.functionalize(body)(*inputs.values())
        except (Refused, Counted):
            raise
        except Exception as error:
            raise self.failed(error) from error
        self._finish(results, box, key_at)

    def _keys_alone(self, params: Mapping[int, Any]) -> dict[int, Any]:
        """Parameters that have left their group and kept their state, by identity: keys of tables, and no more."""
        tables = [self.before.values[place] for place in self.before.of("dict")]
        keys = [key for table in tables for key in dict.keys(table)]
        return {id(key): key for key in keys if id(key) in self.ids and id(key) not in params}

    def _plain_key(self, key: Any) -> Any:
        """A key that was a number when it was put there: hashing it has fixed its value."""
        return self.fix(key.node) if is_number(key) else key

    def _apart(self, given: Mapping[str, torch.Tensor], places: list[Place]) -> None:
        """Tensors that share memory after the step would be two from the next one on. Raises Refused."""
        named = [(name, tensor) for name, tensor in given.items() if name.startswith("param:")]
        _disjoint(self.name, [*named, *((_said(place), self.after.values[place]) for place in places)])

    def _finish(
        self, results: tuple[torch.Tensor, ...], box: dict[str, Any], key_at: Mapping[Place, str]
    ) -> None:
        count = len(box["names"])
        self._unique(results[count:], box["places"])
        own = {item.name: Ref(item.id) for item in self.inputs}
        for name, tensor in zip(box["names"], results[:count], strict=True):
            if f"grad:{name}" in own:
                self.results[name] = self._ref(tensor)
            elif self._ref(tensor) != own[f"param:{name}"]:
                raise refuse("optimizer", f"{self.name}.step() changes {name}, which is frozen")
        for place, tensor in zip(box["places"], results[count:], strict=True):
            self.tensors[place] = self._ref(tensor)
        by_name = {item.name: item for item in self.inputs}
        fresh: set[Place] = set()
        for place, spot in list(self.after.at.items()):
            value: Any = self.after.values.get(place)
            if spot.kind == "scalar":
                number = by_name.get(f"hyper.{key_at[place]}") if place in key_at else None
                if number is None or not self._is_fill(self.tensors[place], number):
                    self.written[place] = (self.tensors[place], None)
            elif spot.kind in ("int", "float"):
                old = self.before.at.get(place)
                number = number_of(value)
                if old is not None and old.kind == "int" and place not in key_at:
                    if number is not None or int(value) != int(self.before.values[place]):
                        fresh.add(place)
                    self.after.at[place] = old
                    continue
                if number is not None:
                    unchanged = place in key_at and number.value == Ref(by_name[f"hyper.{key_at[place]}"].id)
                    if unchanged:
                        self.after.at[place] = old or spot
                        continue
                    whole = old is not None and old.kind == "int"
                    # None, which a number may have been before, is no number's spot
                    self.after.at[place] = spot if old is None or old.kind == "plain" else old
                    self.written[place] = (number.value, _whole(number.now) if whole else number.now)
                elif (
                    old is None
                    or old.kind != spot.kind
                    or value != self.before.values[place]
                    or place in key_at
                ):
                    self.written[place] = (float(value), lambda _, fixed=value: fixed)
                    if old is not None and old.kind in ("int", "float"):
                        self.after.at[place] = old
        if fresh:
            raise Counted(fresh)

    def _unique(self, tensors: Any, places: list[Place]) -> None:
        """Raises Refused where the state keeps eigenvectors: they are known up to their signs, and those of one value
        not at all, so that another library's are others, and what follows from them is another training."""
        made = {node.id: node for node in self.nodes}
        for place, tensor in zip(places, tensors, strict=True):
            ref = self._ref(tensor)
            while (node := made.get(ref.id)) is not None and node.op in VIEWS:
                ref = node.args[0]
            if node is not None and ref.index in VECTORS.get(node.op, ()):
                raise refuse(
                    "optimizer",
                    f"{self.name} keeps eigenvectors or singular vectors ({_said(place)}), of which there are many: "
                    "what it makes of those of another library is another training",
                    node.where,
                    hint="take an optimizer that uses the matrix function alone (Shampoo), or give it the option that "
                    "computes none",
                )

    def _is_fill(self, ref: Any, item: Input) -> bool:
        node = next((node for node in self.nodes if Ref(node.id) == ref), None)
        return node is not None and node.op.endswith("aten.full.default") and Ref(item.id) in node.args

    def value(self, place: Place) -> Any:
        """What the graph gives for this place."""
        if place in self.tensors:
            return self.tensors[place]
        if place in self.written:
            return self.written[place][0]
        # another path writes it
        key = next(key for key, at in self.places.items() if at == place)
        return Ref(next(item.id for item in self.inputs if item.name == f"hyper.{key}"))


def _whole(now: Callable[[Mapping[str, float]], Any] | None) -> Callable[[Mapping[str, float]], Any] | None:
    return None if now is None else lambda values: int(now(values))
