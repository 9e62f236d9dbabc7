"""``torch.func`` inside of the loss: ``grad``, ``vjp`` and ``jvp`` on autograd's tape.

torch's own put every tensor into a wrapper, which hides what is computed from the capture. Here an argument that is
differentiated becomes a tensor of its own on the tape (``markers.leaf``), and the derivative a ``detente.derivative``
node. The rest of ``torch.func`` (``jacrev``, ``jacfwd``, ``hessian``, ``grad_and_value``) is torch's code on top of
these and of ``vmap``. A forward-mode derivative is the derivative of the reverse-mode one by its cotangents: the same
numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from detente.bridge.capture.derivative import Derivatives, grad, not_hidden
from detente.bridge.capture.markers import capturing, enabled, leaf
from detente.bridge.capture.where import here
from detente.bridge.private import functorch_transforms, pytree
from detente.bridge.refusal import refuse
from detente.bridge.threads import only_here

_functorch: Any = functorch_transforms


@contextmanager
def keep_transforms(derivatives: Derivatives) -> Iterator[None]:
    """``torch.func`` inside differentiates by markers."""

    def of(
        outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any], create: bool
    ) -> list[Any]:
        return _grad(derivatives, outputs, inputs, cotangents, create)

    ours: dict[str, Callable[..., Any]] = {
        "grad_and_value_impl": lambda *given: _grad_and_value(of, *given),
        "_vjp_with_argnums": lambda func, *primals, **named: _vjp(of, func, primals, **named),
        "_jvp_with_argnums": lambda func, primals, tangents, argnums, **named: _jvp(
            of, func, primals, tangents, argnums, **named
        ),
    }
    plain = {name: getattr(_functorch, name) for name in ours}

    def chosen(name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if capturing() is None:
                return plain[name](*args, **kwargs)
            not_hidden()
            return ours[name](*args, **kwargs)

        return run

    # forward mode and torch's graph of a derivative: what leads to them is refused by its name
    refused = {
        (torch.autograd.forward_ad, "make_dual"): "forward-mode differentiation (torch.autograd.forward_ad)",
        (_functorch, "linearize"): "torch.func.linearize",
        (torch.func, "linearize"): "torch.func.linearize",
        (_functorch, "functionalize"): "torch.func.functionalize",
        (torch.func, "functionalize"): "torch.func.functionalize",
    }
    others = {(place, name): getattr(place, name) for place, name in refused}
    for (place, name), what in refused.items():
        setattr(place, name, only_here(_refusing(others[place, name], what), others[place, name]))
    for name in ours:
        setattr(_functorch, name, only_here(chosen(name), plain[name]))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(_functorch, name, function)
        for (place, name), function in others.items():
            setattr(place, name, function)


def _refusing(plain: Callable[..., Any], what: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if capturing() is None:
            return plain(*args, **kwargs)
        raise refuse(
            "transform", f"{what} inside of the loss", here(), "torch.func.jvp is a derivative forward, too"
        )

    return run


def _grad(
    derivatives: Derivatives,
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    create: bool,
) -> list[torch.Tensor]:
    """Gradients, zeros where there is none."""
    of = [i for i, y in enumerate(outputs) if y.requires_grad]
    found: Sequence[torch.Tensor | None] = [None] * len(inputs)
    if of and inputs:
        ys, cs = [outputs[i] for i in of], [cotangents[i] for i in of]
        found = grad(derivatives, ys, cs, True, create, inputs, True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def _picked(
    args: tuple[Any, ...], argnums: Any
) -> tuple[tuple[Any, ...], list[torch.Tensor], Callable[..., Any]]:
    """The arguments with those of ``argnums`` (None: all) on the tape, these as a flat list, and how gradients of
    them are put together."""
    numbers = range(len(args)) if argnums is None else [argnums] if isinstance(argnums, int) else argnums
    numbers = [_functorch._validate_and_wrap_argnum(n, len(args)) for n in numbers]
    full = list(args)
    for n in numbers:
        full[n] = pytree.tree_map(leaf, args[n])
    chosen = full[numbers[0]] if isinstance(argnums, int) else tuple(full[n] for n in numbers)
    flat, spec = pytree.tree_flatten(chosen)
    return tuple(full), flat, lambda values: pytree.tree_unflatten(list(values), spec)


def _aux(given: Any, has_aux: bool, name: str) -> tuple[Any, Any]:
    if not has_aux:
        return given, None
    if not (isinstance(given, tuple) and len(given) == 2):
        raise RuntimeError(f"{name}: the function should return (output, aux) if has_aux is True")
    return given


def _outside(value: Any, grad_enabled: bool) -> Any:
    """A result as no_grad around the transform has it."""
    if grad_enabled:
        return value
    return pytree.tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, value)


def _grad_and_value(of: Any, func: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
    before = torch.is_grad_enabled()
    with enabled():
        full, flat, together = _picked(tuple(args), argnums)
        value, aux = _aux(func(*full, **kwargs), has_aux, "grad_and_value(f)(*args)")
        if not isinstance(value, torch.Tensor) or value.dim() != 0:
            shown = f"{value.dim()} dims" if isinstance(value, torch.Tensor) else type(value).__name__
            raise RuntimeError(
                f"grad_and_value(f)(*args): Expected f(*args) to return a scalar tensor, got {shown}"
            )
        gradient = together(of([value], flat, [torch.ones_like(value)], True))
    gradient, value, aux = _outside((gradient, value, aux), before)
    return gradient, (value, aux) if has_aux else value


def _vjp(of: Any, func: Any, primals: tuple[Any, ...], *, argnums: Any = None, has_aux: bool = False) -> Any:
    before = torch.is_grad_enabled()
    with enabled():
        full, flat, together = _picked(primals, argnums)
        given, aux = _aux(func(*full), has_aux, "vjp(f, *primals)")
        ys, spec = pytree.tree_flatten(given)
        _functorch.assert_non_empty_tensor_output(ys, "vjp(f, *primals)")

    def pull(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        create = torch.is_grad_enabled() if create_graph is None else create_graph
        cs, cs_spec = pytree.tree_flatten(cotangents)
        if cs_spec != spec:
            raise RuntimeError(f"vjp: cotangents are {cs_spec}, the outputs of the function {spec}")
        return together(of(ys, flat, cs, create))

    results = _outside(given, before), pull
    return (*results, _outside(aux, before)) if has_aux else results


def _jvp(
    of: Any,
    func: Any,
    primals: tuple[Any, ...],
    tangents: Any,
    argnums: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    before = torch.is_grad_enabled()
    with enabled():
        full, flat, _ = _picked(primals, argnums)
        ts = pytree.tree_leaves(tangents)
        if [t.shape for t in ts] != [x.shape for x in flat]:
            raise RuntimeError(
                "jvp(f, primals, tangents): Expected tangents of the primals' structure and shapes"
            )
        given, aux = _aux(func(*full), has_aux, "jvp(f, primals, tangents)")
        ys, spec = pytree.tree_flatten(given)
        _functorch.assert_non_empty_tensor_output(ys, "jvp(f, primals, tangents)")
        # the cotangents of a reverse pass, of which the result is linear; their own values are of no matter
        us = [leaf(torch.zeros_like(y)) if y.requires_grad else torch.zeros_like(y) for y in ys]
        moved = of(ys, flat, us, True)
        along = [u for u in us if u.requires_grad]
        found = iter(of(moved, along, ts, True))
        out = pytree.tree_unflatten([next(found) if u.requires_grad else u for u in us], spec)
    if strict and any(not y.requires_grad for y in ys):
        raise RuntimeError(
            "jvp(f, primals, tangents, strict=True): the output of f is independent of the inputs"
        )
    results = _outside((given, out), before)
    return (*results, _outside(aux, before)) if has_aux else results
