"""``detente.functional``: a torch module as a pure JAX function and a pytree, for people who think in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

from detente.bridge.capture import batch as batches
from detente.bridge.capture.capture import capture
from detente.bridge.lower.faults import NO_FAULT
from detente.bridge.lower.precision import known_matmul, torch_numerics
from detente.bridge.private import versioned, versions_of
from detente.bridge.program.captured import graph_of, lowerable
from detente.bridge.program.program import Program
from detente.bridge.random.keys import step_key
from detente.bridge.refusal import Refused, refuse
from detente.bridge.state.place import from_jax, to_jax
from detente.bridge.step.arguments import criterion, takes_part

Arrays = dict[str, Any]
_NARROW = {"int64": "int32", "float64": "float32"}


@dataclass(eq=False, repr=False)  # one is itself: jax.jit hashes what it is given
class Functional:
    """``loss(params, batch, buffers=..., key=...) -> loss`` and its relatives, traceable by every JAX
    transformation.

    ``params`` are the trainable parameters and ``buffers`` everything else (frozen parameters included),
    dictionaries of ``jax.Array`` by torch's ``state_dict`` names. A tied weight appears once.

    What PyTorch raises inside of a forward pass (an index out of range, a guard), and another answer than the example
    batch's to what Python asks of values, is raised by a call outside of JAX's transformations. Inside of ``jit`` or
    ``vmap`` nothing can be raised: the loss, its gradients, and whatever else is floating are NaN then, and a call with
    that batch outside of them says what it is, and in which line.
    """

    params: Arrays
    buffers: Arrays
    program: Program = field(repr=False)
    layout: batches.Layout = field(repr=False)
    aux: batches.Layout | None = field(repr=False)
    aliases: Mapping[str, str] = field(default_factory=dict)
    wide: frozenset[int] = frozenset()  # of the batch's tensors those with numbers that 32 bits cannot hold
    versions: Any = field(default=None, repr=False)  # of the module's parts

    def __repr__(self) -> str:
        count = sum(value.size for value in self.params.values())
        return (
            f"<Functional of {len(self.params)} parameters ({count:,} numbers) and {len(self.buffers)} buffers, for a "
            f"batch of {self.layout.shape}>"
        )

    def __call__(self, params: Arrays, batch: Any, *, buffers: Arrays | None = None, key: Any = None) -> Any:
        """The loss. ``batch``: the structure of the example batch, JAX or torch tensors at the leaves, of
        its shapes (under ``vmap`` the mapped axis does not count). ``key``: a threefry key (default: that of
        step 0, seed 0)."""
        return self.apply(params, batch, buffers=buffers, key=key)[0]

    loss = __call__

    def apply(
        self, params: Arrays, batch: Any, *, buffers: Arrays | None = None, key: Any = None
    ) -> tuple[Any, tuple[Any, Arrays]]:
        """``(loss, (aux, new buffers))``, as ``jax.value_and_grad(..., has_aux=True)`` takes it. ``new
        buffers`` is all of ``buffers`` with the written ones replaced (BatchNorm's statistics)."""
        held = self.buffers if buffers is None else buffers
        with torch_numerics(self.program.matmul):
            key = step_key(0, 0) if key is None else key
            leaves = self._leaves(batch)
            loss, (aux, written, word) = self.program.forward(
                {**self._named(held, params), **self.program.large}, leaves, key
            )
            if self.program.sites.rows:  # which tracing has found
                loss, aux, written = self._faultless(word, loss, aux, written)
        given = self.aux.build(aux) if self.aux is not None else None
        return loss, (given, {**held, **written})

    def _faultless(self, word: Any, loss: Any, aux: Any, written: Arrays) -> tuple[Any, Any, Arrays]:
        """The results where nothing faulted. Raises what torch would have; NaN where the word cannot be read."""
        if not isinstance(word, jax.core.Tracer):
            error = self.program.sites.error(int(word))
            if error is not None:
                raise error
            return loss, aux, written
        fine = word == NO_FAULT
        # A product, and no selection: the gradient is NaN with the loss, where it would be zero.
        loss = loss * jnp.where(fine, jnp.ones((), loss.dtype), jnp.full((), jnp.nan, loss.dtype))

        def only(value: Any) -> Any:
            kind = jnp.result_type(value)
            known = jnp.issubdtype(kind, jnp.inexact)
            return jnp.where(fine, value, jnp.full((), jnp.nan, kind)) if known else value

        return loss, *jax.tree.map(only, (aux, written))

    def _named(self, buffers: Mapping[str, Any], params: Mapping[str, Any]) -> Arrays:
        """Both in one, held against the names that the module has: what nothing reads would have no effect."""
        given, known = {**buffers, **params}, {**self.params, **self.buffers}
        wrong = [
            ("is not given", sorted(known.keys() - given.keys())),
            ("is no name of it", sorted(given.keys() - known)),
        ]
        for what, names in wrong:
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                raise refuse(
                    "weights",
                    f"{', '.join(map(repr, names[:3]))}{more} {what}",
                    hint="params and buffers together take the names of f.params and f.buffers; a tied weight has one",
                )
        return given

    def _leaves(self, batch: Any) -> list[Any]:
        pairs, _, _, shape = batches.apart(batch)
        leaves = [leaf for _, leaf in pairs]
        if shape != self.layout.shape:
            raise refuse("batch", f"the batch is {shape}; the module was captured with {self.layout.shape}")
        static = dict(self.layout.static)
        tensors = []
        for position, leaf in enumerate(leaves):
            if position in static:
                if leaf != static[position]:
                    raise refuse(
                        "batch", f"leaf {position} is {leaf!r}; it was {static[position]!r} at capture"
                    )
                continue
            tensors.append(to_jax(leaf) if isinstance(leaf, torch.Tensor) else leaf)
        rows = zip(tensors, self.layout.avals, self.layout.paths, strict=True)
        for place, (tensor, aval, path) in enumerate(rows):
            if tensor.dtype.name == _NARROW.get(aval.dtype) and tuple(tensor.shape) == aval.shape:
                if place in self.wide:
                    raise refuse(
                        "batch",
                        f"{path} is {tensor.dtype.name}; it was captured as {aval.dtype}, with numbers that 32 bits do "
                        "not hold",
                        hint="transform and call it under `with jax.enable_x64(True):`, or JAX cuts it at its border",
                    )
                continue  # without jax's x64 mode there are no such arrays; the values are the same
            if tuple(tensor.shape) != aval.shape or tensor.dtype.name != aval.dtype:
                raise refuse(
                    "batch",
                    f"{path} is {tensor.dtype.name}{list(tensor.shape)}; the module was captured with "
                    f"{aval.dtype}{list(aval.shape)}",
                    hint="call detente.functional again with a batch of the new shapes",
                )
        return [
            jnp.asarray(t, a.dtype) if a.dtype in _NARROW else t
            for t, a in zip(tensors, self.layout.avals, strict=True)
        ]

    def state_dict(self, params: Arrays, buffers: Arrays | None = None) -> dict[str, torch.Tensor]:
        """Torch tensors under torch's names, tied names included, with the versions of the module's parts, ready for
        ``load_state_dict(..., strict=False)``."""
        values = self._named(self.buffers if buffers is None else buffers, params)
        host = {name: from_jax(value) for name, value in values.items()}
        tied = {alias: host[name] for alias, name in self.aliases.items() if name in host}
        return versioned(host | tied, self.versions)


def functional(
    model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any, *, matmul: str = "highest"
) -> Functional:
    """``model`` and ``loss(model, batch)`` as a pure function of parameters and batch.

    ``jax.grad``, ``vmap``, ``jit``, optax, shardings and gradients through updates apply to it as to any JAX
    function; the module is read once and never changed. Numbers, flags and tensors that are neither parameters nor
    buffers of it keep the values that they have now: call this again after changing one. Token ids and labels (int64)
    need no switch. Numbers of 64 bits that 32 cannot hold do: ``jax.jit`` narrows what it is given at its own border,
    so transform and call it under ``with jax.enable_x64(True):``. A narrowed batch is refused where the example batch
    has such numbers; one that is the first to have some cannot be told from what fits. Floats of 64 bits are rounded
    there, as all of JAX's. Raises Refused with every reason.

    >>> f = detente.functional(model, loss, batch)
    >>> arrays = jax.tree.map(lambda tensor: tensor.numpy(), batch)    # from here on JAX's own kind of arrays
    >>> gradient = jax.jit(jax.grad(f))(f.params, arrays)
    """
    takes_part(model, loss)
    if found := criterion(loss):
        raise Refused(found)
    known_matmul("matmul", matmul)
    batch = batches.distinct(batch)
    captured = lowerable(capture(model, loss, batch))
    held = captured.weights
    arrays = {name: to_jax(tensor) for name, tensor in held.tensors.items()}
    params = {n: a for n, a in arrays.items() if n in held.trainable}
    buffers = {n: a for n, a in arrays.items() if n not in held.trainable}
    program = Program(graph_of(captured, buffers=False), matmul)
    wide = frozenset(i for i, tensor in enumerate(batches.flatten(batch)[0]) if _wide(tensor))
    versions = versions_of(model.state_dict(keep_vars=True))
    return Functional(params, buffers, program, captured.batch, captured.aux, held.aliases, wide, versions)


def _wide(tensor: torch.Tensor) -> bool:
    """Whether it holds numbers that do not fit into its narrow kind, which ``jax.jit`` makes of it: an integer that
    becomes another one, a float that becomes infinite."""
    narrow = _NARROW.get(str(tensor.dtype).removeprefix("torch."))
    if narrow is None:
        return False
    again = tensor.to(getattr(torch, narrow)).to(tensor.dtype)
    lost = tensor.isfinite() & ~again.isfinite() if tensor.is_floating_point() else again != tensor
    return bool(lost.any())
