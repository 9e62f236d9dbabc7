"""Which optimizers the bridge takes, and the one clear sentence for each that it does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import optimizer as base

from detente.bridge.graph import Where
from detente.bridge.optim.reasons import NO_CLOSURE
from detente.bridge.refusal import Reason, Refused, refuse


@dataclass(frozen=True)
class Obstacle:
    """``stands(optimizer)`` is True where the bridge must refuse; ``what`` says so with ``{name}``."""

    stands: Callable[[torch.optim.Optimizer], bool]
    what: str
    hint: str


def _params(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _hooks(optimizer: torch.optim.Optimizer) -> bool:
    return bool(
        getattr(optimizer, "_optimizer_step_pre_hooks", None)
        or getattr(optimizer, "_optimizer_step_post_hooks", None)
        or base._global_optimizer_pre_hooks
        or base._global_optimizer_post_hooks
    )


def wraps(optimizer: torch.optim.Optimizer) -> bool:
    """Groups or state are another optimizer's (Lookahead, a schedule-free wrapper)."""
    inner = [v for v in vars(optimizer).values() if isinstance(v, torch.optim.Optimizer)]
    return bool(inner) or "param_groups" not in vars(optimizer)


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Its ``step`` has no way without one."""
    asked = inspect.signature(type(optimizer).step).parameters.get("closure")
    return asked is not None and asked.default is inspect.Parameter.empty


OBSTACLES: tuple[Obstacle, ...] = (
    Obstacle(
        lambda o: not isinstance(o, torch.optim.LBFGS) and _needs_closure(o),
        "{name} evaluates the loss inside of its step (a closure), and a compiled step evaluates it once",
        NO_CLOSURE,
    ),
    Obstacle(
        lambda o: isinstance(o, torch.optim.LBFGS),
        "LBFGS evaluates the loss several times inside one step (a closure), and a compiled step evaluates it once",
        "use another optimizer, or jax.scipy.optimize / optax.lbfgs on detente.functional(model)",
    ),
    Obstacle(
        lambda o: isinstance(o, torch.optim.SparseAdam),
        "SparseAdam needs sparse gradients, and the gradients of a compiled step are dense",
        "use torch.optim.Adam, which computes the dense update",
    ),
    Obstacle(
        _hooks,
        "{name} has step hooks, and a compiled step does not call Python",
        "remove the hooks (their handle's remove()), or do their work before and after step(batch)",
    ),
    Obstacle(
        lambda o: not isinstance(getattr(o, "state", None), dict),
        "{name}.state is no dictionary, and a step could not tell what in it is a parameter's",
        "keep one by parameter (collections.defaultdict(dict)); an optimizer around others leaves theirs in them, or "
        "has state and param_groups as properties",
    ),
    Obstacle(
        lambda o: any(group.get("differentiable") for group in o.param_groups),
        "{name} is differentiable=True, which asks autograd to see through optimizer.step()",
        "build it with differentiable=False; detente.functional differentiates through an update in JAX",
    ),
)


def step_of(optimizer: torch.optim.Optimizer) -> Where | None:
    """Where its ``step`` begins; None where that is not Python's."""
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    return None if code is None else Where(code.co_filename, code.co_firstlineno)


def own_step(optimizer: torch.optim.Optimizer) -> Any:
    """What somebody put in the place of the class' ``step``, below what a scheduler wraps around it; None where nobody
    did."""
    step = vars(optimizer).get("step")
    scheduled = False
    while getattr(step, "_wrapped_by_lr_sched", False):
        step, scheduled = getattr(step, "__wrapped__", None), True
    step = getattr(step, "__func__", step)
    return (
        None if scheduled and step in [vars(kind).get("step") for kind in type(optimizer).__mro__] else step
    )


def check(optimizer: Any) -> None:
    """Raises Refused with every obstacle at once; TypeError where this is no torch optimizer."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}; "
            "for an optax transformation use detente.functional"
        )
    name, where = type(optimizer).__name__, step_of(optimizer)
    if not hasattr(optimizer, "param_groups"):
        raise refuse(
            "optimizer",
            f"{name} has no param_groups: its constructor leaves out that of torch.optim.Optimizer, and where its "
            "parameters and rates are is its own affair",
            where,
            hint="compile with the optimizer that it wraps, or call super().__init__(params, defaults) in it",
        )
    reasons = [
        Reason("optimizer", o.what.format(name=name), where, o.hint) for o in OBSTACLES if o.stands(optimizer)
    ]
    if reasons:
        raise Refused(reasons)


def no_closure(closure: Any) -> None:
    """Raises Refused where a step is called with a closure."""
    if closure is not None:
        raise Refused([
            Reason(
                "optimizer",
                "step(closure) would evaluate the loss from Python, and a compiled step has its loss inside",
                None,
                "call step(batch) without a closure",
            )
        ])  # fmt: skip
