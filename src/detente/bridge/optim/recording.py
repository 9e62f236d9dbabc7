"""The dispatch mode below a traced ``step()``: it writes down ATen's operators and the arithmetic on numbers.

``torch.func.functionalize`` stands above it and removes the in-place writes. Tensors are on the meta device: no memory
is taken and nothing is computed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from detente.bridge.graph import Aval, Input, Node, Ref, Where
from detente.bridge.optim.foreach import each
from detente.bridge.optim.lifting import spaces_of
from detente.bridge.optim.number import Number, is_number, number_of
from detente.bridge.optim.program import Guard, Leaf
from detente.bridge.optim.reasons import FAILED, NO_CLOSURE, NO_GRAPH, no_graph
from detente.bridge.private import TorchDispatchMode, outside_of_modes, pytree
from detente.bridge.refusal import Refused, refuse

SCOPE = "optimizer"  # as a program's readers know an update (programs/scope.py)
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
PICKS = {"aten.index.Tensor", "aten.masked_select.default", "aten.nonzero.default"}
DROPPED = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}


def aval_of(tensor: torch.Tensor) -> Aval:
    return Aval(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


class Recording(TorchDispatchMode):
    """One trace along one path, and the ``Recorder`` of its numbers. ``numbers`` are the values now of those that stay
    symbolic; ``forced`` the answers to the first tests of run-time values."""

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
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.next_id = 0
        self.known: dict[int, tuple[torch.Tensor, Ref]] = {}  # id -> (kept alive, value)
        self.files = {space["__file__"] for space in spaces_of(optimizer) if "__file__" in space}

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
        if name.startswith("aten._foreach_"):
            with self:
                return each(name, func, args, kwargs)
        concrete_args, concrete_kwargs = pytree.tree_map(
            lambda a: 0.5 if is_number(a) else int(a) if isinstance(a, torch.SymInt) else a,
            (list(args), dict(kwargs)),
        )
        if name in PICKS and any(_is_mask(a) for a in pytree.tree_leaves(args)):
            raise refuse(
                "optimizer",
                f"{self.name}.step() picks elements by a boolean mask ({name}), and how many those are is known only "
                "when it has run",
                self._where(),
                hint="write that line with torch.where, which keeps every element, or take another optimizer",
            )
        if any(not written.is_meta for written in _written(func, args, kwargs)):
            # One of the user's, which is no input of this trace: it would be written to here and now, and never again.
            raise refuse(
                "optimizer",
                f"{self.name}.step() writes in place to a tensor that it holds elsewhere than in its state ({name})",
                self._where(),
            )
        if torch.Tag.nondeterministic_seeded in func.tags:
            if self._differentiates():
                raise no_graph(self.name, self._where())
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
        if not isinstance(out, torch.Tensor | tuple | list) and not any(
            isinstance(a, torch.Tensor) for a in pytree.tree_leaves((args, kwargs))
        ):
            return out  # about dtypes
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
        if isinstance(value, torch.SymInt):  # a number that int() has fixed
            return int(value)
        if isinstance(value, list | tuple):
            return tuple(self._operand(item) for item in value)
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        return value

    def _node(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Ref:
        node = Node(self._new(), op, args, tuple(kwargs.items()), out, self._where(), scope=SCOPE)
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
        given = self._ref(tensor)
        made = next(
            (node for node in self.nodes if node.id == given.id and node.op == "aten.full.default"), None
        )
        if made is not None and isinstance(
            made.args[1], int | float
        ):  # torch.tensor(0.1): known, in its own dtype
            with _off():
                value = torch.tensor(made.args[1], dtype=tensor.dtype).tolist()
            return value
        ref = self._node("number.item", (given,), {}, Aval((), "float64"))
        return torch.SymFloat(Number(self, ref, None))

    def _differentiates(self) -> bool:
        """Whether a function of the optimizer that runs now calls autograd: its random vectors are those of an
        estimate of the Hessian."""
        frame: Any = sys._getframe(1)
        while frame is not None and not (
            frame.f_code.co_filename in self.files and "autograd" in frame.f_code.co_names
        ):
            frame = frame.f_back
        return frame is not None

    def failed(self, error: Exception) -> Refused:
        """What a trace says where the step raised in it."""
        said, where = f"{type(error).__name__}: {error}", self._where(error)
        kept = {key for group in self.optimizer.param_groups for p in group["params"] for key in vars(p)}
        if isinstance(error, AttributeError) and isinstance(error.obj, torch.Tensor) and error.name in kept:
            return refuse(
                "optimizer",
                f"{self.name} keeps .{error.name} on its parameters themselves, where a compiled step has none",
                where,
                hint=f"keep it in optimizer.state; {NO_GRAPH}",
            )
        hint = NO_CLOSURE if "closure" in said else FAILED
        return refuse("optimizer", f"tracing {self.name}.step() failed: {said}", where, hint=hint)

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


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """What an operator writes to in place."""
    if not func._schema.is_mutable:
        return []
    named = zip(func._schema.arguments, args, strict=False)
    given = [v for a, v in named if a.alias_info is not None and a.alias_info.is_write]
    given += [
        kwargs.get(a.name)
        for a in func._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    ]
    return [t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def _functional(func: Any) -> str:
    """The name, of an operator in place that of the one it is in place of: a composite of torch's may write to what it
    has made itself, below functionalize."""
    base, _, overload = str(func).removeprefix("aten.").partition(".")
    in_place = base.endswith("_") and func._schema.arguments[0].alias_info is not None
    return f"aten.{base.removesuffix('_')}.{overload}" if in_place else str(func)


def _off() -> Any:
    """No mode: for reading a real constant."""
    return outside_of_modes()
