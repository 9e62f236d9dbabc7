"""Run an unmodified ``optimizer.step()`` on one shape and write down the ATen operators it calls.

``torch.func.functionalize`` removes the in-place writes, a dispatch mode below it records what is left, and
every number that can change from step to step is a symbolic ``Number``. Tensors are on the meta device: no
memory is taken and nothing is computed. This is the default path of torch's optimizers (neither foreach nor
fused nor capturable), whose scalars are Python doubles; the other paths compute the same update.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from detente.bridge.copies import bare
from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref, Where
from detente.bridge.optim.lifting import Factories, lifted_builtins, spaces_of
from detente.bridge.optim.number import Number, is_number, number_of
from detente.bridge.optim.program import Due, Guard, Leaf, Path, Trace, live
from detente.bridge.refusal import Refused, refuse

MAX_PATHS = 32
# value-preserving operators: the result is the argument
SAME = {"aten.clone.default", "aten.detach.default", "aten.alias.default", "aten.lift_fresh.default",
        "aten.lift_fresh_copy.default"}  # fmt: skip
# creations that read a tensor for its shape only -> where the fill value is (a position, or the value)
FILLS: dict[str, int | float] = {
    "aten.zeros.default": 0.0,
    "aten.zeros_like.default": 0.0,
    "aten.new_zeros.default": 0.0,
    "aten.empty.memory_format": 0.0,
    "aten.empty_like.default": 0.0,
    "aten.ones.default": 1.0,
    "aten.ones_like.default": 1.0,
    "aten.new_ones.default": 1.0,
}
FILLS_WITH: dict[str, int] = {"aten.full_like.default": 1, "aten.new_full.default": 2, "aten.full.default": 1,
                              "aten.scalar_tensor.default": 0}  # fmt: skip
# what the double has of its own, and what torch itself writes to an optimizer
OWN = {"param_groups", "state", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}
TORCHS = OWN | {
    "_opt_called",
    "_step_count",
    "_zero_grad_profile_name",
    "_warned_capturable_if_run_uncaptured",
}
DROPPED = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}


def aval_of(tensor: torch.Tensor) -> Aval:
    return Aval(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def trace_step(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    numbers: Mapping[str, float],
    params: tuple[Aval, ...],
    leaves: tuple[tuple[Leaf, ...] | None, ...],
) -> Trace:
    """Every path through one ``step()`` of a group that holds ``params``.

    ``numbers`` names the hyper-parameters that stay symbolic (``lr``, ``betas.0``) with their values now;
    ``leaves`` gives each parameter's state, or None for a parameter that has never been stepped.
    The graphs' inputs are those of the first parameter, then the others' (``param1``, ``grad1``...).
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
        found, graph = run(group, params, leaves)
        if layout is not None and found != layout:
            raise refuse("optimizer", f"{run.name} keeps a different state on different branches of step()")
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
            raise refuse("optimizer", f"{run.name} branches on run-time values in more than {MAX_PATHS} ways")
    return Trace(layout or (), tuple(paths), tuple(guards.values()), writes or ())


class Written(Exception):
    """The step writes these numbers of its group, which were taken for constants."""

    def __init__(self, keys: set[str]) -> None:
        super().__init__(f"writes {sorted(keys)}")
        self.keys = keys


