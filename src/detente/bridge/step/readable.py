"""What can be asked of a step between its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from detente.bridge.copies import copied
from detente.bridge.live.guard import plain, tensors_of
from detente.bridge.private import pytree, versioned, versions_of
from detente.bridge.program.program import exported
from detente.bridge.state import checkpoint
from detente.bridge.state.groups import put, told
from detente.bridge.state.place import Placed, from_jax
from detente.bridge.step.exchange import Exchange

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


class Readable(Exchange):
    """Weights, moments and programs, on the host, in files, as text."""

    def __reduce_ex__(self, protocol: object) -> Any:
        """copy.copy, copy.deepcopy and pickle: two steps would use up one state."""
        raise TypeError(
            "a step holds a compiled program and its state on the device, and is not copied or pickled: "
            "step.save(path) writes its state, step.state_dict() is its weights, detente.compile makes another step"
        )

    def evaluate(self, batch: Any) -> Any:
        """The loss function's value on ``batch`` in eager PyTorch, with the weights as they are now, without gradients
        and in eval mode; the module is in its own mode again afterwards."""
        with self._away():
            self._none_hidden()
            self._trusted()
            self._catch_up()
            if self._guard.behind:
                self._write_back(optimizer=False)
            modes = [(part, part.training) for part in self.model.modules()]
            try:
                self.model.eval()
                # a loss that differentiates needs the graph that no_grad would not make
                nodes = (node for program in self.programs for node in program.captured.graph.nodes)
                with torch.set_grad_enabled(any(node.op == "detente.derivative" for node in nodes)):
                    given = self.loss(self.model, batch.as_placed() if isinstance(batch, Placed) else batch)
                return pytree.tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, given)
            finally:
                for part, training in modes:
                    part.training = training

    @contextmanager
    def synced(self) -> Iterator[nn.Module]:
        """The live module with the weights, buffers and optimizer state as they are now, for as long as the block
        takes: read it, save it, write to it by any means. The next step starts from what it holds at the end.

        >>> import detente
        >>> layer = nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> batch = torch.ones(1, 2)
        >>> step = detente.compile(layer, lambda m, b: m(b).sum(), sgd, example_batch=batch, cache=False)
        >>> with step.synced() as model:
        ...     _ = model.bias.data.fill_(3.0)
        >>> float(step.state_dict()["bias"])
        3.0
        """
        self.sync_to_torch()
        held = tensors_of(self.model)
        try:
            with plain(held):
                yield self.model
        finally:
            self._guard.exposed |= {id(t) for t in self.weights.tensors.values()}
            self._rewritten = True

    def state_dict(self) -> dict[str, Any]:
        """The module's own ``state_dict`` now, as a copy: weights and persistent buffers under torch's names, tied ones
        included, the versions of its parts, and whatever its hooks and ``get_extra_state`` make of it."""
        return self._stated({})

    def averages(self) -> dict[str, Any]:
        """As ``state_dict``, with the moving average of every parameter that the optimizer holds in its place; other
        parameters and buffers as they are now. A copy of the module takes it by ``load_state_dict``.

        Raises ValueError where the step was compiled without ``ema``.
        """
        self._now()
        return self._stated(self._rule.averages(self._state.by_torch_names()[1]))

    def _stated(self, instead: Mapping[str, Any]) -> dict[str, Any]:
        """The module's ``state_dict`` with the values of now, and in the place of some, by canonical name, others."""
        self._now()
        with self._away():
            if own_words(self.model):
                return self._said_by_the_module(instead)
            names = self.model.state_dict(keep_vars=True)
        canonical = {name: self.weights.canonical(name) for name in names}
        host = {n: from_jax(instead.get(n, self._state.value(n))) for n in {*canonical.values()}}
        return versioned({name: host[canonical[name]] for name in names}, versions_of(names))

    def _said_by_the_module(self, instead: Mapping[str, Any]) -> dict[str, Any]:
        """What the live module says of itself, whose code reads the values and gives what it likes."""
        self._trusted()
        self._write_back(optimizer=any(t.is_meta for t in self.weights.tensors.values()))
        lent = {name: self.weights.tensors[name] for name in instead}
        own = {name: tensor.detach().clone() for name, tensor in lent.items()}
        try:
            self._put(lent, {name: from_jax(value) for name, value in instead.items()})
            with plain(tensors_of(self.model)):
                return copied(self.model.state_dict())
        finally:
            self._put(lent, own)

    def _put(self, live: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
        """For a moment: no step takes it for a write of the user's."""
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(values[name])
        self._wrote(live.values())
        for stranger in self.sharing.apart:
            stranger._hear(live.values())

    def save(self, path: str | Path) -> None:
        """Write weights, buffers, optimizer state, the numbers of ``param_groups`` and the position of the random
        numbers to one safetensors file. It takes its name when it is whole: a file of that name is there until then.

        Raises Refused (``checkpoint``) where it cannot be written.
        """
        self._trusted()
        self._now()
        groups = told(self.optimizer, self._names_by_id())
        numbers, aliases = self._variants.numbers, dict(self.weights.aliases)
        checkpoint.save(path, self._state, aliases, self.count, self.options.seed, groups, numbers)

    def load(self, path: str | Path) -> None:
        """Go on exactly where ``save`` was called: the next steps are bitwise those of the uninterrupted run. As
        ``optimizer.load_state_dict`` does, it sets ``lr`` and whatever else stands in ``param_groups``; a scheduler has
        a state of its own to load.

        Warns where the file has no such numbers (an earlier version's), or has them of other groups: then they stay
        what they are here. Raises Refused (``checkpoint``) for what is no checkpoint, or fits another step, and
        FileNotFoundError; nothing has changed then.
        """
        self._settle()
        state, count, seed, groups = checkpoint.load(path, self._state, self._variants.numbers)
        self._wrote(self.weights.tensors.values())  # what was written before comes from the file, too
        self._guard.exposed.clear()
        self._outside.exposed.clear()
        self._state, self.count = state, count
        put(groups, self.optimizer, self._names_by_id(), path)
        self._rule.numbers_into(self.optimizer, self._state.by_torch_names()[1])
        self._live, self._stepped, self._rewritten, self._told_values = False, True, False, True
        self._guard.behind = self._moments.behind = True
        self.sharing.loaded()
        self.options = replace(self.options, seed=seed)
        self._certifier = replace(self._certifier, options=self.options)
        self._show_loaded()

    def _names_by_id(self) -> dict[int, str]:
        """torch's canonical names of the live parameters."""
        named = self.model.named_parameters(remove_duplicate=False)
        return {id(param): self.weights.canonical(name) for name, param in named}

    def stablehlo(self, platforms: Sequence[str] | None = None) -> str:
        """The whole training step as StableHLO text: forward, backward and update of the first program.

        ``platforms`` (``cpu``, ``cuda``, ``rocm``, ``tpu``) need not be here; default: the one that is. Raises
        ValueError for another.
        """
        unknown = [] if platforms is None else [name for name in platforms if name not in PLATFORMS]
        if unknown or isinstance(platforms, str) or (platforms is not None and not platforms):
            raise ValueError(f"platforms is a list of {', '.join(PLATFORMS)}; there is {platforms!r}")
        return exported(self.programs[0].compiled, platforms).mlir_module()

    def values(self) -> dict[str, Any]:
        """The weights and buffers now, as JAX arrays by canonical torch name."""
        self._now()
        return self._state.by_torch_names()[0]

    def moments(self) -> dict[str, dict[str, Any]]:
        """The optimizer's state now, as JAX arrays by canonical torch name and torch's key (``exp_avg``)."""
        self._now()
        held = self._state.by_torch_names()[1]
        return {n: _without_own(leaves) for n, leaves in held.items()}

    def on_host(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """``values()`` and ``moments()`` as numpy. On the CPU they may share the step's memory: copy what is kept, and
        let go of the rest before the next step, which would have to copy instead of writing in place."""
        self._now()
        values, held = self._state.on_host()
        return values, {n: _without_own(leaves) for n, leaves in held.items()}

    def arrays(self) -> Any:
        """Everything the next step would donate or read, as a pytree of JAX arrays (to wait for, to measure)."""
        self._book()
        return self._state.values, self._state.optimizer


def own_words(model: nn.Module) -> bool:
    """Whether code that is not torch's has a say in the module's ``state_dict``: hooks, ``get_extra_state``, a method
    of its own."""
    return any(
        any(vars(part).get(table) for table in _HOOKS)
        or any(
            getattr(type(part), name) is not getattr(nn.Module, name) or name in vars(part) for name in _SAY
        )
        for part in model.modules()
    )


_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks")
_SAY = ("state_dict", "_save_to_state_dict", "get_extra_state")


def _without_own(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the step keeps beside an optimizer's state for itself (whether the first step was taken, an
    average)."""
    return {k: v for k, v in leaves.items() if not k.startswith("#")}
