"""Where an operator of PyTorch belongs: the module that it runs in, forward and backward, and the optimizer.

Forward, the modules themselves say it as they are called. Backward, autograd runs nodes that were made in a module's
forward: every node carries a number of a sequence that only grows, so that writing down the number at each change of
module is enough to know the module of every node, whoever made it. (Hooks on modules' backward leave out what hangs on
no module's output, and file attention that is a function under the module that follows it.)

How it can fail: a node that another thread made has a sequence of its own; custom autograd functions that record
nothing have one node for all they do. A backward on a GPU runs in threads of its own, whose operators the trace does
not see (torch_trace.py says so).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from detente.programs.scope import OPTIMIZER, Direction

# What autograd gives to nodes that add up a parameter's gradient: they are of no module's forward.
_ACCUMULATES = "AccumulateGrad"


class Scopes:
    """Which part of ``module`` is running. ``changed`` hears of every part that begins and ends in a forward."""

    def __init__(self, module: Any, changed: Callable[[bool, str], None] = lambda begins, path: None) -> None:
        import torch

        self.torch, self.changed = torch, changed
        # Of a module under two names the first.
        self.paths: dict[int, str] = {}
        for path, one in module.named_modules():
            self.paths.setdefault(id(one), path)
        self._owners = {id(p): n.rpartition(".")[0] for n, p in module.named_parameters()}
        self._running: list[str] = []
        self._marks: list[int] = []
        self._at: list[str] = []
        self._updating = False

    def now(self) -> tuple[str | None, Direction]:
        """(path, direction) of an operator that is dispatched now; the path is None where nobody knows."""
        if self._updating:
            return None, OPTIMIZER
        node = self.torch._C._current_autograd_node()
        if node is None:
            return self._path(), "forward"
        if self._running:  # a forward within a backward: what was not kept is computed again
            return self._path(), "remat"
        return self.of_node(node), "backward"

    def of_node(self, node: Any) -> str | None:
        """The module in whose forward autograd made this node."""
        if _ACCUMULATES in node.name():
            return self._owners.get(id(node.variable))
        at = bisect.bisect_right(self._marks, node._sequence_nr()) - 1
        return self._at[at] if at >= 0 else None

    @contextmanager
    def watched(self) -> Iterator[Scopes]:
        """While it lasts, modules and optimizers report."""
        from torch.nn.modules import module as modules
        from torch.optim import optimizer as optimizers

        handles = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
            optimizers.register_optimizer_step_pre_hook(lambda *_: self._update(True)),
            optimizers.register_optimizer_step_post_hook(lambda *_: self._update(False)),
        ]
        self._mark("")
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _path(self) -> str:
        return self._running[-1] if self._running else ""

    def _enter(self, module: Any, args: Any) -> None:
        path = self.paths.get(id(module), self._path())
        self._running.append(path)
        self._mark(path)
        self.changed(True, path)

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        if not self._running:
            return
        self.changed(False, self._running.pop())
        self._mark(self._path())

    def _mark(self, path: str) -> None:
        self._marks.append(self.torch.autograd._get_sequence_nr())
        self._at.append(path)

    def _update(self, begins: bool) -> None:
        self._updating = begins