class _Run(TorchDispatchMode):
    """One trace along one path. It is the dispatch mode and the ``Recorder`` of its numbers."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, numbers: Mapping[str, float], forced: tuple[bool, ...]
    ) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.name = type(optimizer).__name__
        self.numbers = dict(numbers)
        self.forced = forced
        self.decisions: list[tuple[Ref, bool]] = []
        self.guards: list[Guard] = []
        self.writes: list[Due] = []
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.next_id = 0
        self.known: dict[int, tuple[torch.Tensor, Ref]] = {}  # id -> (kept alive, value)
        self.files = {space["__file__"] for space in spaces_of(optimizer) if "__file__" in space}

    # -- the run ----------------------------------------------------------------------------------------------

    def __call__(
        self,
        group: Mapping[str, Any],
        params: tuple[Aval, ...],
        leaves: tuple[tuple[Leaf, ...] | None, ...],
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
            for p, g, state in zip(mine["params"], tensors[1 : 2 * len(params) : 2], states, strict=True):
                p.grad = g
                if state is not None:
                    clone.state[p] = {
                        k: next(rest) if isinstance(v, torch.Tensor) else v for k, v in state.items()
                    }
            type(self.optimizer).step(clone)
            self._unwritten(clone, attributes, mine, written)
            final = clone.state[mine["params"][0]]
            box["state"] = {k: v for k, v in final.items() if not isinstance(v, torch.Tensor)}
            box["order"] = list(final)
            return (mine["params"][0], *(v for v in final.values() if isinstance(v, torch.Tensor)))

        flat = [v for state in states if state for v in state.values() if isinstance(v, torch.Tensor)]
        try:
            with torch.no_grad(), lifted_builtins(self.optimizer), self, Factories():
                results = torch.func.functionalize(body)(*tensors, *flat)
        except (Refused, Written):
            raise
        except Exception as error:
            raise refuse(
                "optimizer",
                f"tracing {self.name}.step() failed: {type(error).__name__}: {error}",
                self._where(error),
            ) from error
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

    # -- inputs -----------------------------------------------------------------------------------------------

    def _new(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _input(self, kind: str, name: str, aval: Aval) -> torch.Tensor:
        tensor = torch.empty(aval.shape, dtype=getattr(torch, aval.dtype), device="meta")
        item = Input(self._new(), kind, name, aval)
        self.inputs.append(item)
        self.known[id(tensor)] = (tensor, Ref(item.id))
        return tensor

    def _state(self, prefix: str, leaf: Leaf) -> Any:
        if leaf.kind == "tensor":
            return self._input("buffer", f"{prefix}.{leaf.key}", leaf.aval)
        if leaf.kind == "none":
            return None
        item = Input(self._new(), "buffer", f"{prefix}.{leaf.key}", leaf.aval)
        self.inputs.append(item)
        return torch.SymFloat(Number(self, Ref(item.id), None))

    def _hyper(self, name: str) -> torch.SymFloat:
        item = Input(self._new(), "constant", f"hyper.{name}", Aval((), "float64"))
        self.inputs.append(item)
        return torch.SymFloat(Number(self, Ref(item.id), lambda values: values[name]))

    # -- what the numbers ask -----------------------------------------------------------------------------------

    def record_number(self, op: str, *args: Any, kind: str = "float64") -> Ref:
        return self._node(op, args, {}, Aval((), kind))

    def decide(self, test: Number) -> bool:
        if (now := test.now) is not None:
            outcome = bool(now(self.numbers))
            self.guards.append(Guard(lambda values: bool(now(values)), outcome, str(self._where())))
            return outcome
        assert isinstance(test.value, Ref)
        known = dict(self.decisions)
        if test.value in known:
            return known[test.value]
        index = len(self.decisions)
        outcome = self.forced[index] if index < len(self.forced) else True
        self.decisions.append((test.value, outcome))
        return outcome

    def fix(self, number: Number) -> float:
        if number.now is None:
            raise refuse(
                "optimizer",
                f"{self.name}.step() needs the value of a tensor or of its step count as a Python float",
                self._where(),
            )
        value = number.now(self.numbers)
        self.guards.append(Guard(number.now, value, str(self._where())))
        return value

    # -- what torch calls ---------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if not name.startswith("aten."):  # the profiler's
            return func(*args, **kwargs)
        if name == "aten._local_scalar_dense.default":
            return self._item(args[0])
        if (
            name == "aten.copy_.default"
        ):  # functionalize writes its inputs back at the end; we read the results
            return args[0]
        concrete_args, concrete_kwargs = pytree.tree_map(
            lambda a: 0.5 if is_number(a) else a, (list(args), dict(kwargs))
        )
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise refuse(
                "optimizer",
                f"{self.name}.step() draws random numbers ({name}), and only forward has numbers of its own",
                self._where(),
                hint="give the optimizer's option that draws none, or another optimizer",
            )
        out = func(*concrete_args, **concrete_kwargs)
        if name in SAME:
            self._know(out, self._ref(args[0]))
            return out
        if not isinstance(out, torch.Tensor):
            self._many(name, out, args, kwargs)
            return out
        if name in FILLS or name in FILLS_WITH:
            fill = FILLS[name] if name in FILLS else args[FILLS_WITH[name]]
            self._know(out, self.filled(fill, aval_of(out)))
            return out
        if name == "aten._to_copy.default" and args[0].dtype == out.dtype:
            self._know(out, self._ref(args[0]))
            return out
        self._know(out, self._call(_functional(func), args, kwargs, aval_of(out)))
        return out

    def filled(self, fill: Any, aval: Aval) -> Ref:
        return self._call("aten.full.default", (aval.shape, fill), {"dtype": aval.dtype}, aval)

    def _many(self, name: str, out: Any, args: Any, kwargs: Any) -> None:
        if not isinstance(out, tuple | list):
            raise refuse("optimizer", f"{self.name}.step() calls {name}, which gives {out!r}", self._where())
        avals = tuple(aval_of(t) if isinstance(t, torch.Tensor) else None for t in out)
        ref = self._call(name, args, kwargs, avals)
        for index, tensor in enumerate(out):
            if isinstance(tensor, torch.Tensor):
                self._know(tensor, Ref(ref.id, index))

    def _call(self, name: str, args: Any, kwargs: Any, out: Any) -> Ref:
        symbolic = any(number_of(a) is not None for a in pytree.tree_leaves((args, kwargs)))
        operands = tuple(self._operand(a) for a in args)
        named = {k: self._operand(v) for k, v in kwargs.items() if k not in DROPPED and v is not None}
        return self._node(f"symbolic.{name}" if symbolic else name, operands, named, out)

    def _operand(self, value: Any) -> Any:
        number = number_of(value)
        if number is not None:
            return number.value
        if isinstance(value, torch.Tensor):
            return self._ref(value)
        if isinstance(value, list | tuple):
            return tuple(self._operand(item) for item in value)
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        return value

    def _node(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Ref:
        node = Node(self._new(), op, args, tuple(kwargs.items()), out, self._where(), scope="optimizer")
        self.nodes.append(node)
        return Ref(node.id)

    def _know(self, tensor: torch.Tensor, ref: Ref) -> None:
        self.known[id(tensor)] = (tensor, ref)

    def _ref(self, tensor: torch.Tensor) -> Ref:
        if id(tensor) in self.known:
            return self.known[id(tensor)][1]
        if tensor.device.type == "meta" or tensor.numel() != 1:
            raise refuse(
                "optimizer",
                f"{self.name}.step() reads a tensor {list(tensor.shape)} that is neither parameter, gradient nor state",
                self._where(),
            )
        # a constant made inside step(): torch.tensor(0.0)
        with _off():
            value = tensor.reshape(()).tolist()
        ref = self.filled(value, aval_of(tensor))
        self._know(tensor, ref)
        return ref

    def _item(self, tensor: torch.Tensor) -> Any:
        if tensor.dtype == torch.bool:
            ref = self._node("number.item", (self._ref(tensor),), {}, Aval((), "bool"))
            return torch.SymBool(Number(self, ref, None, boolean=True))
        ref = self._node("number.item", (self._ref(tensor),), {}, Aval((), "float64"))
        return torch.SymFloat(Number(self, ref, None))

    def _where(self, error: BaseException | None = None) -> Where:
        """The innermost line inside the optimizer's own file."""
        if error is not None:
            trace, found = error.__traceback__, None
            while trace is not None:
                if trace.tb_frame.f_code.co_filename in self.files:
                    found = Where(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
                trace = trace.tb_next
            return found or Where()
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename not in self.files:
            frame = frame.f_back
        return Where(frame.f_code.co_filename, frame.f_lineno) if frame else Where()


def _functional(func: Any) -> str:
    """The name, of an operator in place that of the one it is in place of: a composite of torch's may write to what it
    has made itself, below functionalize."""
    base, _, overload = str(func).removeprefix("aten.").partition(".")
    in_place = base.endswith("_") and func._schema.arguments[0].alias_info is not None
    return f"aten.{base.removesuffix('_')}.{overload}" if in_place else str(func)


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


def _off() -> Any:
    """No mode: for reading a real constant."""
    return torch.utils._python_dispatch._disable_current_modes()


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
