"""Run an unmodified ``optimizer.step()`` on one shape and write down the ATen operators it calls.

``torch.func.functionalize`` removes the in-place writes, a dispatch mode below it records what is left, and
every number that can change from step to step is a symbolic ``Number``. Tensors are on the meta device: no
memory is taken and nothing is computed. This is the default path of torch's optimizers (neither foreach nor
fused nor capturable), whose scalars are Python doubles; the other paths compute the same update.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import torch

from detente.bridge.copies import bare
from detente.bridge.graph import Aval, Graph, Output
from detente.bridge.optim.accept import step_of
from detente.bridge.optim.lifting import Factories, lifted_builtins
from detente.bridge.optim.number import is_number, number_of
from detente.bridge.optim.program import Due, Guard, Leaf, Path, Trace, live
from detente.bridge.optim.reasons import BRANCHES
from detente.bridge.optim.recording import Recording, aval_of
from detente.bridge.refusal import Refused, refuse

MAX_PATHS = 32
# what the double has of its own, and what torch itself writes to an optimizer
OWN = {"param_groups", "state", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}
TORCHS = OWN | {
    "_opt_called",
    "_step_count",
    "_zero_grad_profile_name",
    "_warned_capturable_if_run_uncaptured",
}


def trace_step(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    numbers: Mapping[str, float],
    params: tuple[Aval, ...],
    leaves: tuple[tuple[Leaf, ...] | None, ...],
    of: int = 0,
) -> Trace:
    """Every path through one ``step()`` of a group that holds ``params``.

    ``numbers`` names the hyper-parameters that stay symbolic (``lr``, ``betas.0``) with their values now;
    ``leaves`` gives each parameter's state, or None for a parameter that has never been stepped.
    The graphs' inputs are those of the first parameter, then the others' (``param1``, ``grad1``...); they give the
    new parameter and state of that number ``of``.
    Raises Refused where the step cannot become a graph; the reason names the line of the optimizer's code.
    """
    pending: list[tuple[bool, ...]] = [()]
    paths: list[Path] = []
    guards: dict[tuple[str, Any], Guard] = {}
    layout: tuple[Leaf, ...] | None = None
    writes: tuple[Due, ...] | None = None
    while pending:
        forced = pending.pop()
        run = _Run(optimizer, numbers, forced)
        found, graph = run(group, params, leaves, of)
        if layout is not None and found != layout:
            raise refuse(
                "optimizer",
                f"{run.name} keeps a different state on different branches of step()",
                step_of(optimizer),
                hint=BRANCHES,
            )
        layout = found
        mine = {due.key: due.value(run.numbers) for due in run.writes}
        if writes is not None and mine != {due.key: due.value(run.numbers) for due in writes}:
            raise refuse(
                "optimizer",
                f"{run.name} writes {', '.join(mine) or 'nothing'} into param_groups on one branch of step(), and "
                "something else on another",
            )
        writes = tuple(run.writes)
        outcomes = tuple(outcome for _, outcome in run.decisions)
        paths.append(Path(outcomes, graph))
        pending += [(*outcomes[:i], False) for i in range(len(forced), len(outcomes))]
        guards.update({(guard.place, guard.expected): guard for guard in run.guards})
        if len(paths) + len(pending) > MAX_PATHS:
            raise refuse(
                "optimizer",
                f"{run.name} branches on run-time values in more than {MAX_PATHS} ways",
                step_of(optimizer),
                hint=BRANCHES,
            )
    return Trace(layout or (), tuple(paths), tuple(guards.values()), writes or ())


class Written(Exception):
    """The step writes these numbers of its group, which were taken for constants."""

    def __init__(self, keys: set[str]) -> None:
        super().__init__(f"writes {sorted(keys)}")
        self.keys = keys


class _Run(Recording):
    """One trace of parameters by themselves."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, numbers: Mapping[str, float], forced: tuple[bool, ...]
    ) -> None:
        super().__init__(optimizer, numbers, forced)
        self.writes: list[Due] = []

    # -- the run ----------------------------------------------------------------------------------------------

    def __call__(
        self,
        group: Mapping[str, Any],
        params: tuple[Aval, ...],
        leaves: tuple[tuple[Leaf, ...] | None, ...],
        of: int = 0,
    ) -> tuple[tuple[Leaf, ...], Graph]:
        tensors: list[torch.Tensor] = []
        for index, aval in enumerate(params):
            suffix = str(index or "")
            tensors.append(self._input("parameter", f"param{suffix}", aval))
            tensors.append(self._input("batch", f"grad{suffix}", aval))
        states: list[dict[str, Any] | None] = []
        for index, known in enumerate(leaves):
            prefix = f"state{index or ''}"
            states.append(None if known is None else {k.key: self._state(prefix, k) for k in known})
        hyper = {name: self._hyper(name) for name in self.numbers}
        self.given = group
        box: dict[str, Any] = {}
        factories = Factories(self.name, self._where)

        def body(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            clone, attributes = self._clone()
            mine = {
                **{key: _separate(value) for key, value in group.items() if key != "params"},
                **_nested(group, hyper),
                "params": list(tensors[: 2 * len(params) : 2]),
            }
            written = {key: _separate(value) for key, value in mine.items()}
            clone.param_groups = [mine]
            clone.state = defaultdict(dict)
            rest = iter(tensors[2 * len(params) :])
            factories.trained.update(map(id, mine["params"]))
            for p, g, state in zip(mine["params"], tensors[1 : 2 * len(params) : 2], states, strict=True):
                p.grad = g
                if state is not None:
                    clone.state[p] = {
                        k: next(rest) if isinstance(v, torch.Tensor) else v for k, v in state.items()
                    }
            type(self.optimizer).step(clone)
            self._unwritten(clone, attributes, mine, written)
            beside = [key for key in clone.state if all(key is not p for p in mine["params"])]
            if beside:
                raise refuse(
                    "optimizer", f"{self.name}.step() keeps {beside[0]!r} in its state, which is no parameter"
                )
            final = clone.state[mine["params"][of]]
            box["state"] = {k: v for k, v in final.items() if not isinstance(v, torch.Tensor)}
            box["order"] = list(final)
            return (mine["params"][of], *(v for v in final.values() if isinstance(v, torch.Tensor)))

        flat = [v for state in states if state for v in state.values() if isinstance(v, torch.Tensor)]
        try:
            with torch.no_grad(), lifted_builtins(self.optimizer), self, factories:
                results = torch.func.functionalize(body)(*tensors, *flat)
        except (Refused, Written):
            raise
        except Exception as error:
            raise self.failed(error) from error
        return self._finish(results, box, {leaf.key: leaf.kind for leaf in leaves[0] or ()})

    def _finish(
        self, results: tuple[torch.Tensor, ...], box: dict[str, Any], kinds: Mapping[str, str]
    ) -> tuple[tuple[Leaf, ...], Graph]:
        outputs = [Output("buffer", "param", self._ref(results[0]))]
        tensors = iter(results[1:])
        leaves: list[Leaf] = []
        for key in box["order"]:
            if key not in box["state"]:
                tensor = next(tensors)
                leaf, value = Leaf(key, aval_of(tensor)), self._ref(tensor)
            else:
                entry = box["state"][key]
                if entry is None:
                    leaves.append(Leaf(key, Aval((), "float64"), "none"))
                    outputs.append(Output("buffer", key, 0.0))
                    continue
                if not isinstance(entry, int | float) and not is_number(entry):
                    raise refuse(
                        "optimizer",
                        f"{self.name} keeps {key!r} = {entry!r} in its state, which is no tensor or number",
                    )
                number = number_of(entry)
                value = float(entry) if number is None else number.value
                kind = kinds.get(key, "int" if isinstance(entry, int) else "float")
                leaf = Leaf(key, Aval((), "float64"), kind)
            leaves.append(leaf)
            outputs.append(Output("buffer", key, value))
        outputs += [Output("aux", f"test{i}", ref) for i, (ref, _) in enumerate(self.decisions)]
        return tuple(leaves), live(Graph(tuple(self.inputs), tuple(self.nodes), tuple(outputs)))

    def _clone(self) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
        """The optimizer's double with its attributes, and these; groups and state are the trace's own."""
        clone, held = bare(self.optimizer)
        attributes = {k: v for k, v in held.items() if k not in OWN}
        clone.__dict__.update({k: _separate(v) for k, v in attributes.items()})
        return clone, attributes

    def _unwritten(
        self,
        clone: torch.optim.Optimizer,
        attributes: dict[str, Any],
        group: dict[str, Any],
        before: dict[str, Any],
    ) -> None:
        """What the step writes outside of ``optimizer.state``: numbers of its group that follow from its numbers
        are ``writes``, which the caller does after each step. Raises Written for those that it has to be asked for
        as numbers, and Refused for all else: such a step is no function of its state."""
        plain = (int, float, bool, str, torch.SymFloat)
        told = [
            *(
                f"self.{key}"
                for key, value in vars(clone).items()
                if key not in TORCHS and _moved(attributes, key, value)
            ),
            *(
                f"param_groups: {key}"
                for key, value in group.items()
                if not isinstance(value, plain) and _moved(before, key, value)
            ),
        ]
        if told:
            raise refuse(
                "optimizer",
                f"{self.name}.step() writes {', '.join(told)}; only optimizer.state and numbers of param_groups can "
                "change in a step",
            )
        moved = {
            key for key, value in group.items() if isinstance(value, plain) and _moved(before, key, value)
        }
        # One that was not there before is a constant of a group's first step; the next one finds it in the group.
        fresh = {key for key in moved if isinstance(before.get(key), int | float)} - self.numbers.keys()
        if fresh:
            raise Written(fresh)
        for key in sorted(moved):
            number = number_of(group[key])
            now = number.now if number is not None else lambda values, fixed=group[key]: fixed
            if now is None or (number is None and not isinstance(group[key], int | float)):
                raise refuse(
                    "optimizer",
                    f"{self.name}.step() writes param_groups: {key}, from a tensor's value; what a step computes "
                    "belongs into optimizer.state",
                    hint="an optimizer that estimates its step size from gradients is not taken; give a step size to "
                    "one that does not (AdamW)",
                )
            self.writes.append(Due(key, now, isinstance(self.given.get(key, group[key]), int)))


def _separate(value: Any) -> Any:
    """Containers of their own with the same things in them: a trace leaves nothing in the user's."""
    if type(value) in (list, tuple, set, deque):
        items = [_separate(item) for item in value]
        return deque(items, value.maxlen) if isinstance(value, deque) else type(value)(items)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _separate(item)) for key, item in value.items())
    return value


def _moved(before: Mapping[str, Any], key: str, now: Any) -> bool:
    """Whether something is new, or another value than before. Of things of other kinds: another object."""
    if key not in before:
        return True
    return not _same(before[key], now)


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if is_number(old) or is_number(new) or isinstance(old, torch.Tensor) or type(old) is not type(new):
        return False
    if isinstance(old, int | float | bool | str):
        return old == new or (isinstance(old, float) and math.isnan(old))
    if isinstance(old, list | tuple | deque):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    return isinstance(old, set) and old == new


def _nested(group: Mapping[str, Any], hyper: Mapping[str, Any]) -> dict[str, Any]:
    """``{"betas.0": a, "betas.1": b, "lr": c}`` back in the group's own shape."""
    out: dict[str, Any] = {}
    for name, value in hyper.items():
        key, _, index = name.partition(".")
        if index:
            items = list(out.get(key, group[key]))
            items[int(index)] = value
            out[key] = tuple(items)
        else:
            out[key] = value
    return out
